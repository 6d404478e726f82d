"""What limits a kernel, in words, from the roofline model and the kernel's use of the GPU.

The roofline gives the resource that bounds the work; the rest are the usual reasons why a kernel
stays below that bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grader.judge.profiling.kernel_report import KernelProfile

NEAR = 0.85
"""Above this share of the ceiling, little is left to gain."""
TOO_GOOD = 1.05
"""Above this share of the ceiling, it is not measurement noise."""
IDLE = 0.15
"""A GPU idle for this share of a call is mentioned."""
LOW_OCCUPANCY = 0.25
"""Below a quarter of the warps, memory latency is hard to hide."""
FEW_WAVES = 1.0
"""Fewer blocks than the GPU holds at once leave SMs idle."""
TINY_US = 5.0
"""A call with less work than this is dominated by the launch, which takes 2 to 5 µs."""
MAX_REASONS = 3


@dataclass(frozen=True)
class RooflinePoint:
    """One call on the roofline of its GPU. Rates are per second."""

    time_us: float
    """Time that the GPU was busy."""
    elapsed_us: float
    """Time from call to call, including idle time between kernels."""
    bytes_per_s: float
    flops_per_s: float
    ceiling_bytes_per_s: float
    ceiling_flops_per_s: float
    unit: Literal["fp32", "tensor"]

    @property
    def bytes_share(self) -> float:
        """Fraction of the memory ceiling."""
        return self.bytes_per_s / self.ceiling_bytes_per_s

    @property
    def flops_share(self) -> float:
        """Fraction of the arithmetic ceiling."""
        return self.flops_per_s / self.ceiling_flops_per_s

    @property
    def memory_bound(self) -> bool:
        """Whether memory bounds the work rather than arithmetic."""
        return self.bytes_share >= self.flops_share

    @property
    def share(self) -> float:
        """Fraction of the ceiling that bounds the work."""
        return max(self.bytes_share, self.flops_share)


def explain_bottleneck(point: RooflinePoint, kernels: list[KernelProfile]) -> str:
    """One to four sentences: what bounds the work, how near the bound is, and why not nearer."""
    head = _head(point)
    reasons = list(_reasons(point, kernels))[:MAX_REASONS]
    if point.share > TOO_GOOD:
        return f"{head}; more than the ceiling: is all of it done? `grade practice` checks it."
    if point.share >= NEAR and not reasons:
        return f"{head}, near the ceiling: only fewer bytes or operations would make it faster."
    if not reasons:
        reasons = [_no_reason(point)]
    return ". ".join([head, *(reason[0].upper() + reason[1:] for reason in reasons)]) + "."


def _head(point: RooflinePoint) -> str:
    if point.memory_bound:
        rate, ceiling, unit = point.bytes_per_s / 1e9, point.ceiling_bytes_per_s / 1e9, "GB/s"
        bound = "Memory-bound"
    else:
        rate, ceiling, unit = point.flops_per_s / 1e12, point.ceiling_flops_per_s / 1e12, "TFLOP/s"
        bound = "Compute-bound"
    return f"{bound}: {rate:,.4g} of {ceiling:,.4g} {unit} ({point.share:.0%})"


def _reasons(point: RooflinePoint, kernels: list[KernelProfile]) -> Iterator[str]:
    """Why the kernel is below its bound, the heaviest reason first."""
    launches = sum(kernel.launches for kernel in kernels)
    idle = 1 - point.time_us / point.elapsed_us if point.elapsed_us > 0 else 0.0
    if idle >= IDLE:
        yield (
            f"the GPU is idle {idle:.0%} of the time, between {launches:.3g} launches a call: "
            "launch less, or let the call be captured into a CUDA graph"
        )
    if point.share >= NEAR:
        return
    if point.share * point.time_us < TINY_US:
        yield (
            f"the work itself needs {point.share * point.time_us:.2g} µs, less than a launch "
            "takes: take a larger --case to see the kernel"
        )
        return
    if launches >= 2 and point.memory_bound:
        yield (
            f"{launches:.3g} launches a call may pass intermediate results through memory: "
            "fuse them"
        )
    if kernels:
        yield from _kernel_reasons(max(kernels, key=lambda kernel: kernel.share), point)


def _kernel_reasons(kernel: KernelProfile, point: RooflinePoint) -> Iterator[str]:
    """What is wrong with the kernel that takes the most time."""
    name = f"`{kernel.name[:60]}`"
    if kernel.waves is not None and kernel.waves < FEW_WAVES:
        yield f"{name} has blocks for only {kernel.waves:.0%} of the GPU: split the work finer"
    if kernel.local_bytes and kernel.local_instructions != 0:
        yield (
            f"{name} keeps {kernel.local_bytes} bytes a thread in local memory "
            f"({kernel.registers} registers): registers spill, or an array is indexed at run time"
        )
    if not point.memory_bound and point.unit == "tensor" and kernel.tensor_instructions == 0:
        yield f"{name} has no tensor-core instruction in its SASS"
    if kernel.occupancy is not None and kernel.occupancy < LOW_OCCUPANCY:
        yield (
            f"{name} fills {kernel.occupancy:.0%} of an SM's warps, bounded by its "
            f"{kernel.occupancy_bound}"
        )


def _no_reason(point: RooflinePoint) -> str:
    if point.memory_bound:
        return (
            "nothing stands out in its launch, so look at the loads in the SASS: are they wide, "
            "coalesced, and are enough of them under way at once?"
        )
    return (
        "nothing stands out in its launch, so look at the SASS: what stands between the "
        "multiply-adds, and does loading overlap with them?"
    )
