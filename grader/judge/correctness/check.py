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

from grader.judge.memory.shared_block import bits, poison_of
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
        max_abs_err=_greatest(f.max_abs_err for f in findings),
        rel_l2=_greatest(f.rel_l2 for f in findings),
        worst_slice_rel_l2=_greatest(f.worst_slice_rel_l2 for f in findings),
        budget_used=_greatest(f.budget_used for f in findings),
        mismatch=failed.mismatch if failed else None,
    )


def unwritten(out: Any) -> int:
    """How many elements of an output, a tensor or a list of them, still hold the poison; of
    integers that cannot be known."""
    if isinstance(out, list):
        return sum(map(unwritten, out))
    return int(_blank(out).sum()) if out.is_floating_point() else 0


def unexplained(out: Any, right: Any, stale: Any, tolerance: Tolerance, initial: Any = None) -> int:
    """How many elements are wrong of an output whose call may have met the words of one set of
    inputs, of another, or some of each; 0 where that may explain it.

    `right` and `stale` are plain PyTorch's answers for the two sets. Where they are the same, the
    output must be within the bounds of it. But an element that depends on what differs may be the
    same by chance, and off for a mixture: as many as the answers differ in may be wrong. So it is a
    sign and no proof: of few numbers, or of an order, a mixture can change more. A list of tensors
    is one long vector; `initial` is the value before the call of an `inout` argument.
    """
    if isinstance(out, list):
        out, right, stale, initial = map(_join, (out, right, stale, initial))
    right, stale = right.to(out.dtype), stale.to(out.dtype)  # PyTorch's may be another
    same = (right == stale) | ((right != right) & (stale != stale))
    wrong = out != right
    if out.is_floating_point():
        exact = right.double()
        change = exact if initial is None else exact - initial
        near = (out - exact).abs() <= change.abs().mul_(tolerance.rtol).add_(tolerance.atol)
        near &= torch.isfinite(exact)  # infinity would allow for anything
        wrong &= ~near & ~(torch.isnan(out) & torch.isnan(right))
    told = _fetch({"off": (wrong & same).sum(), "differ": (~same).sum()})
    return int(told["off"]) if told["off"] > told["differ"] else 0


def _blank(out: torch.Tensor) -> torch.Tensor:
    """Where an output was never written, bool."""
    return bits(out.contiguous()) == poison_of(out)  # bit by bit


def _greatest(values: Iterable[float | None]) -> float | None:
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
    blank = _blank(out)
    expected = truth.to(out.dtype)  # as this dtype can hold it: inf stays inf
    # NaN and infinity show in the largest magnitude.
    first = _fetch({"blank": blank.any(), "out": _largest(out), "expected": _largest(expected)})
    if first["blank"]:
        count = int(blank.sum())
        where = Where(name, out, truth, blank, offsets)
        return Finding(
            f"{count} of {out.numel()} elements of '{name}' were never written",
            mismatch=where.mismatch(),
        )
    finite = None
    if not (math.isfinite(first["out"]) and math.isfinite(first["expected"])):
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
    asked = {"over": over.any(), "error": _norm(error), "change": _norm(change)}
    asked["largest"] = _largest(error)
    slices = _worst_slices(error, change)
    for i, found in enumerate(slices):
        asked |= {f"slice {i}": found.rel_l2, f"index {i}": found.index}
    if eager is not None:
        asked |= _asked_for_budget(where_finite((eager - exact).abs_()), exact)
    told = _fetch(asked)

    rel_l2 = _ratio(told["error"], told["change"])
    slice_rel_l2, slice_name = max(
        ((told[f"slice {i}"], s.name(int(told[f"index {i}"]))) for i, s in enumerate(slices)),
        default=(None, None),
    )
    max_abs_err = told["largest"]
    budget = None
    if eager is not None:
        budget = _budget_used(told, out.numel(), out.dtype, tolerance.budget)

    failure = None
    if told["over"]:
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
        wrong = over if told["over"] else error == error.max()
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
        rel_l2=_ratio(float(_norm(out.double() - truth.double())), float(_norm(truth.double()))),
        mismatch=Where(name, out, truth, wrong, offsets).mismatch(),
    )


