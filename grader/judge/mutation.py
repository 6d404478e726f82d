"""Prove a problem's check: every mutant must fail on every case, every honest implementation pass.

A mutant is what a broken or lazy kernel would leave in the outputs. Where a mutant happens to be
the truth (the mean of a row of one element, permuted rows of a single row) it proves nothing, and
is reported as ``same as reference``: it is, when it lies as near the truth as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from grader.arena import arrange
from grader.judge.correctness.check import Finding, check, tolerance_of, worst
from grader.judge.integrity.call_order import CallOrderWatch
from grader.judge.memory.argument_sets import arguments_of
from grader.judge.memory.shared_block import poison
from grader.judge.problem_code import ProblemCode, Values, each, seed_for
from grader.judge.record import Device, Progress, Watcher
from grader.problem import Problem
from grader.problem.spec import Case, Tolerance

SEED = 20_261
"""Verification is about the cases, not about secrecy: a fixed seed makes it repeatable."""

Outcome = Literal["failed", "passed", "same as reference"]


@dataclass(frozen=True)
class VerifyRow:
    """One implementation or mutant on one case."""

    name: str
    case: str
    expected: Literal["fail", "pass"]
    outcome: Outcome
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether it went as it must."""
        return self.outcome != ("passed" if self.expected == "fail" else "failed")


@dataclass
class VerifyResult:
    """All rows; `ok` when the problem may be published."""

    rows: list[VerifyRow] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every row ok, and every mutant caught at least once."""
        caught = {row.name for row in self.rows if row.outcome == "failed"}
        mutants = {row.name for row in self.rows if row.expected == "fail"}
        return all(row.ok for row in self.rows) and mutants == caught


@dataclass(frozen=True)
class Scene:
    """One case with everything a mutant may draw on; values by name of the output."""

    case: Case
    inputs: Values
    truth: Values
    eager: Values
    previous: Values
    """PyTorch's outputs for other inputs of the same case."""
    half: Values | None
    """PyTorch's outputs through half precision; None where the outputs are no wider than that."""


@dataclass(frozen=True)
class Piece:
    """One output tensor (of a list, one element) as a mutant sees it."""

    value: torch.Tensor
    """The right output, in the output's dtype."""
    previous: torch.Tensor
    half: torch.Tensor | None
    initial: torch.Tensor | None
    """Its value before the call, for `inout` arguments."""
    source: torch.Tensor | None
    """An input of the same shape and dtype, where there is one."""
    last: bool
    """Whether it is the last of its list; true for a single tensor."""
    listed: bool

    def blank(self) -> torch.Tensor:
        """What stands in the output when nothing is computed: the old state, or zeros."""
        return torch.zeros_like(self.value) if self.initial is None else self.initial.clone()


class NotApplicableError(Exception):
    """This mutant means nothing for this output."""


Mutant = Callable[[Piece], torch.Tensor]


def verify(problem: Problem, device: Device, progress: Watcher = lambda _: None) -> VerifyResult:
    """Run mutants and honest implementations over every test and benchmark case for `device`, and
    honest ones over the benchmarks' variants. On a GPU, tell of benchmarks that could never rank.

    Raises `ProblemError` when the problem's own code fails.
    """
    code = ProblemCode(problem, device)
    result = VerifyResult()
    cases = problem.cases("test", device) + problem.cases("benchmark", device)
    compiled = torch.compile(code.eager, dynamic=True)
    for index, case in enumerate(cases):
        progress(Progress("verify", case.name, index, len(cases)))
        code.check_deterministic(case)
        scene = _scene(code, case)
        tolerances = {a.name: tolerance_of(problem, a, case) for a in code.written}
        for name, mutant in MUTANTS.items():
            outputs = _mutate(code, scene, mutant)
            if outputs is not None:
                result.rows.append(_mutant_row(code, scene, tolerances, name, outputs))
        for name, run in {"eager": code.eager, "compile": compiled}.items():
            outputs = code.run(run, f"{name}()", case, scene.inputs)
            result.rows.append(_honest_row(code, scene, tolerances, name, outputs))
        if case in problem.spec.benchmarks:
            result.rows += [_variant_row(code, case, other) for other in problem.variants(case)]
            if device == "cuda":
                result.rows.append(watched_row(problem, case, scene.inputs))
    return result


