"""What usually causes errors such as these? A hint for the reader of a report, never a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from grader.judge.correctness.error_bound import UNIT_ROUNDOFF
from grader.judge.pieces import pieces
from grader.problem import Spec
from grader.submission import Language

FP16_OR_TF32 = "fp16 or TF32"
FORMATS = (
    ("fp8", 2.0**-4),
    ("bf16", UNIT_ROUNDOFF["bf16"]),
    (FP16_OR_TF32, UNIT_ROUNDOFF["fp16"]),
)
"""Formats that kernels round to on the way, with their unit roundoff."""
EXACT = (("fp8", torch.float8_e4m3fn), ("bf16", torch.bfloat16), ("fp16", torch.float16))
"""The formats, coarsest first, whose values are recognized."""
ROUNDING_RANGE = (0.15, 1.5)
"""RMS relative error of values rounded once or a few times, as multiples of the unit roundoff; one
rounding to nearest gives 0.3 to 0.6."""
SAME_FACTOR = 0.05
"""Relative spread of the errors in a row below which they are one factor."""
ONE_SIDED = 0.3
"""The same for a whole output: results are rounded after the factor. Rounding itself, when it is
toward zero, has a spread of 0.58: that of a uniform distribution from 0."""
FEWEST = 8
"""Elements from which a pattern is told from chance."""


def likely_cause(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None, wrong: torch.Tensor
) -> str | None:
    """A guess in words at why the elements `wrong`, bool, differ from the reference `truth`.

    All have the shape of `out`; `initial` is the value before the call, for state. None without a
    guess.
    """
    changes = _pieces_of_changes(out, truth, initial)
    where_wrong = (place for (place,) in pieces(wrong))
    if not any(bool(got[here].any()) for (_, got), here in zip(changes, where_wrong, strict=True)):
        what = "were these elements left unchanged" if initial is not None else "was it computed"
        return f"they are all 0: {what}" if initial is None else what
    found = _edge(wrong) or _one_factor(out, truth, initial, wrong)
    if found is None and (factor := _common_factor(out, truth, initial)) is not None:
        what = "elements" if initial is None else "changes"
        return f"all {what} are {factor:.6g} times what they should be: is a factor wrong"
    if found is None and (name := coarse_format(out, truth, initial)) is not None:
        found = f"values or sums rounded to {name} on the way"
    return found


def coarse_format(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None = None
) -> str | None:
    """The format whose rounding leaves errors as large as those of `out`; None if none does, and
    where a few elements, or one factor, show no rounding.

    Where `out` holds the rounded values themselves, they show the format, whatever the size of the
    errors is; otherwise fp16 and TF32, which round alike, are not told apart.
    """
    if out.numel() < FEWEST:
        return None
    sizes, errors = [], []
    for wanted, got in _pieces_of_changes(out, truth, initial):
        sizes.append(float(torch.linalg.vector_norm(wanted)))
        errors.append(float(torch.linalg.vector_norm(got - wanted)))
    size = math.hypot(*sizes)
    relative = math.hypot(*errors) / size if size > 0 else 0.0
    own = torch.finfo(out.dtype).eps / 2
    low, high = ROUNDING_RANGE
    for name, unit in FORMATS:
        if unit > 2 * own and low * unit <= relative <= high * unit:
            is_factor = _common_factor(out, truth, initial) is not None
            return None if is_factor else _exact_format(out) or name
    return None


def _exact_format(out: torch.Tensor) -> str | None:
    """The coarsest format that holds every finite value of `out`, fp32; None for another dtype."""
    if out.dtype != torch.float32:
        return None
    formats, is_tf32 = dict(EXACT), True
    for (piece,) in pieces(out):
        values = piece[torch.isfinite(piece)]
        for name, dtype in list(formats.items()):
            if bool((values.to(dtype).float() != values).any()):
                del formats[name]
        dropped = values.view(torch.int32) & 0x1FFF  # TF32 keeps 10 bits of the 23
        is_tf32 = is_tf32 and not bool(dropped.any())
        if not is_tf32 and not formats:
            return None
    return next(iter(formats), "TF32")


def _pieces_of_changes(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`_finite_changes` piece by piece."""
    every = (out, truth) if initial is None else (out, truth, initial)
    for got, wanted, *before in pieces(*every):
        yield _finite_changes(got, wanted, before[0] if before else None)


