"""How fast the multiprocessors' clock ticks. Imported only where there is a GPU.

NVML tells the clock that the chip was asked for, in steps of 15 MHz. What it runs at is another:
it read 1,980 MHz of H100s after every round, where one ticked 1,977 to 2,085 million times a
second, and an attention kernel took 3 % more or less with that (docs/measurements.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CYCLES = 200_000
"""A tenth of a millisecond: two readings of an idle chip differ by less than a thousandth."""


@triton.jit
def _count(counted, cycles):  # type: ignore[no-untyped-def]
    begun_ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    begun = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    passed = begun - begun
    while passed < cycles:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        passed = now - begun
    ended_ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(counted, passed)
    tl.store(counted + 1, ended_ns - begun_ns)


def sm_clock_mhz() -> float:
    """Cycles of one multiprocessor per microsecond of the GPU's own time, at this moment."""
    counted = torch.empty(2, dtype=torch.int64, device="cuda")
    _count[(1,)](counted, CYCLES, num_warps=1)
    cycles, ns = counted.tolist()
    return float(cycles / ns * 1e3)
