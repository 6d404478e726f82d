"""Is an output correct? Every check that it must pass; an elementwise bound is only one of them.

In order: every element was written; NaN and infinity are where the reference has them; elementwise
bound; relative L2 error of the whole output and of its worst row, column or tile; error budget,
the larger of what rounding explains and a multiple of PyTorch's own error; no rounding in one
direction. All arithmetic is in float64 on the judge's device, on private copies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from grader.judge.correctness.error_bound import ErrorBound, least_number, linear_bound
from grader.judge.correctness.likely_cause import coarse_format, likely_cause
from grader.judge.correctness.rounding import bias_in_words, bias_used, rounding_bias
from grader.judge.memory.shared_block import bits, poison_of
from grader.judge.pieces import MOST_ELEMENTS, pieces
from grader.judge.problem_code import ProblemCode, Values
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Tolerance
from grader.report import Mismatch, one_line

MIN_SLICE_ELEMENTS = 32
"""Rows, columns and tiles with fewer elements are left to the elementwise bound, and so is a whole
output whose problem states how it accumulates: a sum that cancels by chance has a large relative
error."""
TILE = 64
"""Side of a tile, in elements."""
MIN_NORM_SHARE = 1e-3
"""A slice's relative error is taken relative to at least this share of the RMS of all slices'
reference norms, so that a nearly empty slice does not dominate."""
KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of outputs that the Triton kernels of the check take."""
LEAST = math.ulp(0.0)
"""The smallest positive number, in place of an allowed error of 0, by which none can be divided."""


@dataclass(frozen=True)
class CheckResult:
    """Result of checking one output, or several combined. Errors are None where nothing could be
    subtracted: unwritten, NaN or infinite outputs."""

    failure: str | None = None
    """The check that failed, in words; None when all passed."""
    max_abs_err: float | None = None
    rel_l2: float | None = None
    worst_slice_rel_l2: float | None = None
    budget_used: float | None = None
    """Error divided by its budget; at most 1 to pass."""
    used: float = 0.0
    """The largest share of any bound; at most 1 to pass, infinite for NaN and what was never
    written."""
    mismatch: Mismatch | None = None


def tolerance_of(problem: Problem, argument: Argument, case: Case) -> Tolerance:
    """The bounds for an output in one case. An output without tolerances must be exact."""
    if argument.name in case.tolerances:
        return case.tolerances[argument.name]
    exact = Tolerance(atol=0, rtol=0, rel_l2=1e-300, budget=1)
    tolerances = problem.spec.tolerances | argument.tolerances | case.tolerances
    return tolerances.get(problem.dtype(argument, case), exact)


def check(
    name: str,
    out: Any,
    truth: Any,
    eager: Any,
    tolerance: Tolerance,
    initial: Any = None,
    bound: ErrorBound | None = None,
    explained: bool = True,
) -> CheckResult:
    """Compare one output, a tensor or a list of tensors, with the float64 reference `truth`.

    The error budget follows from `eager`, PyTorch's output at the inputs' own dtype, and from
    `bound`; the larger of the two holds, and neither given means no budget. `initial` is the value
    of an `inout` argument before the call: relative errors are then relative to the change, and the
    relative L2 error may be larger where a unit in the last place of the new value is. A list of
    tensors is checked as one concatenated vector. Unless `explained`, of what is beyond a bound
    only how far is said: to explain it takes five times as long.
    """
    offsets = None
    if isinstance(out, list):
        offsets = _offsets(out)
        out, truth, eager, initial = map(_join, (out, truth, eager, initial))
        if bound is not None:
            bound = replace(bound, magnitude=_join(bound.magnitude))
    return _check(name, out, truth, eager, initial, tolerance, bound, offsets, explained)


@dataclass(frozen=True)
class ExpectedOutputs:
    """What the outputs of one call are held against, by name."""

    truth: Values
    """By the float64 reference."""
    initial: Values
    """The inputs, with the `inout` arguments as they were before the call."""
    eager: Values = field(default_factory=dict)
    """By PyTorch; empty without a budget."""
    bounds: Mapping[str, ErrorBound] = field(default_factory=dict)
    """Of rounding errors."""


def compare_outputs(
    code: ProblemCode,
    case: Case,
    outputs: Values,
    expected: ExpectedOutputs,
    explained: bool = True,
) -> list[CheckResult]:
    """Compare the outputs that have one right value with the reference, as `check_outputs` does."""
    return [
        check(
            argument.name,
            outputs[argument.name],
            expected.truth[argument.name],
            expected.eager.get(argument.name),
            tolerance_of(code.problem, argument, case),
            expected.initial[argument.name] if argument.role == "inout" else None,
            expected.bounds.get(argument.name),
            explained,
        )
        for argument in code.written
        if argument.unique and not is_left_out(argument, outputs[argument.name])
    ]


