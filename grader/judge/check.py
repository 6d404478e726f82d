"""Is it right? Every gate an output must pass; `allclose` is only one of them.

Inputs that are not contiguous, special values and tiny slices all pass through the same functions.
All arithmetic is in float64 on the judge's device, on private copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from grader.judge.block import bits, poison_of
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Tolerance
from grader.report import Mismatch

LEAST_SLICE = 32
"""A row, column or tile of fewer elements says nothing that the elementwise bound does not."""
TILE = 64
TYPICAL_SHARE = 1e-3
"""A slice whose reference norm is below this share of the typical one is held against that."""


@dataclass(frozen=True)
class Finding:
    """What the gates found on one output (or on the worst of several)."""

    failure: str | None = None
    """Which gate failed, in words; None when all held."""
    max_abs_err: float | None = None
    rel_l2: float | None = None
    worst_slice_rel_l2: float | None = None
    budget_used: float | None = None
    """Errors are None where there was nothing to subtract: unwritten, NaN or infinite outputs."""
    mismatch: Mismatch | None = None


def tolerance_of(problem: Problem, argument: Argument, case: Case) -> Tolerance:
    """The bounds for an output in one case; an integer output must be exact."""
    exact = Tolerance(atol=0, rtol=0, rel_l2=1e-300, budget=1)
    return problem.spec.tolerances.get(problem.dtype(argument, case), exact)


def check(
    name: str,
    out: Any,
    truth: Any,
    eager: Any,
    tolerance: Tolerance,
    initial: Any = None,
) -> Finding:
    """Hold one output against the float64 `truth`, with plain PyTorch's `eager` as the yardstick.

    A list of tensors is checked as one long vector. `initial` is the value before the call of an
    `inout` argument: then errors are measured on the change. Without `eager` the error budget is
    not applied.
    """
    if isinstance(out, list):
        offsets = _offsets(out)
        out, truth, eager, initial = map(_join, (out, truth, eager, initial))
        return _check(name, out, truth, eager, initial, tolerance, offsets)
    return _check(name, out, truth, eager, initial, tolerance, None)


def worst(findings: list[Finding]) -> Finding:
    """Several outputs of one call as one finding: the first failure, and the largest errors."""
    failed = next((f for f in findings if f.failure is not None), None)
    return Finding(
        failure=failed.failure if failed else None,
        max_abs_err=_largest(f.max_abs_err for f in findings),
        rel_l2=_largest(f.rel_l2 for f in findings),
        worst_slice_rel_l2=_largest(f.worst_slice_rel_l2 for f in findings),
        budget_used=_largest(f.budget_used for f in findings),
        mismatch=failed.mismatch if failed else None,
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _check(
    name: str,
    out: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor | None,
    initial: torch.Tensor | None,
    tolerance: Tolerance,
    offsets: list[int] | None,
) -> Finding:
    if not out.is_floating_point():
        return _check_exact(name, out, truth, offsets)
    unwritten = _unwritten(out)
    if unwritten is not None:
        count = int(unwritten.sum())
        where = Where(name, out, truth, unwritten, offsets)
        return Finding(
            f"{count} of {out.numel()} elements of '{name}' were never written",
            mismatch=where.mismatch(),
        )
    expected = truth.to(out.dtype)  # as this dtype can hold it: inf stays inf
    finite = None
    if not (_is_finite(out) and _is_finite(expected)):
        special = _special_positions(out, expected)
        if special is not None:
            where = Where(name, out, expected, special, offsets)
            return Finding(
                f"'{name}' has NaN or infinity where the reference has not, or the other way round "
                f"({int(special.sum())} elements)",
                mismatch=where.mismatch(),
            )
        finite = torch.isfinite(expected)

    def where_finite(values: torch.Tensor) -> torch.Tensor:
        return values if finite is None else torch.where(finite, values, 0.0)

    # Mixed dtypes meet in float64 within one operation; to convert first would double the traffic.
    exact = where_finite(truth.double())
    error = where_finite((out - exact).abs_())
    change = exact if initial is None else where_finite(exact - initial)

    over = error > change.abs().mul_(tolerance.rtol).add_(tolerance.atol)
    rel_l2 = _ratio(error, change)
    slice_rel_l2, slice_name = _worst_slice(error, change)
    budget = None
    if eager is not None:
        eager_error = where_finite((eager - exact).abs_())
        budget = _budget_used(error, eager_error, exact, out.dtype, tolerance.budget)
    max_abs_err = _largest_of(error)

    failure = None
    if bool(over.any()):
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
            f"({tolerance.budget:g} times what PyTorch makes at {_short(out.dtype)})"
        )
    mismatch = None
    if failure is not None:
        wrong = over if bool(over.any()) else error == error.max()
        mismatch = Where(name, out, expected, wrong, offsets, slice_name).mismatch()
    return Finding(failure, max_abs_err, rel_l2, slice_rel_l2, budget, mismatch)


def _check_exact(
    name: str, out: torch.Tensor, truth: torch.Tensor, offsets: list[int] | None
) -> Finding:
    wrong = out != truth.to(out.dtype)
    if not bool(wrong.any()):
        return Finding(None, 0.0, 0.0, 0.0)
    return Finding(
        f"{int(wrong.sum())} of {out.numel()} elements of '{name}' are wrong",
        max_abs_err=float((out.double() - truth.double()).abs().max()),
        rel_l2=_ratio((out.double() - truth.double()).abs(), truth.double()),
        mismatch=Where(name, out, truth, wrong, offsets).mismatch(),
    )


def _unwritten(out: torch.Tensor) -> torch.Tensor | None:
    """Where the poison still stands, bit by bit; None where it nowhere does."""
    mask = bits(out.contiguous()) == poison_of(out)
    return mask if bool(mask.any()) else None


def _is_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite: their largest magnitude would be, too."""
    return math.isfinite(_largest_of(values))


