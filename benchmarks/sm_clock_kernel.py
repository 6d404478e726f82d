"""How fast the multiprocessors' clock ticks. Imported only where there is a GPU.

NVML tells the clock that the chip was asked for, in steps of 15 MHz. What it runs at is another:
it read 1,980 MHz of H100s after every round, where one ticked 1,977 to 2,085 million times a
second, and an attention kernel took 3 % more or less with that (benchmarks/results).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

CYCLES = 200_000
"""A tenth of a millisecond. On an H100 two readings of an idle chip differ by less than a
thousandth; where the GPU's own time ticks every microsecond only, it would be a hundredth."""
MOST_LOOKS = 1 << 18
"""So many end the kernel, whatever the counter does: a look takes tens of cycles."""
SANE_MHZ = (100.0, 10_000.0)


@triton.jit
def _count(counted, cycles, most_looks):  # type: ignore[no-untyped-def]
    begun_ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    begun = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    passed = begun - begun
    looks = 0
    while (passed < cycles) & (looks < most_looks):
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        passed = now - begun
        looks += 1
    ended_ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(counted, passed)
    tl.store(counted + 1, ended_ns - begun_ns)


def sm_clock_mhz() -> float | None:
    """Cycles of one multiprocessor per microsecond of the GPU's own time, at this moment, with
    nothing else to do. It is told and decides nothing: None where it cannot be counted."""
    if _counts_nothing():
        return None
    counted = torch.empty(2, dtype=torch.int64, device="cuda")
    _count[(1,)](counted, CYCLES, MOST_LOOKS, num_warps=1)
    return mhz_of(*counted.tolist())


def mhz_of(cycles: int, ns: int) -> float | None:
    """Megahertz of a count; None where the counters cannot be believed."""
    mhz = cycles / ns * 1e3 if ns > 0 else 0.0
    return mhz if cycles >= CYCLES and SANE_MHZ[0] <= mhz <= SANE_MHZ[1] else None


@cache
def _counts_nothing() -> bool:
    """Whether the kernel cannot be compiled for this GPU; compiles it the first time."""
    try:
        _count.warmup(torch.int64, CYCLES, MOST_LOOKS, num_warps=1, grid=(1,))
    except Exception:  # noqa: BLE001 - of any kind: no grading shall end for want of a clock
        return True
    return False
