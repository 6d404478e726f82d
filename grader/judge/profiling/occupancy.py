"""Occupancy: how many warps of a kernel an SM can hold at once, and which resource limits them.

The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit): an SM
takes whole blocks, and the scarcest resource decides how many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WARP = 32
REGISTER_UNIT = 256
"""Registers are allocated to a warp in multiples of this."""
SHARED_UNIT_BYTES = 128
"""Shared memory is allocated to a block in multiples of this, from compute capability 8.0 on."""
PARTITIONS = 4
"""Partitions of an SM's register file, from compute capability 7.0 on."""

Resource = Literal["threads", "blocks", "registers", "shared memory"]


@dataclass(frozen=True)
class Multiprocessor:
    """The resources of one SM, and the number of SMs of a GPU."""

    count: int
    """SMs of the GPU."""
    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved_bytes: int
    """Shared memory that CUDA reserves for each block."""


@dataclass(frozen=True)
class Occupancy:
    """The occupancy of an SM by one kernel."""

    share: float
    """Resident warps, as a fraction of the most that an SM can hold."""
    blocks: int
    """Resident blocks per SM."""
    bound: Resource
    """The limiting resource: less use of it would let another block fit."""


def occupancy(sm: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of blocks with the given threads, registers per thread, and shared memory."""
    warps = -(-threads // WARP)
    fits: dict[Resource, int] = {
        "threads": sm.threads // WARP // warps,
        "blocks": sm.blocks,
        "registers": _by_registers(sm, warps, registers),
        "shared memory": _by_shared(sm, shared_bytes),
    }
    bound = min(fits, key=lambda resource: fits[resource])
    return Occupancy(fits[bound] * warps * WARP / sm.threads, fits[bound], bound)


def _by_registers(sm: Multiprocessor, warps: int, registers: int) -> int:
    if registers == 0:
        return sm.blocks
    per_warp = _round_up(registers * WARP, REGISTER_UNIT)
    return sm.registers // PARTITIONS // per_warp * PARTITIONS // warps


def _by_shared(sm: Multiprocessor, shared_bytes: int) -> int:
    taken = _round_up(shared_bytes + sm.reserved_bytes, SHARED_UNIT_BYTES)
    return sm.shared_bytes // taken if taken else sm.blocks


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def current_multiprocessor() -> Multiprocessor:
    """The current GPU's, from its driver. Raises RuntimeError if the driver reports an error."""
    import torch
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute

    def query(name: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        status, value = driver.cuDeviceGetAttribute(kind, torch.cuda.current_device())
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the CUDA driver does not report {name}: {status.name}")
        return int(value)

    torch.cuda.init()
    return Multiprocessor(
        count=query("MULTIPROCESSOR_COUNT"),
        threads=query("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks=query("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers=query("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes=query("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        reserved_bytes=query("RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )
