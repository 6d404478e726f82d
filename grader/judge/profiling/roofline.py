"""What limits a kernel, in words: from its rates, the GPU's ceilings, and how it used the GPU.

The roofline tells which resource must run out first; the rest are the usual reasons why it did not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grader.judge.profiling.report import Kernel

NEAR = 0.85
"""From this share of the ceiling on, there is little left to win."""
TOO_GOOD = 1.05
"""Beyond this it is no noise of the ceiling."""
IDLE = 0.15
"""A GPU idle for this share of a call is worth a word."""
LOW_OCCUPANCY = 0.25
"""Below a quarter of the warps, latency of memory is hard to hide."""
FEW_WAVES = 1.0
"""Fewer blocks than fit on the GPU at once leave SMs without work."""
TINY_US = 5.0
"""A call that needs less than this is mostly the launch of its kernel, itself 2 to 5 µs."""
MOST_REASONS = 3


@dataclass(frozen=True)
class Rates:
    """One call against the ceilings of its GPU; all in units per second, or microseconds."""

    time_us: float
    """GPU at work."""
    elapsed_us: float
    """From call to call, idle time between kernels included."""
    bytes_per_s: float
    flops_per_s: float
    most_bytes_per_s: float
    most_flops_per_s: float
    unit: Literal["fp32", "tensor"]

    @property
    def bytes_share(self) -> float:
        """Of the memory ceiling."""
        return self.bytes_per_s / self.most_bytes_per_s

    @property
    def flops_share(self) -> float:
        """Of the arithmetic ceiling."""
        return self.flops_per_s / self.most_flops_per_s

    @property
    def memory_bound(self) -> bool:
        """Whether the roofline has memory run out before arithmetic."""
        return self.bytes_share >= self.flops_share

    @property
    def share(self) -> float:
        """Of the ceiling that must be reached first."""
        return max(self.bytes_share, self.flops_share)


def explain(rates: Rates, kernels: list[Kernel]) -> str:
    """One to four sentences: what bounds this work, how near it is, and what is in the way."""
    head = _head(rates)
    reasons = list(_reasons(rates, kernels))[:MOST_REASONS]
    if rates.share > TOO_GOOD:
        return f"{head}; more than the ceiling: does it do all of the work? `grade practice` tells."
    if rates.share >= NEAR and not reasons:
        return f"{head}, near the ceiling: only fewer bytes or operations would make it faster."
    if not reasons:
        reasons = [_nothing_seen(rates)]
    return ". ".join([head, *(reason[0].upper() + reason[1:] for reason in reasons)]) + "."


def _head(rates: Rates) -> str:
    if rates.memory_bound:
        got, most, unit = rates.bytes_per_s / 1e9, rates.most_bytes_per_s / 1e9, "GB/s"
        bound = "Memory-bound"
    else:
        got, most, unit = rates.flops_per_s / 1e12, rates.most_flops_per_s / 1e12, "TFLOP/s"
        bound = "Compute-bound"
    return f"{bound}: {got:,.4g} of {most:,.4g} {unit} ({rates.share:.0%})"


def _reasons(rates: Rates, kernels: list[Kernel]) -> Iterator[str]:
    """What is in the way, what weighs most first."""
    launches = sum(kernel.launches for kernel in kernels)
    idle = 1 - rates.time_us / rates.elapsed_us if rates.elapsed_us > 0 else 0.0
    if idle >= IDLE:
        yield (
            f"the GPU is idle {idle:.0%} of the time, between {launches:.3g} launches a call: "
            "launch less, or let the call be captured into a CUDA graph"
        )
    if rates.share >= NEAR:
        return
    if rates.share * rates.time_us < TINY_US:
        yield (
            f"the work itself needs {rates.share * rates.time_us:.2g} µs, less than a launch "
            "takes: take a larger --case to see the kernel"
        )
        return
    if launches >= 2 and rates.memory_bound:
        yield (
            f"{launches:.3g} launches a call may pass intermediate results through memory: "
            "fuse them"
        )
    if kernels:
        yield from _of_kernel(max(kernels, key=lambda kernel: kernel.share), rates)


def _of_kernel(kernel: Kernel, rates: Rates) -> Iterator[str]:
    """What is wrong with the kernel that takes longest."""
    name = f"`{kernel.name[:60]}`"
    if kernel.waves is not None and kernel.waves < FEW_WAVES:
        yield f"{name} has blocks for only {kernel.waves:.0%} of the GPU: split the work finer"
    if kernel.local_bytes and kernel.local_instructions != 0:
        yield (
            f"{name} keeps {kernel.local_bytes} bytes a thread in local memory "
            f"({kernel.registers} registers): registers spill, or an array is indexed at run time"
        )
    if not rates.memory_bound and rates.unit == "tensor" and kernel.tensor_instructions == 0:
        yield f"{name} has no tensor-core instruction in its SASS"
    if kernel.occupancy is not None and kernel.occupancy < LOW_OCCUPANCY:
        yield (
            f"{name} fills {kernel.occupancy:.0%} of an SM's warps, bounded by its "
            f"{kernel.occupancy_bound}"
        )


def _nothing_seen(rates: Rates) -> str:
    if rates.memory_bound:
        return (
            "nothing stands out in its launch, so look at the loads in the SASS: are they wide, "
            "coalesced, and are enough of them under way at once?"
        )
    return (
        "nothing stands out in its launch, so look at the SASS: what stands between the "
        "multiply-adds, and does loading overlap with them?"
    )