def check_outputs(
    code: ProblemCode,
    case: Case,
    outputs: Values,
    expected: ExpectedOutputs,
    explained: bool = True,
) -> CheckResult:
    """Check every output of one call; `outputs` as submitted, by name. `explained` is that of
    `check`."""
    results = compare_outputs(code, case, outputs, expected, explained)
    residuals = check_residuals(code, case, outputs, expected.initial)
    compared, judged = (all(one.failure is None for one in some) for some in (results, residuals))
    if judged and not compared and code.is_incomparable(case, expected.initial, expected.truth):
        results, compared = [], True
    code.note_gates(case, compared, judged)
    return combine_results(results + residuals)


def check_residuals(
    code: ProblemCode, case: Case, outputs: Values, inputs: Values
) -> list[CheckResult]:
    """Check the outputs of a call that have several right values, by the problem's `residuals()`;
    empty where all are unique."""
    if not code.has_residuals:
        return []
    for argument in code.written:
        if not argument.unique and (count := count_unwritten(outputs[argument.name])):
            failure = f"{count} elements of '{argument.name}' were never written"
            return [CheckResult(failure, used=math.inf)]
    shares = code.residuals(case, inputs, outputs)
    known = {words: math.inf if math.isnan(share) else share for words, share in shares.items()}
    words = max(known, key=lambda name: known[name])
    used = known[words]
    far = words if math.isinf(used) else f"{words}: {used:.3g} times what is allowed"
    return [CheckResult(far if used > 1 else None, used=used)]


def combine_results(results: list[CheckResult]) -> CheckResult:
    """One result for several outputs of a call: the first failure, and the largest errors. The
    mismatch names the other outputs that fail."""
    failed = next((r for r in results if r.failure is not None), None)
    others = [one_line(r.failure) for r in results if r.failure is not None and r is not failed]
    mismatch = failed.mismatch if failed else None
    if mismatch is not None and others:
        mismatch = mismatch.model_copy(update={"others": [*mismatch.others, *others]})
    return CheckResult(
        failure=failed.failure if failed else None,
        max_abs_err=_max_known(r.max_abs_err for r in results),
        rel_l2=_max_known(r.rel_l2 for r in results),
        worst_slice_rel_l2=_max_known(r.worst_slice_rel_l2 for r in results),
        budget_used=_max_known(r.budget_used for r in results),
        used=max((r.used for r in results), default=0.0),
        mismatch=mismatch,
    )


def count_unwritten(out: Any) -> int:
    """Number of elements of an output, a tensor or a list of them, that still hold the poison.

    Always 0 for integers and 8-bit floating-point numbers, whose poison is a valid value.
    """
    if isinstance(out, list):
        return sum(map(count_unwritten, out))
    if not (out.is_floating_point() or out.dtype is torch.bool):
        return 0
    return sum(int(_is_poison(piece).sum()) for (piece,) in pieces(out))


def is_left_out(argument: Argument, out: Any) -> bool:
    """Whether a submission has left an output that it need not write as it was."""
    return argument.optional and count_unwritten(out) == out.numel()


def errors_beyond_mixed_inputs(
    out: Any, right: Any, stale: Any, tolerance: Tolerance, initial: Any = None
) -> int:
    """Number of wrong elements that mixed inputs cannot explain; 0 if they may explain all.

    The inputs were replaced while the call may already have been reading, so it may have read the
    new ones, the stale ones, or some of each. `right` and `stale` are eager PyTorch's outputs for
    the two. Where both agree, the output must be within `tolerance`. An element can agree by chance
    and still be off for a mixture, so as many wrong elements are allowed as the two outputs differ
    in. This is evidence, not proof: of sorted or few distinct values, a mixture can change more.

    A list of tensors counts as one concatenated vector; `initial` is the value of an `inout`
    argument before the call.
    """
    if isinstance(out, list):
        out, right, stale, initial = map(_join, (out, right, stale, initial))
    right, stale = right.to(out.dtype), stale.to(out.dtype)  # eager may give another dtype
    out, right, stale = map(widened, (out, right, stale))
    same = (right == stale) | ((right != right) & (stale != stale))
    wrong = out != right
    if out.is_floating_point():
        exact = right.double()
        change = exact if initial is None else exact - _finite(initial)
        near = (out - exact).abs() <= change.abs().mul_(tolerance.rtol).add_(tolerance.atol)
        near &= torch.isfinite(exact)  # an infinite bound would allow anything
        wrong &= ~near & ~(torch.isnan(out) & torch.isnan(right))
    counts = _fetch({"off": (wrong & same).sum(), "differ": (~same).sum()})
    return int(counts["off"]) if counts["off"] > counts["differ"] else 0