def _special_positions(out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor | None:
    """Where NaN, +inf and -inf do not sit as in the expected output; None where they all do."""
    differs = torch.isnan(out) != torch.isnan(expected)
    infinite = torch.isinf(out) | torch.isinf(expected)
    differs |= infinite & (out != expected)
    return differs if bool(differs.any()) else None


def _fetch(asked: dict[str, torch.Tensor]) -> dict[str, float]:
    """What 0-dimensional tensors hold, with one wait for the device: it may take a millisecond
    where other processes use it too."""
    values = torch.stack([value.double() for value in asked.values()]).tolist()
    return dict(zip(asked, values, strict=True))


def _ratio(error: float, reference: float) -> float:
    """Of two norms; 0 when both vanish, infinite when only the reference does."""
    if reference == 0:
        return 0.0 if error == 0 else math.inf
    return error / reference


@dataclass(frozen=True)
class Slice:
    """The worst of the slices of one kind."""

    rel_l2: torch.Tensor
    """Its relative L2 error, float64 []."""
    index: torch.Tensor
    """Its number, int64 []."""
    name: Callable[[int], str]
    """What the slice of a number is called."""


def _worst_slices(error: torch.Tensor, reference: torch.Tensor) -> list[Slice]:
    """The worst row, column and tile of the 2-D view, by relative L2 error.

    A vector is seen as rows of TILE² elements. Slices at an edge that have fewer than LEAST_SLICE
    elements are left out, as small tensors are.
    """
    count = error.numel()
    columns = error.shape[-1] if error.dim() > 1 else TILE * TILE
    error2 = _as_rows(error, columns).square()
    reference2 = _as_rows(reference, columns).square()
    rows = error2.shape[0]
    found: list[Slice] = []
    if rows > 1 and columns >= LEAST_SLICE:
        last = count - (rows - 1) * columns
        found += _worst_of(error2.sum(1), reference2.sum(1), last, "row {}".format)
    if error.dim() == 1:
        return found
    error2, reference2 = _bands(error2), _bands(reference2)
    if columns > 1 and rows >= LEAST_SLICE:
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
) -> list[Slice]:
    """The worst of the slices that have elements enough; empty when none has. All but the last,
    which has so many, do: also of tiles, as one at one edge only has a side of `TILE`."""
    typical = reference2.mean() * TYPICAL_SHARE**2
    ratio = (error2 / torch.maximum(reference2, typical)).sqrt().nan_to_num(nan=0.0)
    if last < LEAST_SLICE:
        ratio = ratio[:-1]
    if not len(ratio):
        return []
    rel_l2, index = ratio.max(0)
    return [Slice(rel_l2, index, name)]


def _as_rows(values: torch.Tensor, columns: int) -> torch.Tensor:
    flat = values.reshape(-1)
    missing = -flat.numel() % columns
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.view(-1, columns)


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


def _asked_for_budget(eager_error: torch.Tensor, exact: torch.Tensor) -> dict[str, torch.Tensor]:
    """What `_budget_used` is to be told besides the error's own norms."""
    return {
        "eager error": _norm(eager_error),
        "eager largest": _largest(eager_error),
        "exact": _norm(exact),
        "exact sum": _norm(exact, 1),
        "exact largest": _largest(exact),
    }


def _budget_used(told: dict[str, float], count: int, dtype: torch.dtype, multiple: float) -> float:
    """The larger of RMS and maximum error over what is allowed: `multiple` times PyTorch's own
    error, plus one unit in the last place of the output and the smallest number that hardware
    does not flush to zero: the smallest normal one, but of float16 the smallest subnormal."""
    if count == 0:
        return 0.0
    info = torch.finfo(dtype)
    least = info.tiny * info.eps if dtype == torch.float16 else info.tiny
    root = math.sqrt(count)
    # Of u = |x|·eps + least: its mean square from those of x and |x|, and no less than least's.
    mean = told["exact sum"] / count
    rms = told["exact"] / root
    ulp_rms = math.sqrt((rms * info.eps) ** 2 + least * (2 * mean * info.eps + least))
    ulp_rms = max(ulp_rms, least)  # whose square may be no number of this format
    allowed_rms = multiple * told["eager error"] / root + ulp_rms
    allowed_max = multiple * told["eager largest"] + told["exact largest"] * info.eps + least
    return max(told["error"] / root / allowed_rms, told["largest"] / allowed_max)


def _norm(values: torch.Tensor, order: float = 2) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, order)
    return norm


def _largest(values: torch.Tensor) -> torch.Tensor:
    """The largest magnitude; NaN where there is one, 0 where there is nothing."""
    return _norm(values, math.inf) if values.numel() else values.new_zeros(())


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
