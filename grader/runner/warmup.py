"""A Triton kernel that is compiled to warm up the compiler, and never launched.

The first kernel that a process compiles takes over half a second longer than the next ones, for
Triton's own imports. A runner that waits for a submission has that time. Imported only on a GPU.
"""

from __future__ import annotations

from contextlib import suppress

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _warmup_kernel(x, out, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < length, other=0.0).to(tl.float32)
    tl.store(out + at, tl.exp(values - tl.max(values, axis=0)), mask=at < length)


def compile_warmup_kernel() -> None:
    """Compile the kernel without using the device. Errors are ignored: they recur and are reported
    when the submission compiles."""
    with suppress(Exception):
        _warmup_kernel.warmup(torch.float32, torch.float32, 1, BLOCK=256, grid=(1,))
