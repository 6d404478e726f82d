"""How many warps of a kernel an SM can hold at once, and what stops there being more.

The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit): each
resource of an SM is shared out in whole blocks, and the scarcest one decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WARP = 32
REGISTER_UNIT = 256
"""Registers are given to a warp in portions of so many."""
SHARED_UNIT_BYTES = 128
"""Shared memory is given to a block in portions of so many, from compute capability 8 on."""
PARTITIONS = 4
"""Parts of an SM that have registers of their own, from compute capability 7 on."""

Resource = Literal["threads", "blocks", "registers", "shared memory"]


@dataclass(frozen=True)
class Multiprocessor:
    """What one SM of a GPU has, and how many of them there are."""

    count: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved_bytes: int
    """Shared memory that the system takes of every block's."""


@dataclass(frozen=True)
class Occupancy:
    """How full of a kernel an SM can be."""

    share: float
    """Warps that fit, of those that an SM can hold."""
    blocks: int
    """Blocks that fit on one SM."""
    bound: Resource
    """What would have to shrink for another block to fit."""


def occupancy(sm: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of blocks of so many threads, registers a thread, and bytes of shared memory."""
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
    each = _round_up(registers * WARP, REGISTER_UNIT)
    return sm.registers // PARTITIONS // each * PARTITIONS // warps


def _by_shared(sm: Multiprocessor, shared_bytes: int) -> int:
    taken = _round_up(shared_bytes + sm.reserved_bytes, SHARED_UNIT_BYTES)
    return sm.shared_bytes // taken if taken else sm.blocks


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def this_gpu() -> Multiprocessor:
    """The current GPU's, as its driver tells. Raises RuntimeError when the driver does not."""
    import torch
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute

    def ask(name: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        status, value = driver.cuDeviceGetAttribute(kind, torch.cuda.current_device())
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the CUDA driver does not tell {name}: {status.name}")
        return int(value)

    torch.cuda.init()
    return Multiprocessor(
        count=ask("MULTIPROCESSOR_COUNT"),
        threads=ask("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        reserved_bytes=ask("RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )
