"""Is an output rounded in one direction? Rounding to nearest errs up as often as down.

The mean rounding error, in units of the last place, is near 0 over many elements that are rounded
to nearest, and half a unit where all are rounded toward zero, up or down. It can be told only where
the error that many elements may share (a sum's, a narrowed scalar's, that of equal weights rounded
to 16 bits) is small against the last place: for results of fp32 arithmetic that are stored in 16
bits.
"""

from __future__ import annotations

import torch

from grader.judge.correctness.error_bound import ErrorBound, least_number

SAMPLE_ELEMENTS = 1 << 16
"""Elements looked at, evenly spaced over the output."""
MIN_DISTINCT_ELEMENTS = 512
"""Different values among them, below which a mean says little: equal values have equal errors."""
SHARED_ERROR_ULP = 0.25
"""Elements whose shared error may be larger are left out."""
MAX_BIAS_ULP = 0.3
"""Largest mean error. With `MIN_DISTINCT_ELEMENTS`, rounding to nearest has a standard deviation of
0.013, to which `SHARED_ERROR_ULP` adds at worst."""

Values = dict[str, torch.Tensor]


def rounding_bias(out: torch.Tensor, truth: torch.Tensor, bound: ErrorBound) -> Values:
    """Mean errors of an output's different values against the float64 reference, 0-dimensional:
    ``bias up`` and ``bias outward`` in units of the last place, and ``bias elements``, how many.

    Empty where rounding cannot be told: in outputs as precise as the arithmetic, and for bfloat16
    on a CPU, to which Triton's interpreter truncates (3.9, seen here).
    """
    if out.element_size() != 2 or (out.dtype == torch.bfloat16 and out.device.type == "cpu"):
        return {}
    return _biases(out, truth, bound)


def _biases(out: torch.Tensor, truth: torch.Tensor, bound: ErrorBound) -> Values:
    step = max(1, out.numel() // SAMPLE_ELEMENTS)
    got, exact, magnitude = (t.reshape(-1)[::step].double() for t in (out, truth, bound.magnitude))
    info = torch.finfo(out.dtype)
    exponent = torch.frexp(exact).exponent
    ulp = torch.ldexp(torch.full_like(exact, info.eps / 2), exponent).clamp_(
        min=info.tiny * info.eps
    )
    decidable = magnitude.abs() * bound.shared <= SHARED_ERROR_ULP * ulp
    decidable &= torch.isfinite(got) & torch.isfinite(exact)
    # Smaller numbers may be flushed to zero, which is down by many units.
    decidable &= exact.abs() >= 2 * least_number(out.dtype)
    wanted, error = exact[decidable], ((got - exact) / ulp)[decidable]
    # Equal values have equal errors, and count once.
    distinct, which = torch.unique(wanted.float(), return_inverse=True)
    zeros = torch.zeros(len(distinct), dtype=torch.float64, device=out.device)
    often = zeros.index_add(0, which, torch.ones_like(error))
    up = zeros.index_add(0, which, error) / often
    return {
        "bias elements": torch.tensor(len(distinct), device=out.device),
        "bias up": up.mean(),
        "bias outward": (up * distinct.sign()).mean(),
    }


def bias_used(values: dict[str, float]) -> float:
    """The larger bias of `rounding_bias`, fetched, as a share of `MAX_BIAS_ULP`; 0 if untold."""
    if values.get("bias elements", 0) < MIN_DISTINCT_ELEMENTS:
        return 0.0
    return max(abs(values["bias up"]), abs(values["bias outward"])) / MAX_BIAS_ULP


def bias_in_words(values: dict[str, float]) -> str | None:
    """The direction, such as ``toward zero (by 0.50 units in the last place on average)``; None if
    rounding has none."""
    if bias_used(values) <= 1:
        return None
    up, outward = values["bias up"], values["bias outward"]
    if abs(up) > abs(outward):
        direction, size = ("up" if up > 0 else "down"), abs(up)
    else:
        direction, size = ("away from zero" if outward > 0 else "toward zero"), abs(outward)
    return f"{direction} (by {size:.2f} units in the last place on average)"
