"""Is an output correct? Every check that it must pass; an elementwise bound is only one of them.

In order: every element was written; NaN and infinity are where the reference has them; elementwise
bound; relative L2 error of the whole output and of its worst row, column or tile; error budget
relative to PyTorch's own error. All arithmetic is in float64 on the judge's device, on private
copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from grader.judge.memory.shared_block import bits, poison_of
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Tolerance
from grader.report import Mismatch

MIN_SLICE_ELEMENTS = 32
"""Rows, columns and tiles with fewer elements are left to the elementwise bound."""
TILE = 64
"""Side of a tile, in elements."""
MIN_NORM_SHARE = 1e-3
"""A slice's relative error is taken relative to at least this share of the RMS of all slices'
reference norms, so that a nearly empty slice does not dominate."""


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
    mismatch: Mismatch | None = None


def tolerance_of(problem: Problem, argument: Argument, case: Case) -> Tolerance:
    """The bounds for an output in one case. An output without tolerances must be exact."""
    exact = Tolerance(atol=0, rtol=0, rel_l2=1e-300, budget=1)
    return problem.spec.tolerances.get(problem.dtype(argument, case), exact)


def check(
    name: str,
    out: Any,
    truth: Any,
    eager: Any,
    tolerance: Tolerance,
    initial: Any = None,
) -> CheckResult:
    """Compare one output, a tensor or a list of tensors, with the float64 reference `truth`.

    `eager` is PyTorch's output at the inputs' own dtype, from which the error budget follows; None
    skips the budget. `initial` is the value of an `inout` argument before the call: relative errors
    are then relative to the change. A list of tensors is checked as one concatenated vector.
    """
    offsets = None
    if isinstance(out, list):
        offsets = _offsets(out)
        out, truth, eager, initial = map(_join, (out, truth, eager, initial))
    return _check(name, out, truth, eager, initial, tolerance, offsets)


def combine_results(results: list[CheckResult]) -> CheckResult:
    """One result for several outputs of a call: the first failure, and the largest errors."""
    failed = next((r for r in results if r.failure is not None), None)
    return CheckResult(
        failure=failed.failure if failed else None,
        max_abs_err=_max_known(r.max_abs_err for r in results),
        rel_l2=_max_known(r.rel_l2 for r in results),
        worst_slice_rel_l2=_max_known(r.worst_slice_rel_l2 for r in results),
        budget_used=_max_known(r.budget_used for r in results),
        mismatch=failed.mismatch if failed else None,
    )


def count_unwritten(out: Any) -> int:
    """Number of elements of an output, a tensor or a list of them, that still hold the poison.

    Always 0 for integers, whose poison is a valid value.
    """
    if isinstance(out, list):
        return sum(map(count_unwritten, out))
    return int(_is_poison(out).sum()) if out.is_floating_point() else 0


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
    same = (right == stale) | ((right != right) & (stale != stale))
    wrong = out != right
    if out.is_floating_point():
        exact = right.double()
        change = exact if initial is None else exact - initial
        near = (out - exact).abs() <= change.abs().mul_(tolerance.rtol).add_(tolerance.atol)
        near &= torch.isfinite(exact)  # an infinite bound would allow anything
        wrong &= ~near & ~(torch.isnan(out) & torch.isnan(right))
    counts = _fetch({"off": (wrong & same).sum(), "differ": (~same).sum()})
    return int(counts["off"]) if counts["off"] > counts["differ"] else 0


def _is_poison(out: torch.Tensor) -> torch.Tensor:
    """Elements that were never written, bool; compared bit by bit, since the poison is a NaN."""
    return bits(out.contiguous()) == poison_of(out)


def _max_known(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _check(
    name: str,
    out: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor | None,
    initial: torch.Tensor | None,
    tolerance: Tolerance,
    offsets: list[int] | None,
) -> CheckResult:
    if not out.is_floating_point():
        return _check_exact(name, out, truth, offsets)
    blank = _is_poison(out)
    expected = truth.to(out.dtype)
    # A NaN or infinity anywhere makes the largest magnitude one.
    first = _fetch({"blank": blank.any(), "out": _largest(out), "expected": _largest(expected)})
    if first["blank"]:
        return CheckResult(
            f"{int(blank.sum())} of {out.numel()} elements of '{name}' were never written",
            mismatch=_mismatch(name, out, truth, blank, offsets),
        )
    finite = None
    if not (math.isfinite(first["out"]) and math.isfinite(first["expected"])):
        special = _special_positions(out, expected)
        if special is not None:
            return CheckResult(
                f"NaN or infinity in '{name}' differs from the reference in "
                f"{int(special.sum())} elements",
                mismatch=_mismatch(name, out, expected, special, offsets),
            )
        finite = torch.isfinite(expected)

    def where_finite(values: torch.Tensor) -> torch.Tensor:
        return values if finite is None else torch.where(finite, values, 0.0)

    # Mixed dtypes are promoted within one operation; converting first would double the traffic.
    exact = where_finite(truth.double())
    error = where_finite((out - exact).abs_())
    change = exact if initial is None else where_finite(exact - initial)

    over = error > change.abs().mul_(tolerance.rtol).add_(tolerance.atol)
    pending = {"over": over.any(), "error": _norm(error), "change": _norm(change)}
    pending["largest"] = _largest(error)
    slices = _worst_slices(error, change)
    for i, worst in enumerate(slices):
        pending |= {f"slice {i}": worst.rel_l2, f"index {i}": worst.index}
    if eager is not None:
        pending |= _budget_inputs(where_finite((eager - exact).abs_()), exact)
    values = _fetch(pending)

    rel_l2 = _ratio(values["error"], values["change"])
    slice_rel_l2, slice_name = max(
        ((values[f"slice {i}"], s.name(int(values[f"index {i}"]))) for i, s in enumerate(slices)),
        default=(None, None),
    )
    max_abs_err = values["largest"]
    budget = None
    if eager is not None:
        budget = _budget_used(values, out.numel(), out.dtype, tolerance.budget)

    failure = None
    if values["over"]:
        failure = (
            f"{int(over.sum())} of {out.numel()} elements of '{name}' are off by more than "
            f"{tolerance.atol:g} + {tolerance.rtol:g}·|ref|"
        )
    elif not rel_l2 <= tolerance.rel_l2:
        failure = f"relative L2 error of '{name}' is {rel_l2:.2e}, above {tolerance.rel_l2:.0e}"
    elif slice_rel_l2 is not None and not slice_rel_l2 <= tolerance.rel_l2:
        failure = (
            f"relative L2 error of '{name}' in {slice_name} is {slice_rel_l2:.2e}, "
            f"above {tolerance.rel_l2:.0e}"
        )
    elif budget is not None and budget > 1:
        failure = (
            f"error of '{name}' is {budget:.2g} times its budget "
            f"({tolerance.budget:g} times eager PyTorch's error at {_short(out.dtype)})"
        )
    mismatch = None
    if failure is not None:
        wrong = over if values["over"] else error == error.max()
        mismatch = _mismatch(name, out, expected, wrong, offsets, slice_name)
    return CheckResult(failure, max_abs_err, rel_l2, slice_rel_l2, budget, mismatch)


def _check_exact(
    name: str, out: torch.Tensor, truth: torch.Tensor, offsets: list[int] | None
) -> CheckResult:
    wrong = out != truth.to(out.dtype)
    if not bool(wrong.any()):
        return CheckResult(None, 0.0, 0.0, 0.0)
    return CheckResult(
        f"{int(wrong.sum())} of {out.numel()} elements of '{name}' are wrong",
        max_abs_err=float((out.double() - truth.double()).abs().max()),
        rel_l2=_ratio(float(_norm(out.double() - truth.double())), float(_norm(truth.double()))),
        mismatch=_mismatch(name, out, truth, wrong, offsets),
    )


def _special_positions(out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor | None:
    """Elements whose NaN, +inf or -inf differs from the expected output; None if there are none."""
    differs = torch.isnan(out) != torch.isnan(expected)
    infinite = torch.isinf(out) | torch.isinf(expected)
    differs |= infinite & (out != expected)
    return differs if bool(differs.any()) else None


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


def _worst_slices(error: torch.Tensor, reference: torch.Tensor) -> list[_WorstSlice]:
    """The worst row, column and tile of the 2-D view, by relative L2 error.

    A vector is cut into rows of TILE² elements. Slices of fewer than `MIN_SLICE_ELEMENTS` are left
    out.
    """
    count = error.numel()
    columns = error.shape[-1] if error.dim() > 1 else TILE * TILE
    error2 = _as_rows(error, columns).square()
    reference2 = _as_rows(reference, columns).square()
    rows = error2.shape[0]
    found: list[_WorstSlice] = []
    if rows > 1 and columns >= MIN_SLICE_ELEMENTS:
        last = count - (rows - 1) * columns
        found += _worst_of(error2.sum(1), reference2.sum(1), last, "row {}".format)
    if error.dim() == 1:
        return found
    error2, reference2 = _bands(error2), _bands(reference2)
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
    return {
        "eager error": _norm(eager_error),
        "eager largest": _largest(eager_error),
        "exact": _norm(exact),
        "exact sum": _norm(exact, 1),
        "exact largest": _largest(exact),
    }


def _budget_used(
    values: dict[str, float], count: int, dtype: torch.dtype, multiple: float
) -> float:
    """The larger of RMS and maximum error, each divided by its budget.

    The budget is `multiple` times eager PyTorch's own error, plus one unit in the last place of the
    output, plus the smallest number that hardware does not flush to zero: the smallest normal one,
    or for float16 the smallest subnormal.
    """
    if count == 0:
        return 0.0
    info = torch.finfo(dtype)
    least = info.tiny * info.eps if dtype == torch.float16 else info.tiny
    root = math.sqrt(count)
    # RMS of u = |x|·eps + least, from the mean square of x and the mean of |x|; at least `least`.
    mean = values["exact sum"] / count
    rms = values["exact"] / root
    ulp_rms = math.sqrt((rms * info.eps) ** 2 + least * (2 * mean * info.eps + least))
    ulp_rms = max(ulp_rms, least)  # the square of `least` may underflow
    allowed_rms = multiple * values["eager error"] / root + ulp_rms
    allowed_max = multiple * values["eager largest"] + values["exact largest"] * info.eps + least
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
) -> Mismatch:
    """The report's picture of an output of which the elements `wrong`, bool, are wrong."""
    shape = tuple(out.shape)
    out, expected, wrong = out.reshape(-1), expected.reshape(-1), wrong.reshape(-1)
    first = int(wrong.nonzero()[0])
    argument, index = name, _unravel(first, shape)
    if offsets is not None:
        which = max(i for i, start in enumerate(offsets) if start <= first)
        argument, index = f"{name}[{which}]", [first - offsets[which]]
    return Mismatch(
        argument=argument,
        shape=list(shape),
        index=index,
        expected=float(expected[first]),
        got=float(out[first]),
        wrong_elements=int(wrong.sum()),
        total_elements=out.numel(),
        histogram=_histogram((out.double() - expected.double()).abs()),
        worst_slice=worst_slice,
    )


def _histogram(error: torch.Tensor) -> list[tuple[str, int]]:
    """Number of elements by decade of absolute error, as (label, count)."""
    bins: list[tuple[str, int]] = []
    odd = int((~torch.isfinite(error)).sum())
    zero = int((error == 0).sum())
    positive = error[torch.isfinite(error) & (error > 0)]
    if zero:
        bins.append(("exact", zero))
    if positive.numel():
        decades, counts = torch.unique(positive.log10().floor().int(), return_counts=True)
        pairs = list(zip(decades.tolist(), counts.tolist(), strict=True))
        small = sum(n for d, n in pairs[:-10])
        if small:
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
    return torch.cat([tensor.reshape(-1) for tensor in value])


def _offsets(tensors: list[torch.Tensor]) -> list[int]:
    starts, total = [], 0
    for tensor in tensors:
        starts.append(total)
        total += tensor.numel()
    return starts


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
