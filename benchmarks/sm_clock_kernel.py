"""The SM clock, counted by a kernel. Imported only where there is a GPU.

NVML reports the requested clock, in steps of 15 MHz. It read 1,980 MHz on H100s after every round,
where the SMs ran at 1,977 to 2,085 MHz, and the time of an attention kernel changed by 3 % with
that (benchmarks/results/precision.md).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

CYCLES = 200_000
"""Counted cycles, a tenth of a millisecond. Two readings of an idle H100 differ by less than 0.1 %;
on a GPU whose timer ticks every microsecond it would be 1 %."""
MOST_READS = 1 << 18
"""Reads of the counter after which the kernel ends in any case; one takes tens of cycles."""
SANE_MHZ = (100.0, 10_000.0)


@triton.jit
def _count(counted, cycles, most_reads):  # type: ignore[no-untyped-def]
    begun_ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    begun = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    passed = begun - begun
    reads = 0
    while (passed < cycles) & (reads < most_reads):
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        passed = now - begun
        reads += 1
    ended_ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(counted, passed)
    tl.store(counted + 1, ended_ns - begun_ns)


def sm_clock_mhz() -> float | None:
    """Cycles of one SM per microsecond of the GPU's timer, now, on an idle GPU. None where they
    cannot be counted."""
    if _cannot_count():
        return None
    counted = torch.empty(2, dtype=torch.int64, device="cuda")
    _count[(1,)](counted, CYCLES, MOST_READS, num_warps=1)
    return mhz_of(*counted.tolist())


def mhz_of(cycles: int, ns: int) -> float | None:
    """Megahertz of a count; None for an implausible one."""
    mhz = cycles / ns * 1e3 if ns > 0 else 0.0
    return mhz if cycles >= CYCLES and SANE_MHZ[0] <= mhz <= SANE_MHZ[1] else None


@cache
def _cannot_count() -> bool:
    """Whether the kernel cannot be compiled for this GPU. Compiles it at the first call."""
    try:
        _count.warmup(torch.int64, CYCLES, MOST_READS, num_warps=1, grid=(1,))
    except Exception:  # noqa: BLE001 - a benchmark goes on without the clock
        return True
    return False
