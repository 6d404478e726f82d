"""The warm-up of Triton's compiler needs no GPU, and forked processes inherit it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver

from grader.runner import warmup

ROOT = Path(__file__).resolve().parents[2]

FORKED = """
import os, sys
from types import ModuleType

for name in ("cuda", "cuda.bindings", "cuda.bindings.driver"):
    sys.modules[name] = ModuleType(name)
sys.modules["cuda.bindings"].driver = sys.modules["cuda.bindings.driver"]

import torch
from grader.runner import warmup

assert warmup.NoDevice((8, 9)).get_current_target() == warmup.GPUTarget("cuda", 89, 32)
assert warmup.NoDevice((8, 9)).get_device_capability(0) == (8, 9)
assert warmup.NoDevice().get_active_torch_device() == torch.device("cuda", 0)
loaded = lambda: list(warmup._warmup_kernel.device_caches[0][0].values())
warmup.compile_without_device()
assert not torch.cuda.is_initialized()
[kernel] = loaded()
assert kernel.asm["cubin"][1:4] == b"ELF"
pid = os.fork()
if pid == 0:
    warmup.compile_warmup_kernel()
    inherited = loaded() == [kernel]
    warmup._warmup_kernel.warmup(torch.float16, torch.float32, 1, BLOCK=512, grid=(1,))
    os._exit(0 if inherited and len(loaded()) == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_process_forked_after_the_warm_up_has_the_compiler(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_the_driver_without_a_device_does_not_know_tritons_own_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = SimpleNamespace(utils="of the device", launcher_cls="of the device")
    monkeypatch.setattr(driver, "_default", own)
    assert warmup.NoDevice().utils == "of the device"
    assert warmup.NoDevice().launcher_cls is CudaLauncher