def _special_positions(out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor | None:
    """Where NaN, +inf and -inf do not sit as in the expected output; None where they all do."""
    differs = torch.isnan(out) != torch.isnan(expected)
    infinite = torch.isinf(out) | torch.isinf(expected)
    differs |= infinite & (out != expected)
    return differs if bool(differs.any()) else None


def _ratio(error: torch.Tensor, reference: torch.Tensor) -> float:
    """``||error|| / ||reference||``; 0 when both vanish, infinite when only the reference does."""
    top = float(torch.linalg.vector_norm(error))
    bottom = float(torch.linalg.vector_norm(reference))
    if bottom == 0:
        return 0.0 if top == 0 else math.inf
    return top / bottom


def _worst_slice(error: torch.Tensor, reference: torch.Tensor) -> tuple[float | None, str | None]:
    """Largest relative L2 error of any row, column or tile of the 2-D view, and its name.

    A vector is seen as rows of TILE² elements. Slices at an edge that have fewer than LEAST_SLICE
    elements are left out, as small tensors are; None where none is left.
    """
    count = error.numel()
    columns = error.shape[-1] if error.dim() > 1 else TILE * TILE
    error2 = _as_rows(error, columns).square()
    reference2 = _as_rows(reference, columns).square()
    rows = error2.shape[0]
    found: list[tuple[float, str]] = []
    if rows > 1:
        full = torch.full((rows,), columns)
        full[-1] = count - (rows - 1) * columns
        found += _worst_of(error2.sum(1), reference2.sum(1), full, "row {}".format)
    if error.dim() == 1:
        return max(found, default=(None, None))
    error2, reference2 = _bands(error2), _bands(reference2)
    if columns > 1:
        tall = torch.full((columns,), rows)
        found += _worst_of(error2.sum(0), reference2.sum(0), tall, "column {}".format)
    if min(rows, columns) > 1:
        across = -(-columns // TILE)
        sizes = _edges(rows)[:, None] * _edges(columns)[None, :]

        def tile(index: int) -> str:
            down, right = divmod(index, across)
            return f"the {TILE}×{TILE} tile at row {down * TILE}, column {right * TILE}"

        found += _worst_of(_tiles(error2), _tiles(reference2), sizes.reshape(-1), tile)
    return max(found, default=(None, None))


def _worst_of(
    error2: torch.Tensor, reference2: torch.Tensor, counts: torch.Tensor, name: Callable[[int], str]
) -> list[tuple[float, str]]:
    """The worst of the slices that have elements enough; empty when none has."""
    enough = (counts >= LEAST_SLICE).to(error2.device)
    if not bool(enough.any()):
        return []
    typical = reference2.mean() * TYPICAL_SHARE**2
    ratio = (error2 / torch.maximum(reference2, typical)).sqrt().nan_to_num(nan=0.0)
    index = int(torch.where(enough, ratio, -1.0).argmax())
    return [(float(ratio[index]), name(index))]


def _as_rows(values: torch.Tensor, columns: int) -> torch.Tensor:
    flat = values.reshape(-1)
    missing = -flat.numel() % columns
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.view(-1, columns)


def _edges(size: int) -> torch.Tensor:
    """Lengths of the pieces of TILE that `size` is cut into."""
    starts = torch.arange(0, size, TILE)
    return torch.clamp(size - starts, max=TILE)


def _bands(squares: torch.Tensor) -> torch.Tensor:
    """Sums over every TILE rows, and over what is left of them."""
    rows, columns = squares.shape
    whole = rows - rows % TILE
    bands = squares[:whole].view(-1, TILE, columns).sum(1)
    return bands if whole == rows else torch.cat([bands, squares[whole:].sum(0, keepdim=True)])


def _tiles(bands: torch.Tensor) -> torch.Tensor:
    """Sums over TILE×TILE tiles, flattened row-major, from those over TILE rows."""
    padded = torch.nn.functional.pad(bands, (0, -bands.shape[1] % TILE))
    return padded.view(-1, TILE).sum(1)


def _budget_used(
    error: torch.Tensor,
    eager_error: torch.Tensor,
    exact: torch.Tensor,
    dtype: torch.dtype,
    multiple: float,
) -> float:
    """The larger of RMS and maximum error over what is allowed: `multiple` times PyTorch's own
    error, plus one unit in the last place of the output and the smallest number that hardware
    does not flush to zero: the smallest normal one, but of float16 the smallest subnormal."""
    if error.numel() == 0:
        return 0.0
    info = torch.finfo(dtype)
    least = info.tiny * info.eps if dtype == torch.float16 else info.tiny
    # Of u = |x|·eps + least: its mean square from those of x and |x|, and no less than least's.
    mean = float(torch.linalg.vector_norm(exact, 1)) / exact.numel()
    ulp_rms = math.sqrt((_rms(exact) * info.eps) ** 2 + least * (2 * mean * info.eps + least))
    ulp_rms = max(ulp_rms, least)  # whose square may be no number of this format
    allowed_rms = multiple * _rms(eager_error) + ulp_rms
    allowed_max = multiple * _largest_of(eager_error) + _largest_of(exact) * info.eps + least
    return max(_rms(error) / allowed_rms, _largest_of(error) / allowed_max)


def _rms(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(values.numel())


def _largest_of(values: torch.Tensor) -> float:
    """The largest magnitude; NaN where there is one, 0 where there is nothing."""
    return float(torch.linalg.vector_norm(values, math.inf)) if values.numel() else 0.0


@dataclass(frozen=True)
class Where:
    """The picture of a wrong output: first wrong index, expected and got, errors by decade."""

    name: str
    out: torch.Tensor
    expected: torch.Tensor
    wrong: torch.Tensor
    offsets: list[int] | None
    worst_slice: str | None = None

    def mismatch(self) -> Mismatch:
        """As the report carries it."""
        out, wrong = self.out.reshape(-1), self.wrong.reshape(-1)
        expected = self.expected.reshape(-1)
        first = int(wrong.nonzero()[0])
        argument, index = self.name, _unravel(first, tuple(self.out.shape))
        if self.offsets is not None:
            which = max(i for i, start in enumerate(self.offsets) if start <= first)
            argument, index = f"{self.name}[{which}]", [first - self.offsets[which]]
        return Mismatch(
            argument=argument,
            shape=list(self.out.shape),
            index=index,
            expected=float(expected[first]),
            got=float(out[first]),
            wrong_elements=int(wrong.sum()),
            total_elements=out.numel(),
            histogram=_histogram((out.double() - expected.double()).abs()),
            worst_slice=self.worst_slice,
        )


def _histogram(error: torch.Tensor) -> list[tuple[str, int]]:
    """Elements by decade of absolute error."""
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
