"""How far off may an honest algorithm be? The bound of rounding-error analysis, element by element.

An output element is a sum of terms, computed in a stated precision of unit roundoff u. Whatever the
order of the sum, the error is at most γ(n)·M, where n is the number of terms and M the sum of their
absolute values: N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed. (2002),
lemma 3.1 and section 4.2. For many terms γ(n) grows far beyond what any order does, so from
`DETERMINISTIC_TERMS` on the probabilistic constant takes its place: N. J. Higham and T. Mary, "A
New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41 (2019), theorem 2.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grader.problem.spec import Case
from grader.problem.validation import Accumulation

if TYPE_CHECKING:
    from grader.judge.problem_code import ProblemCode, Values

DETERMINISTIC_TERMS = 1024
"""Terms up to which the deterministic bound holds: a sum of equal terms, whose rounding errors all
have one sign, may then use all of it."""
CONFIDENCE = 4.0
"""λ of the probabilistic bound. The errors of a sequential sum of n random terms have a standard
deviation of about u·√n/3, a twelfth of the bound."""

UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "fp8_e4m3": 2.0**-4,
    "fp8_e5m2": 2.0**-3,
}
"""Largest relative error of rounding to nearest, by dtype."""
_KEEP_SUBNORMALS = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class ErrorBound:
    """The error that each element of one output may have, besides the rounding of the output."""

    relative: float
    """Relative to `magnitude`."""
    magnitude: Any
    """As large as the sum of the terms' absolute values, of either sign; float64 in the output's
    shape, a list for a list."""
    shared: float
    """The error that many elements may have in common, relative to `magnitude`: as `relative`, with
    the probabilistic bound of the sum."""
    words: str
    """What it allows, such as ``rounding in fp32 over 1025 terms``."""

    def allowed(self, expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The largest error of each element, float64 in the shape of `expected`, which is the
        reference rounded to `dtype`, the output's: the bound, plus a unit in the last place for
        rounding the output in any direction, plus the smallest number that hardware does not flush
        to zero."""
        allowed = linear_bound(self.magnitude, self.relative, least_number(dtype))
        return allowed.add_(expected.abs(), alpha=torch.finfo(dtype).eps)


def linear_bound(size: torch.Tensor, relative: float, least: float) -> torch.Tensor:
    """``least + relative·|size|`` of float64 elements. Memory limits a check on a GPU, so it is
    read and written no oftener than PyTorch needs."""
    allowed = size.abs()
    return torch.add(torch.tensor(least, dtype=torch.float64), allowed, alpha=relative, out=allowed)


def error_bounds(
    code: ProblemCode, case: Case, inputs: Values, truth: Values, calls: int = 1
) -> dict[str, ErrorBound]:
    """The bound of each floating-point output of one call, by name; empty if the problem does not
    say how it accumulates.

    `inputs` and `truth` are a call's inputs and the float64 reference's outputs. After a number of
    consecutive calls, each may have added an error as large.
    """
    how = code.problem.accumulation(case)
    if how is None:
        return {}
    magnitude = code.magnitude(case, inputs, truth)
    floating = [a for a in code.written if code.problem.dtype(a, case) in UNIT_ROUNDOFF]
    return {a.name: error_bound(how, magnitude[a.name], calls) for a in floating}


def sum_constant(terms: int, unit: float) -> float:
    """Bound of the error of a sum of `terms` terms in any order, relative to the sum of their
    absolute values: γ(n) = n·u / (1 - n·u), or for more than `DETERMINISTIC_TERMS` the larger of
    its value there and exp(λ·√n·u + n·u² / (1 - u)) - 1; at most 1, beyond which it says nothing.
    """
    if terms <= DETERMINISTIC_TERMS:
        return _gamma(terms, unit)
    least = _gamma(DETERMINISTIC_TERMS, unit)
    return min(_gamma(terms, unit), max(least, _probabilistic(terms, unit)))


def error_bound(how: Accumulation, magnitude: Any, calls: int = 1) -> ErrorBound:
    """The bound for one output after a number of consecutive calls, each of which may add an error
    as large. `how` the problem accumulates; `magnitude` as in `ErrorBound`."""
    unit = UNIT_ROUNDOFF[how.dtype]
    operands = UNIT_ROUNDOFF[how.operands] if how.operands else 0.0
    summed = sum_constant(how.terms, unit)
    others = how.roundings * unit + operands
    shared = min(summed, _probabilistic(how.terms, unit)) + others
    words = f"rounding in {how.dtype}"
    if how.terms > 1:
        words += f" over {how.terms:,} terms, in any order"
    if how.operands:
        words += f", of factors in {how.operands}"
    return ErrorBound(calls * (summed + others), magnitude, calls * shared, words)


def least_number(dtype: torch.dtype) -> float:
    """The smallest number that hardware does not flush to zero: the smallest normal one, or for
    float16 and the 8-bit formats the smallest subnormal."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype in _KEEP_SUBNORMALS else info.tiny


def _probabilistic(terms: int, unit: float) -> float:
    exponent = CONFIDENCE * math.sqrt(terms) * unit + terms * unit**2 / (1 - unit)
    return math.expm1(min(exponent, math.log(2)))


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit) if terms * unit < 0.5 else 1.0
