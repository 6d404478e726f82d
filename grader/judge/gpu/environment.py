"""What a result was measured on: versions, the GPU, and the ceilings of its roofline."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from typing import Any

import torch

from grader import __version__
from grader.judge.gpu.graphs import event_us
from grader.judge.gpu.state import gpu_state, gpu_uuid
from grader.submission import Submission


@dataclass(frozen=True)
class Ceilings:
    """The highest rates measured on this GPU or processor, per second."""

    bytes_per_s: float
    """Of a device-to-device copy: bytes read plus bytes written."""
    fp32_per_s: float
    """Operations of a float32 matrix product without tensor cores; a multiply-add counts two."""
    tensor_per_s: float
    """Operations of a bfloat16 matrix product on tensor cores."""

    def floor_us(self, nbytes: float, flops: float, unit: str) -> float:
        """The roofline's lower bound in microseconds for moving `nbytes` and doing `flops`."""
        rate = self.tensor_per_s if unit == "tensor" else self.fp32_per_s
        return max(nbytes / self.bytes_per_s, flops / rate) * 1e6


@cache
def measure_ceilings() -> Ceilings:
    """Measure the current GPU's ceilings. Takes about 0.2 s, once per process."""
    nbytes = 1 << 30
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), 20)
    a32, a16 = (
        torch.randn(4096, 4096, device="cuda"),
        torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16),
    )
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    fp32_s = _best_s(lambda: torch.mm(a32, a32), 5)
    torch.set_float32_matmul_precision(precision)
    tensor_s = _best_s(lambda: torch.mm(a16, a16), 10)
    return Ceilings(2 * nbytes / copy_s, 2 * 4096**3 / fp32_s, 2 * 8192**3 / tensor_s)


@cache
def measure_cpu_ceilings() -> Ceilings:
    """Measure the processor's ceilings with PyTorch's own number of threads, in about a second."""
    nbytes = 256 << 20  # larger than most caches
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_s = _best_cpu_s(lambda: target.copy_(source), 5)
    a32 = torch.randn(1024, 1024)
    a16 = a32.to(torch.bfloat16)
    fp32_s = _best_cpu_s(lambda: torch.mm(a32, a32), 5)
    bf16_s = _best_cpu_s(lambda: torch.mm(a16, a16), 3)
    return Ceilings(2 * nbytes / copy_s, 2 * 1024**3 / fp32_s, 2 * 1024**3 / bf16_s)


def _best_cpu_s(body: Any, repeats: int) -> float:
    body()
    best_s = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        body()
        best_s = min(best_s, time.perf_counter() - start)
    return best_s


def _best_s(body: Any, repeats: int) -> float:
    body()
    return min(event_us(body) for _ in range(repeats)) / 1e6


def package_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu_name(device: str) -> str | None:
    """Name of the GPU in use; None on a CPU."""
    return torch.cuda.get_device_name() if device == "cuda" else None


def describe_language(submission: Submission) -> dict[str, str | None]:
    """The language of a Python file's kernels, and the version of its package here; empty if the
    file imports none that is known."""
    used = submission.kernel_language
    if used is None:
        return {}
    return {"kernel_language": used.key, used.distribution: package_version(used.distribution)}


def describe(device: str) -> dict[str, Any]:
    """Versions and hardware of the judge's process."""
    found: dict[str, Any] = {
        "grade": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": package_version("triton"),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties()
        found |= {
            "gpu": properties.name,
            "gpu_uuid": gpu_uuid(),
            "driver": gpu_state().get("driver"),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "device_memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "ceilings": asdict(measure_ceilings()),
        }
    return found
