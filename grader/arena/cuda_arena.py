"""A lent block in device memory: `cuMemCreate` with a POSIX-fd handle, mapped on both sides.

Unlike `cudaIpcGetMemHandle` it exposes exactly this memory, not its neighbours in the allocator's
segment, and it needs no shared IPC namespace.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from cuda.bindings import driver


class CudaArenaError(RuntimeError):
    """A driver call failed; the text names the error."""


class CudaArena:
    """A block of `nbytes` bytes. `buffer` is a uint8 tensor over all of it; `fd` may be lent."""

    device = "cuda"

    def __init__(self, handle: Any, fd: int, nbytes: int, mapped_bytes: int, ordinal: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._handle: Any = handle
        self._mapped_bytes = mapped_bytes
        self._address: Any = _ok(driver.cuMemAddressReserve(mapped_bytes, 0, 0, 0))
        _ok(driver.cuMemMap(self._address, mapped_bytes, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = _location(ordinal)
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _ok(driver.cuMemSetAccess(self._address, mapped_bytes, [access], 1))
        self.buffer = torch.as_tensor(_Block(int(self._address), nbytes), device=f"cuda:{ordinal}")

    @classmethod
    def create(cls, nbytes: int) -> CudaArena:
        """Judge's side, on the current device. Raises `CudaArenaError` when memory is short."""
        ordinal = _current_device()
        prop = _properties(ordinal)
        mapped_bytes = _round_up(nbytes, prop)
        handle = _ok(driver.cuMemCreate(mapped_bytes, prop, 0))
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        fd = int(_ok(driver.cuMemExportToShareableHandle(handle, kind, 0)))
        return cls(handle, fd, nbytes, mapped_bytes, ordinal)

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> CudaArena:
        """Runner's side: import a lent descriptor and take ownership of it."""
        ordinal = _current_device()
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        handle = _ok(driver.cuMemImportFromShareableHandle(fd, kind))
        return cls(handle, fd, nbytes, _round_up(nbytes, _properties(ordinal)), ordinal)

    def await_gate(self, stream: Any, number: int) -> None:
        """Make a torch stream wait until the block's first word is at least `number`.

        The GPU's front end waits, not a kernel, so other processes on the GPU are not blocked.
        """
        value = driver.cuuint32_t(number)
        # Flags 0 means "greater or equal".
        _ok(driver.cuStreamWaitValue32(stream.cuda_stream, self._address, value, 0))

    def close(self) -> None:
        """Wait for the device, unmap and release. Tensors over the block become invalid."""
        if self.fd < 0:
            return
        torch.cuda.synchronize()
        self.buffer = torch.empty(0, dtype=torch.uint8)
        _ok(driver.cuMemUnmap(self._address, self._mapped_bytes))
        _ok(driver.cuMemAddressFree(self._address, self._mapped_bytes))
        _ok(driver.cuMemRelease(self._handle))
        os.close(self.fd)
        self.fd = -1


def end_call(stream: Any) -> None:
    """On a capturing torch stream, make all later work depend on all earlier work.

    An empty graph node goes between them, which takes the GPU no time. With programmatic dependent
    launch a kernel may start before the previous one ends, but only directly behind a kernel.
    """
    _, _, graph, last, *_ = _ok(_capture_info(stream.cuda_stream))
    node = _ok(driver.cuGraphAddEmptyNode(graph, last, len(last)))
    replace = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    _ok(_set_dependencies(stream.cuda_stream, [node], None, 1, replace))


# The versions that support programmatic dependents: suffixed in CUDA 12, without suffix in 13.
_capture_info = getattr(driver, "cuStreamGetCaptureInfo_v3", driver.cuStreamGetCaptureInfo)
_set_dependencies = getattr(
    driver, "cuStreamUpdateCaptureDependencies_v2", driver.cuStreamUpdateCaptureDependencies
)


class _Block:
    """Wraps a device address for PyTorch, by ``__cuda_array_interface__``."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def _current_device() -> int:
    torch.cuda.init()
    # PyTorch makes its context on first use, and the driver calls need it to be current.
    torch.zeros(1, device="cuda")
    return torch.cuda.current_device()


def _location(ordinal: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return location


def _properties(ordinal: int) -> Any:
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    prop.requestedHandleTypes = kind
    prop.location = _location(ordinal)
    return prop


def _round_up(nbytes: int, prop: Any) -> int:
    flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    step = int(_ok(driver.cuMemGetAllocationGranularity(prop, flag)))
    return nbytes + -nbytes % step


def _ok(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise CudaArenaError(f"the CUDA driver says {code.name}")
    return values[0] if len(values) == 1 else values