def _finite_changes(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What was wanted and what was got, float64; of state, the change. 0 where either is not
    finite."""
    wanted = truth.double() if initial is None else truth.double() - initial.double()
    got = out.double() if initial is None else out.double() - initial.double()
    fine = torch.isfinite(wanted) & torch.isfinite(got)
    return torch.where(fine, wanted, 0.0), torch.where(fine, got, 0.0)


def likely_mistake(
    untouched: list[str], spec: Spec, language: Language, wrote_elsewhere: bool
) -> str | None:
    """A guess in words at why a wrong call left the outputs `untouched` as they were before it.

    wrote_elsewhere: whether the call wrote into an input, or out of bounds.
    """
    written = [a for a in spec.args if a.role != "in"]
    if wrote_elsewhere and untouched == [a.name for a in written]:
        order = ", ".join(a.name for a in spec.args)
        return (
            f"{_was(untouched)} never written: does the kernel take its arguments in the order of "
            f"{spec.entry}({order})?"
        )
    name = next((a.name for a in written if a.name in untouched), None)
    if name is None:
        return None
    if language == "cuda":
        return (
            f"{_was(untouched)} never written: is the kernel launched? A launch that fails, such "
            "as with over 1,024 threads a block, writes nothing; cudaGetLastError() tells"
        )
    is_list = any(a.kind == "tensors" for a in written if a.name == name)
    target = f"{name}[i]" if is_list else name
    return (
        f"{_was(untouched)} never written: write into it, such as by {target}.copy_(…) or "
        f"{target}[:] = …; '{target} = …' only gives the name to another tensor"
    )


def _was(names: list[str]) -> str:
    return f"{', '.join(map(repr, names))} {'was' if len(names) == 1 else 'were'}"


def _edge(wrong: torch.Tensor) -> str | None:
    """Errors in the last columns or rows only."""
    if wrong.dim() < 2 or min(wrong.shape[-2:]) < 2:
        return None
    for axis, name in ((-1, "columns"), (-2, "rows")):
        other = [d for d in range(wrong.dim()) if d - wrong.dim() != axis]
        hit = wrong.any(dim=other) if other else wrong
        first = int(hit.nonzero()[0])
        if first < max(1, hit.numel() // 2) or not bool(hit[first:].all()):
            continue
        edge = wrong.narrow(axis, first, hit.numel() - first)
        if 2 * int(edge.count_nonzero()) >= edge.numel():  # fewer may be there by chance
            return f"only the {name} from {first} on are wrong: is the last tile masked"
    return None


def _one_factor(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None, wrong: torch.Tensor
) -> str | None:
    """Errors of a whole row that are one factor: its sum is off, not its elements."""
    if out.dim() < 2 or out.shape[-1] < FEWEST:
        return None
    columns = out.shape[-1]
    row = int(wrong.reshape(-1, columns).any(1).nonzero()[0])
    got, wanted = (tensor.reshape(-1, columns)[row] for tensor in (out, truth))
    before = None if initial is None else initial.reshape(-1, columns)[row]
    wanted, got = _finite_changes(got, wanted, before)
    known = wanted != 0
    factors = got[known] / wanted[known] - 1
    if factors.numel() < FEWEST or float(factors.std()) > SAME_FACTOR * abs(float(factors.mean())):
        return None
    factor = 1 + float(factors.mean())
    sum_error = "miss terms" if factor > 1 else "take in terms from beyond the row"
    return (
        f"row {row} is {factor:.6g} times what it should be throughout: does its sum {sum_error}, "
        "or is it kept in a 16-bit format"
    )


def _common_factor(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None
) -> float | None:
    """By what all elements, or all changes of state, are off, if it is one factor."""
    count, total, squares = 0, 0.0, 0.0
    least = torch.finfo(out.dtype).smallest_normal  # smaller numbers are rounded by more
    for wanted, got in _pieces_of_changes(out, truth, initial):
        known = wanted.abs() >= least
        errors = got[known] / wanted[known] - 1
        count += errors.numel()
        total += float(errors.sum())
        squares += float(errors.square().sum())
    if count < FEWEST:
        return None
    mean = total / count
    # Where the reference is tiny these may be infinite; `**` would raise.
    spread = math.sqrt(max(squares / count - mean * mean, 0.0))
    return 1 + mean if spread <= ONE_SIDED * abs(mean) else None