def _is_poison(out: torch.Tensor) -> torch.Tensor:
    """Elements that were never written, bool; compared bit by bit, since the poison is a NaN, and
    no bool. None where it is a valid value."""
    if out.element_size() == 1 and out.dtype is not torch.bool:
        return torch.zeros_like(out, dtype=torch.bool)
    return bits(out.contiguous()) == poison_of(out)


def _finite(initial: torch.Tensor) -> torch.Tensor:
    """The state before the call, with 0 where it is NaN or infinite, as in what a cache does not
    use yet: the change of such an element is its new value."""
    values = widened(initial)
    return torch.where(torch.isfinite(values), values, 0.0)


def widened(values: torch.Tensor) -> torch.Tensor:
    """8-bit floating-point numbers in float32, since PyTorch does not compute with them; others as
    they are."""
    is_narrow = values.is_floating_point() and values.element_size() == 1
    return values.float() if is_narrow else values


def _max_known(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some rows of an output, beside what they are compared with, all vectors of one size."""

    columns: int
    """Elements of a row."""
    stored: torch.Tensor
    truth: torch.Tensor
    eager: torch.Tensor | None
    initial: torch.Tensor | None
    bound: ErrorBound | None
    tolerance: Tolerance
    has_special: bool
    """Whether the output has NaN or infinities, in the places where the reference has them."""

    @cached_property
    def out(self) -> torch.Tensor:
        return widened(self.stored)

    @cached_property
    def expected(self) -> torch.Tensor:
        """The reference, rounded to the output's dtype."""
        return widened(self.truth.to(self.stored.dtype))

    @property
    def fits_kernel(self) -> bool:
        """Whether `measure_kernel` can measure it, and in less time: most outputs on a GPU. Not a
        state, which is held against its change, one with NaN or infinities, or one so narrow or
        low that most of its tiles would be empty."""
        rows = -(-self.stored.numel() // self.columns)
        tiles = -(-rows // TILE) * -(-self.columns // TILE)
        narrow = [self.stored, *([self.eager] if self.eager is not None else [])]
        return (
            self.stored.is_cuda
            and all(tensor.dtype in KERNEL_DTYPES for tensor in narrow)
            and self.truth.dtype in (torch.float64, *KERNEL_DTYPES)
            and (self.bound is None or self.bound.magnitude.dtype is torch.float64)
            and self.initial is None
            and not self.has_special
            and 0 < tiles * TILE**2 <= 2 * self.stored.numel()
        )

    def where_finite(self, values: torch.Tensor) -> torch.Tensor:
        """Values, with 0 where the reference is not finite."""
        if not self.has_special:
            return values
        return torch.where(torch.isfinite(self.expected), values, 0.0)

    # Mixed dtypes are promoted within one operation; converting first would double the traffic.

    @cached_property
    def exact(self) -> torch.Tensor:
        return self.where_finite(self.truth.double())

    @cached_property
    def error(self) -> torch.Tensor:
        """With its sign, as every share of it: norms need no magnitudes."""
        return self.where_finite(self.out - self.exact)

    @cached_property
    def change(self) -> torch.Tensor:
        """What the reference changed of a state; of other outputs, all."""
        if self.initial is None:
            return self.exact
        return self.where_finite(self.exact - _finite(self.initial))

    def share(self) -> torch.Tensor:
        """Each error divided by the elementwise bound."""
        least = max(self.tolerance.atol, LEAST)
        return torch.div(self.error, linear_bound(self.change, self.tolerance.rtol, least))

    def share_of_bound(self) -> torch.Tensor:
        """Each error divided by what rounding may explain."""
        assert self.bound is not None
        allowed = self.bound.allowed(self.expected, self.stored.dtype)
        # Not a number where the magnitude is none.
        return torch.div(self.error, allowed, out=allowed).nan_to_num_(
            nan=0.0, posinf=math.inf, neginf=-math.inf
        )

    def scale(self) -> torch.Tensor:
        """What relative L2 errors are relative to."""
        if self.initial is None:
            return self.change
        # The change of a state may be as small as the rounding of the state.
        eps = torch.finfo(self.stored.dtype).eps
        rounding = self.expected.double() * (eps / self.tolerance.rel_l2)
        return torch.hypot(self.change, self.where_finite(rounding))


@dataclass
class _Comparison:
    """One output beside what it is compared with, all of one shape.

    It is compared piece by piece, since what is computed of a piece takes ten times the memory of
    its outputs. A piece has whole bands of `TILE` rows, so that no slice but a column is cut."""

    stored: torch.Tensor
    truth: torch.Tensor
    eager: torch.Tensor | None
    initial: torch.Tensor | None
    bound: ErrorBound | None
    tolerance: Tolerance
    has_special: bool = False
    _only: _Piece | None = field(default=None, init=False)

    @property
    def columns(self) -> int:
        """Elements of a row, at least 1. A vector is cut into rows of TILE² elements."""
        return max(1, self.stored.shape[-1]) if self.stored.dim() > 1 else TILE * TILE

    def pieces(self) -> Iterator[_Piece]:
        """All of it, in order. An only piece keeps what is computed of it."""
        if self._only is not None and self._only.has_special == self.has_special:
            yield self._only
            return
        for piece in self._cut():
            if piece.stored.numel() == self.stored.numel():
                self._only = piece
            yield piece

    def _cut(self) -> Iterator[_Piece]:
        band = TILE * self.columns
        elements = band * max(1, MOST_ELEMENTS // band)
        magnitude = self.bound.magnitude if self.bound is not None else None
        optional = [self.eager, self.initial, magnitude]
        given = [tensor for tensor in optional if tensor is not None]
        for stored, truth, *others in pieces(self.stored, self.truth, *given, elements=elements):
            rest = iter(others)
            eager, initial, part = (next(rest) if t is not None else None for t in optional)
            bound = self.bound and replace(self.bound, magnitude=part)
            yield _Piece(
                columns=self.columns,
                stored=stored,
                truth=truth,
                eager=eager,
                initial=initial,
                bound=bound,
                tolerance=self.tolerance,
                has_special=self.has_special,
            )

    def where(self, condition: Callable[[_Piece], torch.Tensor]) -> torch.Tensor:
        """The elements for which a condition holds, bool in the shape of the output."""
        return torch.cat([condition(piece) for piece in self.pieces()]).view(self.stored.shape)


def _check(
    name: str,
    out: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor | None,
    initial: torch.Tensor | None,
    tolerance: Tolerance,
    bound: ErrorBound | None,
    offsets: list[int] | None,
    explained: bool,
) -> CheckResult:
    if not out.is_floating_point():
        return _check_exact(name, out, truth, offsets)
    whole = _Comparison(out, truth, eager, initial, bound, tolerance)
    # A NaN or infinity anywhere makes the largest magnitude one.
    first = _fetch(_combined(list(map(_first_look, whole.pieces()))))
    if first["blank"]:
        blank = whole.where(lambda piece: _is_poison(piece.stored))
        return _never_written(name, out, truth, blank, offsets)
    if not (math.isfinite(first["out"]) and math.isfinite(first["expected"])):
        special = whole.where(_differs_where_special)
        if bool(special.any()):
            return CheckResult(
                f"NaN or infinity in '{name}' differs from the reference in "
                f"{_count(special)} elements",
                used=math.inf,
                mismatch=_mismatch(name, out, truth, special, offsets, rounded=True),
            )
        whole.has_special = True

    found, sums = [], _SliceSums(whole.columns, out.dim())
    for piece in whole.pieces():
        found.append(_measures(piece, sums))
    pending = _combined(found)
    slices = sums.worst(out.numel())
    for i, worst in enumerate(slices):
        pending |= {f"slice {i}": worst.rel_l2, f"index {i}": worst.index}
    if bound is not None:
        pending |= rounding_bias(out, truth, bound)
    values = _fetch(pending)

    rel_l2 = _ratio(values["error"], values["change"])
    slice_rel_l2, slice_name = max(
        ((values[f"slice {i}"], s.name(int(values[f"index {i}"]))) for i, s in enumerate(slices)),
        default=(None, None),
    )
    budgets = []
    if bound is not None:
        budgets.append((values["bound"], bound.words))
    if eager is not None:
        used = _budget_used(values, out.numel(), out.dtype, tolerance.budget)
        words = f"{tolerance.budget:g} times eager PyTorch's error at {_short(out.dtype)}"
        budgets.append((used, words))
    budget, budget_words = min(budgets, default=(None, ""))
    shares = {"element": values["share"], "budget": budget or 0.0, "slice": 0.0, "whole": 0.0}
    if bound is None or out.numel() >= MIN_SLICE_ELEMENTS:
        shares["whole"] = rel_l2 / tolerance.rel_l2
    if slice_rel_l2 is not None:
        shares["slice"] = slice_rel_l2 / tolerance.rel_l2

    failure, wrong = None, None
    if shares["element"] > 1:
        allowed = f"the tolerance {tolerance.atol:g} + {tolerance.rtol:g}·|expected|"
        failure = f"'{name}' is off by up to {values['share']:.3g} times {allowed}"
        if explained:
            wrong = whole.where(lambda piece: piece.share().abs() > 1)
            of_all = f"{_count(wrong)} of {out.numel()} elements of '{name}'"
            failure = f"{of_all} are off by more than {allowed}"
    elif shares["whole"] > 1:
        failure = f"relative L2 error of '{name}' is {rel_l2:.2e}, above {tolerance.rel_l2:.0e}"
    elif shares["slice"] > 1:
        failure = (
            f"relative L2 error of '{name}' in {slice_name} is {slice_rel_l2:.2e}, "
            f"above {tolerance.rel_l2:.0e}"
        )
    elif shares["budget"] > 1:
        if bound is not None and explained:
            wrong = whole.where(lambda piece: piece.share_of_bound().abs() > 1)
        failure = (
            f"'{name}' is off by up to {values['largest']:.2g}, {budget:.2g} times its error "
            f"budget ({budget_words})"
        )
    elif bound is not None and (direction := bias_in_words(values)) is not None:
        failure = f"'{name}' is rounded {direction}, where rounding to nearest has no direction"
    mismatch = None
    if failure is not None and explained:
        if wrong is None:
            wrong = whole.where(lambda piece: piece.error.abs() == values["largest"])
        failure += f"; {_worst_element(whole, wrong)}"
        cause = likely_cause(out, truth, initial, wrong)
        failure += f"; {cause}?" if cause else ""
        mismatch = _mismatch(name, out, truth, wrong, offsets, slice_name, rounded=True)
        looks_like = coarse_format(out, truth, initial)
        mismatch = mismatch.model_copy(update={"looks_like": looks_like})
    return CheckResult(
        failure,
        max_abs_err=values["largest"],
        rel_l2=rel_l2,
        worst_slice_rel_l2=slice_rel_l2,
        budget_used=budget,
        used=max(*shares.values(), bias_used(values)),
        mismatch=mismatch,
    )


def _first_look(piece: _Piece) -> dict[str, torch.Tensor]:
    return {
        "blank": _is_poison(piece.stored).any(),
        "out": _largest(piece.out),
        "expected": _largest(piece.expected),
    }


def _measures(piece: _Piece, sums: _SliceSums) -> dict[str, torch.Tensor]:
    """What is measured of a piece, 0-dimensional. Adds its slices to `sums`."""
    if piece.fits_kernel:
        return _measured_at_once(piece, sums)
    found = {
        "share": _largest(piece.share()),
        "error": _norm(piece.error),
        "largest": _largest(piece.error),
    }
    scale = piece.scale()
    found["change"] = _norm(scale)
    sums.add(piece.error, scale)
    if piece.eager is not None:
        own_error = piece.where_finite(widened(piece.eager) - piece.exact)
        found |= _budget_inputs(own_error, piece.exact)
    if piece.bound is not None:
        found["bound"] = _largest(piece.share_of_bound())
    return found


def _measured_at_once(piece: _Piece, sums: _SliceSums) -> dict[str, torch.Tensor]:
    """The same by a kernel that reads everything once."""
    from grader.judge.correctness.measure_kernel import Allowed, measure

    bound, dtype = piece.bound, piece.stored.dtype
    allowed = Allowed(
        atol=max(piece.tolerance.atol, LEAST),
        rtol=piece.tolerance.rtol,
        least=least_number(dtype),
        relative=bound.relative if bound is not None else 0.0,
        eps=torch.finfo(dtype).eps,
    )
    magnitude = bound.magnitude if bound is not None else None
    made = measure(piece.stored, piece.truth, piece.eager, magnitude, allowed, piece.columns, TILE)
    sums.add_sums(made.rows, made.bands)
    found = made.found | {"change": made.found["exact"]}
    left_out = set() if piece.eager is not None else {*_BUDGET_INPUTS}
    left_out |= set() if bound is not None else {"bound"}
    return {name: value for name, value in found.items() if name not in left_out}


_NORMS = ("error", "change", "eager error", "exact")
"""Measures that are L2 norms. `exact sum` is a sum, and all others are maxima."""


def _combined(found: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What was measured of all pieces of an output, as of the whole."""
    if len(found) == 1:
        return found[0]
    return {name: _combine(name, [one[name].double() for one in found]) for name in found[0]}


def _combine(name: str, values: list[torch.Tensor]) -> torch.Tensor:
    every = torch.stack(values)
    if name in _NORMS:
        return _norm(every)
    return every.sum() if name == "exact sum" else every.max()


def _worst_element(whole: _Comparison, wrong: torch.Tensor) -> str:
    """``the worst is 0.5 instead of 0.25``, with enough digits to tell them apart; of the elements
    that are `wrong`, bool, since a larger error elsewhere may be allowed."""
    largest, got, wanted = -1.0, 0.0, 0.0
    start, flat = 0, wrong.reshape(-1)
    for piece in whole.pieces():
        is_wrong = flat[start : start + len(piece.error)]
        start += len(is_wrong)
        errors = torch.where(is_wrong, piece.error.abs(), -1.0)
        index = int(errors.argmax())
        if (error := float(errors[index])) > largest:
            largest, got, wanted = error, float(piece.out[index]), float(piece.exact[index])
    digits = 4 if abs(got - wanted) > 1e-3 * abs(wanted) else 9
    return f"the worst is {got:.{digits}g} instead of {wanted:.{digits}g}"


def _never_written(
    name: str,
    out: torch.Tensor,
    truth: torch.Tensor,
    blank: torch.Tensor,
    offsets: list[int] | None,
) -> CheckResult:
    count = _count(blank)
    which = f"{count} of {out.numel()} elements of '{name}' were"
    return CheckResult(
        f"{which} never written" if count < out.numel() else f"'{name}' was never written",
        used=math.inf,
        mismatch=_mismatch(name, out, truth, blank, offsets),
    )


def _check_exact(
    name: str, out: torch.Tensor, truth: torch.Tensor, offsets: list[int] | None
) -> CheckResult:
    if out.dtype is torch.bool and bool((blank := _is_poison(out)).any()):
        return _never_written(name, out, truth, blank, offsets)
    wrong = out != truth.to(out.dtype)
    if not bool(wrong.any()):
        return CheckResult(None, 0.0, 0.0, 0.0)
    found = [_exact_measures(*pair) for pair in pieces(out, truth)]
    values = _fetch(_combined(found))
    return CheckResult(
        f"{_count(wrong)} of {out.numel()} elements of '{name}' are wrong",
        used=math.inf,
        max_abs_err=values["largest"],
        rel_l2=_ratio(values["error"], values["exact"]),
        mismatch=_mismatch(name, out, truth, wrong, offsets),
    )


def _exact_measures(out: torch.Tensor, truth: torch.Tensor) -> dict[str, torch.Tensor]:
    exact = truth.double()
    error = out.double() - exact
    return {"largest": error.abs().max(), "error": _norm(error), "exact": _norm(exact)}


def _differs_where_special(piece: _Piece) -> torch.Tensor:
    """Elements whose NaN, +inf or -inf differs from the expected output, bool."""
    out, expected = piece.out, piece.expected
    differs = torch.isnan(out) != torch.isnan(expected)
    infinite = torch.isinf(out) | torch.isinf(expected)
    differs |= infinite & (out != expected)
    return differs


def _fetch(pending: dict[str, torch.Tensor]) -> dict[str, float]:
    """The values of 0-dimensional tensors, with one synchronisation: each may take a millisecond
    while other processes use the device too."""
    values = torch.stack([value.double() for value in pending.values()]).tolist()
    return dict(zip(pending, values, strict=True))


def _ratio(error: float, reference: float) -> float:
    """Quotient of two norms; 0 when both are zero, infinite when only the reference is."""
    if reference == 0:
        return 0.0 if error == 0 else math.inf
    return error / reference


@dataclass(frozen=True)
class _WorstSlice:
    """The worst row, column or tile."""

    rel_l2: torch.Tensor
    """Its relative L2 error, float64 []."""
    index: torch.Tensor
    """Its index, int64 []."""
    name: Callable[[int], str]
    """Index → name for the reader, such as ``row 3``."""


class _SliceSums:
    """Sums of squares over rows, and over bands of rows, of the pieces of one output in order."""

    def __init__(self, columns: int, dimensions: int) -> None:
        """`columns` is the size of a row. Only outputs of several dimensions have columns and
        tiles."""
        self._columns = columns
        self._has_rows = columns >= MIN_SLICE_ELEMENTS
        self._has_bands = dimensions != 1
        self._rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._bands: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, error: torch.Tensor, reference: torch.Tensor) -> None:
        """Add a piece, which begins with a band: its errors, and what they are relative to."""
        error2 = _as_rows(error, self._columns).square()
        reference2 = _as_rows(reference, self._columns).square()
        if self._has_rows:
            self._rows.append((error2.sum(1), reference2.sum(1)))
        if self._has_bands:
            self._bands.append((_bands(error2), _bands(reference2)))

    def add_sums(
        self, rows: tuple[torch.Tensor, torch.Tensor], bands: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        """Add a piece of which the sums of squares over rows and bands are known."""
        if self._has_rows:
            self._rows.append(rows)
        if self._has_bands:
            self._bands.append(bands)

    def worst(self, count: int) -> list[_WorstSlice]:
        """The worst row, column and tile of the 2-D view of `count` elements, by relative L2 error.
        Slices of fewer than `MIN_SLICE_ELEMENTS` are left out."""
        columns, rows = self._columns, -(-count // self._columns)
        found: list[_WorstSlice] = []
        if rows > 1 and self._has_rows:
            last = count - (rows - 1) * columns
            found += _worst_of(*_joined(self._rows), last, "row {}".format)
        if not self._has_bands:
            return found
        error2, reference2 = _joined(self._bands)
        if columns > 1 and rows >= MIN_SLICE_ELEMENTS:
            found += _worst_of(error2.sum(0), reference2.sum(0), rows, "column {}".format)
        if min(rows, columns) > 1:
            across = -(-columns // TILE)
            last = ((rows - 1) % TILE + 1) * ((columns - 1) % TILE + 1)

            def tile(index: int) -> str:
                down, right = divmod(index, across)
                return f"the {TILE}×{TILE} tile at row {down * TILE}, column {right * TILE}"

            found += _worst_of(_tiles(error2), _tiles(reference2), last, tile)
        return found


def _joined(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    if len(pairs) == 1:
        return pairs[0]
    first, second = zip(*pairs, strict=True)
    return torch.cat(first), torch.cat(second)


def _worst_of(
    error2: torch.Tensor, reference2: torch.Tensor, last: int, name: Callable[[int], str]
) -> list[_WorstSlice]:
    """The worst slice with at least `MIN_SLICE_ELEMENTS`, in a list; empty when there is none.

    Only the last slice, of `last` elements, can be too small: a tile at one edge only still has a
    side of `TILE`.
    """
    typical = reference2.mean() * MIN_NORM_SHARE**2
    ratio = (error2 / torch.maximum(reference2, typical)).sqrt().nan_to_num(nan=0.0)
    if last < MIN_SLICE_ELEMENTS:
        ratio = ratio[:-1]
    if not len(ratio):
        return []
    rel_l2, index = ratio.max(0)
    return [_WorstSlice(rel_l2, index, name)]


def _as_rows(values: torch.Tensor, columns: int) -> torch.Tensor:
    flat = values.reshape(-1)
    missing = -flat.numel() % columns
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.view(-1, columns)


def _bands(squares: torch.Tensor) -> torch.Tensor:
    """Sums over each band of TILE rows, and over the remaining rows."""
    rows, columns = squares.shape
    whole = rows - rows % TILE
    bands = squares[:whole].view(-1, TILE, columns).sum(1)
    return bands if whole == rows else torch.cat([bands, squares[whole:].sum(0, keepdim=True)])


def _tiles(bands: torch.Tensor) -> torch.Tensor:
    """Sums over TILE×TILE tiles, flattened row-major, from the sums over bands of rows."""
    padded = torch.nn.functional.pad(bands, (0, -bands.shape[1] % TILE))
    return padded.view(-1, TILE).sum(1)


def _budget_inputs(eager_error: torch.Tensor, exact: torch.Tensor) -> dict[str, torch.Tensor]:
    """What `_budget_used` needs besides the norms of the error itself."""
    found = (
        _norm(eager_error),
        _largest(eager_error),
        _norm(exact),
        _norm(exact, 1),
        _largest(exact),
    )
    return dict(zip(_BUDGET_INPUTS, found, strict=True))


_BUDGET_INPUTS = ("eager error", "eager largest", "exact", "exact sum", "exact largest")


def _budget_used(
    values: dict[str, float], count: int, dtype: torch.dtype, multiple: float
) -> float:
    """The larger of RMS and maximum error, each divided by its budget.

    The budget is `multiple` times eager PyTorch's own error, plus one unit in the last place of the
    output, plus `least_number`.
    """
    if count == 0:
        return 0.0
    eps, least = torch.finfo(dtype).eps, least_number(dtype)
    root = math.sqrt(count)
    # RMS of u = |x|·eps + least, from the mean square of x and the mean of |x|; at least `least`.
    mean = values["exact sum"] / count
    rms = values["exact"] / root
    ulp_rms = math.sqrt((rms * eps) ** 2 + least * (2 * mean * eps + least))
    ulp_rms = max(ulp_rms, least)  # the square of `least` may underflow
    allowed_rms = multiple * values["eager error"] / root + ulp_rms
    allowed_max = multiple * values["eager largest"] + values["exact largest"] * eps + least
    return max(values["error"] / root / allowed_rms, values["largest"] / allowed_max)


def _norm(values: torch.Tensor, order: float = 2) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, order)
    return norm


def _largest(values: torch.Tensor) -> torch.Tensor:
    """The largest magnitude; NaN if any element is, 0 for an empty tensor."""
    return _norm(values, math.inf) if values.numel() else values.new_zeros(())


def _mismatch(
    name: str,
    out: torch.Tensor,
    expected: torch.Tensor,
    wrong: torch.Tensor,
    offsets: list[int] | None,
    worst_slice: str | None = None,
    rounded: bool = False,
) -> Mismatch:
    """The report's picture of an output of which the elements `wrong`, bool, are wrong. With
    `rounded`, it is compared with `expected` in its own dtype."""

    def wanted(values: torch.Tensor) -> torch.Tensor:
        return values.to(out.dtype).double() if rounded else values.double()

    shape = tuple(out.shape)
    first = _first(wrong)
    argument, index = name, _unravel(first, shape)
    if offsets is not None:
        which = max(i for i, start in enumerate(offsets) if start <= first)
        argument, index = f"{name}[{which}]", [first - offsets[which]]
    return Mismatch(
        argument=argument,
        shape=list(shape),
        index=index,
        expected=float(wanted(expected.reshape(-1)[first])),
        got=float(out.reshape(-1)[first]),
        wrong_elements=_count(wrong),
        total_elements=out.numel(),
        histogram=_histogram((o.double() - wanted(e)).abs() for o, e in pieces(out, expected)),
        worst_slice=worst_slice,
    )


def _count(wrong: torch.Tensor) -> int:
    """How many elements are true. PyTorch sums bools in a copy of 8 bytes an element."""
    return sum(int(piece.sum()) for (piece,) in pieces(wrong))


def _first(wrong: torch.Tensor) -> int:
    """The place of the first element that is true, of one that has any."""
    before = 0
    for (piece,) in pieces(wrong):
        if bool(piece.any()):
            return before + int(piece.nonzero()[0])
        before += len(piece)
    raise AssertionError("no element is wrong")


def _histogram(errors: Iterable[torch.Tensor]) -> list[tuple[str, int]]:
    """Number of elements by decade of absolute error, as (label, count)."""
    odd = zero = 0
    by_decade = Counter[int]()
    for error in errors:
        odd += int((~torch.isfinite(error)).sum())
        zero += int((error == 0).sum())
        positive = error[torch.isfinite(error) & (error > 0)]
        decades, counts = torch.unique(positive.log10().floor().int(), return_counts=True)
        by_decade.update(dict(zip(decades.tolist(), counts.tolist(), strict=True)))
    pairs = sorted(by_decade.items())
    bins = [("exact", zero)] if zero else []
    if small := sum(n for _, n in pairs[:-10]):
        bins.append((f"< 1e{pairs[-10][0]}", small))
    bins += [(f"1e{d}", n) for d, n in pairs[-10:]]
    if odd:
        bins.append(("NaN or inf", odd))
    return bins


def _unravel(flat: int, shape: tuple[int, ...]) -> list[int]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return index[::-1]


def _join(value: Any) -> Any:
    if value is None:
        return None
    # Views of a thousand vectors would take six times as long as joining them.
    return torch.cat([one if one.dim() == 1 else one.reshape(-1) for one in value])


def _offsets(tensors: list[torch.Tensor]) -> list[int]:
    starts, total = [], 0
    for tensor in tensors:
        starts.append(total)
        total += tensor.numel()
    return starts


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
