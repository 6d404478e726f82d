"""A Triton kernel that is compiled to warm up the compiler, and never launched.

The first kernel that a process compiles takes over half a second longer than the next ones, for
Triton's own imports. A runner that waits for a submission has that time, and compiles it before it
forks the precompiler, so that the forked processes are warm too. Imported only on a GPU.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


@triton.jit  # type: ignore[untyped-decorator]
def _warmup_kernel(x, out, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < length, other=0.0).to(tl.float32)
    tl.store(out + at, tl.exp(values - tl.max(values, axis=0)), mask=at < length)


class NoDevice:
    """A Triton driver for compiling alone. It makes no CUDA call: a process forked after one could
    make none. What it does not know, such as a property of the device, Triton's own driver is
    asked."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self._capability = capability

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self._capability

    def get_current_target(self) -> GPUTarget:
        major, minor = self._capability
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        if name == "launcher_cls":  # building one needs no device either
            from triton.backends.nvidia.driver import CudaLauncher

            return CudaLauncher
        return getattr(driver.default, name)


def compile_without_device() -> None:
    """`compile_warmup_kernel` in a process without a CUDA context, which then gets none. Until
    `driver.reset_active()`, Triton's driver is one that launches nothing."""
    from cuda.bindings import driver as _  # noqa: F401 - which the runner needs next

    driver.set_active(NoDevice())
    compile_warmup_kernel()


def compile_warmup_kernel() -> None:
    """Compile the kernel without using the device. Errors are ignored: they recur and are reported
    when the submission compiles."""
    with suppress(Exception):
        _warmup_kernel.warmup(torch.float32, torch.float32, 1, BLOCK=256, grid=(1,))


def build_helper() -> None:
    """Build Triton's helper module, in C, so that opening a device only loads it. Uses no device.
    Errors are ignored: they recur then."""
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()
