"""The checks of FlashInfer-Trace and SOL-ExecBench, which compare in float32 as the sets do."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MatchLimits:
    """What a workload asks."""

    max_atol: float
    max_rtol: float
    required_matched_ratio: float
    max_error_cap: float | None = None
    allow_negative_inf: bool = False


def flashinfer_fault(
    output: torch.Tensor, expected: torch.Tensor, tolerance: MatchLimits
) -> str | None:
    """FlashInfer-Trace: an element is wrong if its absolute and its relative error are too large.

    An infinity or NaN is wrong everywhere.
    """
    got, want = output.float(), expected.float()
    if not bool(torch.isfinite(got).all()):
        return "it has infinities or NaN"
    error = (got - want).abs()
    wrong = (error > tolerance.max_atol) & (error / (want.abs() + 1e-8) > tolerance.max_rtol)
    return _too_many(wrong | ~torch.isfinite(error), error, tolerance, "and")


def sol_fault(output: torch.Tensor, expected: torch.Tensor, tolerance: MatchLimits) -> str | None:
    """SOL-ExecBench: an element is wrong if its error exceeds ``atol + rtol * |expected|``.

    No error may exceed the cap, if there is one. An infinity or NaN is wrong, except, if the
    workload allows it, minus infinity where it is expected. Zeros are wrong where something else
    is expected.
    """
    got, want = output.float(), expected.float()
    if tolerance.allow_negative_inf:
        counted = (got != -torch.inf) | (want != -torch.inf)
        got, want = got[counted], want[counted]
    if not bool((torch.isfinite(got) & torch.isfinite(want)).all()):
        return "it has infinities or NaN"
    if bool((want != 0).any()) and not bool((got != 0).any()):
        return "all of it is zero"
    error = (got - want).abs()
    wrong = error > tolerance.max_atol + tolerance.max_rtol * want.abs()
    if fault := _too_many(wrong | ~torch.isfinite(error), error, tolerance, "+"):
        return fault
    cap = tolerance.max_error_cap
    if cap is not None and error.numel() and float(error.max()) > cap:
        return f"the largest error is {float(error.max()):.3g}, above the cap of {cap:g}"
    return None


def _too_many(
    wrong: torch.Tensor, error: torch.Tensor, tolerance: MatchLimits, word: str
) -> str | None:
    if not error.numel():
        return None
    count = int(wrong.sum())
    if 1.0 - count / error.numel() >= tolerance.required_matched_ratio:
        return None
    may = 1.0 - tolerance.required_matched_ratio
    return (
        f"{count / error.numel():.3%} of it exceed atol {tolerance.max_atol:g} {word} rtol "
        f"{tolerance.max_rtol:g}, and {may:.3g} of it may; the largest error is "
        f"{float(error.max()):.3g}"
    )