def _variant_row(code: ProblemCode, case: Case, other: Case) -> VerifyRow:
    """Eager PyTorch on the inputs of a variant: what it cannot do, nobody is to be asked for."""
    drawn = other.params.items() - case.params.items()
    named = other.model_copy(
        update={"name": ", ".join([case.name, *(f"{k}={v}" for k, v in drawn)])}
    )
    tolerances = {a.name: tolerance_of(code.problem, a, case) for a in code.written}
    scene = _scene(code, named)
    return _honest_row(code, scene, tolerances, "eager", scene.eager)


def watched_row(problem: Problem, case: Case, inputs: Values) -> VerifyRow:
    """Whether the judge can watch a round of a benchmark case: no time of any other ranks."""
    layout = arrange([arguments_of(problem, case, inputs)])
    written_bytes = layout.nbytes - layout.writable_at
    if CallOrderWatch.reaches(written_bytes):
        return VerifyRow("watched rounds", case.name, "pass", "passed")
    detail = (
        f"a call writes {written_bytes:,} bytes, which are too many for the judge to watch, so no "
        "time of it ranks: make the case smaller"
    )
    return VerifyRow("watched rounds", case.name, "pass", "failed", detail)


def _scene(code: ProblemCode, case: Case) -> Scene:
    inputs = code.inputs(case, seed_for(SEED, case.name))
    other = code.inputs(case, seed_for(SEED, case.name, "previous"))
    eager = code.plain(case, inputs)
    wide = all(t.element_size() > 2 for value in eager.values() for t in _list(value))
    half = each(code.plain(case, each(inputs, _through_half)), _through_half) if wide else None
    return Scene(case, inputs, code.truth(case, inputs), eager, code.plain(case, other), half)


def _through_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor


def _mutant_row(
    code: ProblemCode,
    scene: Scene,
    tolerances: dict[str, Tolerance],
    name: str,
    outputs: Values,
) -> VerifyRow:
    finding = _look(code, scene, tolerances, outputs)
    outcome: Outcome = "failed" if finding.failure is not None else "passed"
    if outcome == "passed" and _as_good_as_eager(code, scene, outputs):
        outcome = "same as reference"
    return VerifyRow(name, scene.case.name, "fail", outcome, finding.failure or _figures(finding))


def _honest_row(
    code: ProblemCode,
    scene: Scene,
    tolerances: dict[str, Tolerance],
    name: str,
    outputs: Values,
) -> VerifyRow:
    finding = _look(code, scene, tolerances, outputs)
    outcome: Outcome = "passed" if finding.failure is None else "failed"
    return VerifyRow(name, scene.case.name, "pass", outcome, finding.failure or _figures(finding))


def _look(
    code: ProblemCode, scene: Scene, tolerances: dict[str, Tolerance], outputs: Values
) -> Finding:
    return worst(
        [
            check(
                a.name,
                outputs[a.name],
                scene.truth[a.name],
                scene.eager[a.name],
                tolerances[a.name],
                scene.inputs[a.name] if a.role == "inout" else None,
            )
            for a in code.written
        ]
    )


def _as_good_as_eager(code: ProblemCode, scene: Scene, outputs: Values) -> bool:
    """Whether the mutant is everywhere as near the truth as PyTorch, or as rounding."""
    for argument in code.written:
        for out, truth, eager in zip(
            _list(outputs[argument.name]),
            _list(scene.truth[argument.name]),
            _list(scene.eager[argument.name]),
            strict=True,
        ):
            allowed = torch.maximum((eager.double() - truth).abs(), _rounding(truth, out.dtype))
            error = (out.double() - truth).nan_to_num(nan=0.0)
            if bool((error.abs() > allowed.nan_to_num(nan=0.0)).any()):
                return False
    return True


def _rounding(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """By how much a value of this dtype may lie beside the truth when it is as near as it can."""
    if not dtype.is_floating_point:
        return torch.zeros_like(truth)
    return truth.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).tiny


