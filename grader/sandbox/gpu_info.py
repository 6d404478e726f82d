"""The GPUs of this machine, read from the NVIDIA driver: importing torch would take seconds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Device attributes of the driver API, from cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, as the driver describes it."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class GpuDriver:
    """The NVIDIA driver's GPUs, or why none can be used."""

    missing: str | None
    """Why no GPU can be used, as a sentence; None when one can."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA version that the driver supports."""
    gpus: tuple[Gpu, ...] = ()


@cache
def driver() -> GpuDriver:
    """Query the driver once. It honours CUDA_VISIBLE_DEVICES."""
    if not Path("/dev/nvidia0").exists() and not Path("/dev/nvidiactl").exists():
        return GpuDriver("no NVIDIA GPU: there is no /dev/nvidia0")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return GpuDriver("there is a GPU, but not the driver's library libcuda.so.1")
    status = cuda.cuInit(0)
    if status != 0:
        return GpuDriver(f"the NVIDIA driver does not start (cuInit says {status})")
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    newest = (version.value // 1000, version.value % 1000 // 10)
    if count.value == 0:
        return GpuDriver("the NVIDIA driver sees no GPU; check CUDA_VISIBLE_DEVICES", newest)
    return GpuDriver(None, newest, tuple(_gpu(cuda, index) for index in range(count.value)))


def cuda_missing() -> str | None:
    """Why no NVIDIA GPU can be used here, as a sentence; None when one can."""
    return driver().missing


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    memory_bytes = ctypes.c_size_t()
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return Gpu(
        name.value.decode("utf-8", "replace"), memory_bytes.value, (major.value, minor.value)
    )