def _mutate(code: ProblemCode, scene: Scene, mutant: Mutant) -> Values | None:
    """The mutant's outputs, or None where it does not apply to this problem."""
    outputs: Values = {}
    try:
        for argument in code.written:
            mutated = [mutant(piece) for piece in _pieces(scene, argument.name)]
            listed = argument.kind == "tensors"
            outputs[argument.name] = mutated if listed else mutated[0]
    except NotApplicableError:
        return None
    return outputs


def _pieces(scene: Scene, name: str) -> list[Piece]:
    values = _list(scene.eager[name])
    previous = _list(scene.previous[name])
    half = _list(scene.half[name]) if scene.half is not None else [None] * len(values)
    initial = _list(scene.inputs[name]) if name in scene.inputs else [None] * len(values)
    tensors = [t for v in scene.inputs.values() for t in _list(v) if isinstance(t, torch.Tensor)]
    return [
        Piece(
            value=value,
            previous=previous[i],
            half=half[i],
            initial=initial[i],
            source=next(
                (t for t in tensors if t.shape == value.shape and t.dtype == value.dtype), None
            ),
            last=i == len(values) - 1,
            listed=isinstance(scene.eager[name], list),
        )
        for i, value in enumerate(values)
    ]


def _figures(finding: Finding) -> str:
    return f"rel L2 {finding.rel_l2 or 0:.1e}, budget {finding.budget_used or 0:.2g}"


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _zeros(piece: Piece) -> torch.Tensor:
    return torch.zeros_like(piece.value)


def _constant(piece: Piece) -> torch.Tensor:
    """One number everywhere: the mean of all finite outputs."""
    finite = piece.value[torch.isfinite(piece.value)].double()
    return torch.full_like(piece.value, float(finite.mean()) if finite.numel() else 0.0)


def _row_mean(piece: Piece) -> torch.Tensor:
    mean = piece.value.double().mean(-1, keepdim=True)
    return mean.expand_as(piece.value).to(piece.value.dtype)


def _nothing_done(piece: Piece) -> torch.Tensor:
    """An `inout` argument left as it was; any other output as a copy of an input like it."""
    if piece.initial is not None:
        return piece.initial.clone()
    if piece.source is None:
        raise NotApplicableError
    return piece.source.clone()


def _unwritten(piece: Piece) -> torch.Tensor:
    if piece.initial is not None:
        raise NotApplicableError
    left = torch.empty_like(piece.value, memory_format=torch.contiguous_format)
    poison(left)
    return left


def _permuted(piece: Piece) -> torch.Tensor:
    """Every row (of a vector, every element) where its neighbour belongs."""
    columns = piece.value.shape[-1] if piece.value.dim() > 1 else 1
    return piece.value.reshape(-1, columns).roll(1, 0).reshape(piece.value.shape)


def _last_row(piece: Piece) -> torch.Tensor:
    """The last row is not computed; of a list, the last tensor."""
    if piece.listed:
        return piece.blank() if piece.last else piece.value
    dropped = piece.value.contiguous().clone()
    columns = dropped.shape[-1]
    dropped.view(-1, columns)[-1] = piece.blank().reshape(-1, columns)[-1]
    return dropped


def _last_column(piece: Piece) -> torch.Tensor:
    """The last column is not computed: a tail that the mask cut off."""
    dropped = piece.value.clone()
    dropped[..., -1] = piece.blank()[..., -1]
    return dropped


def _half(piece: Piece) -> torch.Tensor:
    if piece.half is None:
        raise NotApplicableError
    return piece.half


def _previous(piece: Piece) -> torch.Tensor:
    return piece.previous


MUTANTS: dict[str, Mutant] = {
    "zeros": _zeros,
    "constant": _constant,
    "mean of the row": _row_mean,
    "nothing done": _nothing_done,
    "nothing written": _unwritten,
    "permuted rows": _permuted,
    "last row dropped": _last_row,
    "last column dropped": _last_column,
    "half precision": _half,
    "previous output": _previous,
}
