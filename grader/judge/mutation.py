"""Mutation testing of a problem's check: every mutant must fail, every honest implementation pass.

A mutant is what a broken or lazy kernel would leave in the outputs. Where a mutant happens to equal
the reference (the mean of a row of one element, permuted rows of a single row) it proves nothing,
and is reported as ``same as reference``: its error is then nowhere larger than PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from grader.arena import arrange
from grader.judge.correctness.check import CheckResult, check, combine_results, tolerance_of
from grader.judge.integrity.call_order import CallOrderWatch
from grader.judge.memory.argument_sets import arguments_of
from grader.judge.memory.shared_block import poison
from grader.judge.problem_code import ProblemCode, Values, map_tensors, seed_for
from grader.judge.record import Device, Progress, ProgressCallback
from grader.problem import Problem
from grader.problem.spec import Case

SEED = 20_261
"""Verification needs no secrecy; a fixed seed makes it repeatable."""

DRAWN = 8
"""Cases to draw from the domain, on a CPU too."""

CheckOutcome = Literal["failed", "passed", "same as reference"]


@dataclass(frozen=True)
class VerificationRow:
    """The check of one implementation or mutant on one case."""

    name: str
    case: str
    expected: Literal["fail", "pass"]
    outcome: CheckOutcome
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the outcome is not the opposite of the expected one."""
        return self.outcome != ("passed" if self.expected == "fail" else "failed")


@dataclass
class VerificationResult:
    """All rows; `ok` when the problem may be published."""

    rows: list[VerificationRow] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every row is ok, and every mutant failed at least once."""
        caught = {row.name for row in self.rows if row.outcome == "failed"}
        mutants = {row.name for row in self.rows if row.expected == "fail"}
        return all(row.ok for row in self.rows) and mutants == caught


@dataclass(frozen=True)
class CaseValues:
    """One case with everything that a mutant may use; outputs by name."""

    case: Case
    inputs: Values
    truth: Values
    """The float64 reference."""
    eager: Values
    """Eager PyTorch's outputs."""
    previous: Values
    """Eager PyTorch's outputs for other inputs of the same case."""
    half: Values | None
    """Eager PyTorch's outputs through bfloat16; None if outputs are 16 bits wide anyway."""


@dataclass(frozen=True)
class OutputTensor:
    """One output tensor, or one tensor of an output list, as a mutant sees it."""

    value: torch.Tensor
    """The right output, in the output's dtype."""
    previous: torch.Tensor
    half: torch.Tensor | None
    initial: torch.Tensor | None
    """Its value before the call, for `inout` arguments."""
    source: torch.Tensor | None
    """An input of the same shape and dtype, if there is one."""
    last: bool
    """Whether it is the last of its list; true for a single tensor."""
    listed: bool

    def blank(self) -> torch.Tensor:
        """The output when nothing is computed: the initial state, or zeros."""
        return torch.zeros_like(self.value) if self.initial is None else self.initial.clone()


class NotApplicableError(Exception):
    """This mutant has no meaning for this output."""


Mutant = Callable[[OutputTensor], torch.Tensor]


def verify(
    problem: Problem, device: Device, progress: ProgressCallback = lambda _: None
) -> VerificationResult:
    """Check mutants and honest implementations on every test and benchmark case for `device`, and
    eager PyTorch on the benchmarks' variants. On a GPU, report benchmarks that could never rank.
    Cases drawn from the problem's domain are checked too, and catch one more mutant.

    Raises `ProblemError` when the problem's own code fails.
    """
    code = ProblemCode(problem, device)
    result = VerificationResult()
    drawn = problem.draw_cases(device, SEED, DRAWN)
    cases = problem.cases("test", device) + problem.cases("benchmark", device) + drawn
    compiled = torch.compile(code.eager, dynamic=True)
    for index, case in enumerate(cases):
        progress(Progress("verify", case.name, index, len(cases)))
        code.check_deterministic(case)
        data = _case_values(code, case)
        mutants = MUTANTS | DRAWN_MUTANTS if case in drawn else MUTANTS
        for name, mutant in mutants.items():
            outputs = _mutate(code, data, mutant)
            if outputs is not None:
                result.rows.append(_row(code, data, "fail", name, outputs))
        for name, run in {"eager": code.eager, "compile": compiled}.items():
            outputs = code.run(run, f"{name}()", case, data.inputs)
            result.rows.append(_row(code, data, "pass", name, outputs))
        if case in problem.spec.benchmarks:
            result.rows += [_variant_row(code, case, other) for other in problem.variants(case)]
            if device == "cuda":
                result.rows.append(watchable_row(problem, case, data.inputs))
    return result


def _variant_row(code: ProblemCode, case: Case, other: Case) -> VerificationRow:
    """Eager PyTorch on the inputs of a variant: a variant that it fails would be unfair."""
    changed = other.params.items() - case.params.items()
    name = ", ".join([case.name, *(f"{k}={v}" for k, v in changed)])
    data = _case_values(code, other.model_copy(update={"name": name}))
    return _row(code, data, "pass", "eager", data.eager)


def watchable_row(problem: Problem, case: Case, inputs: Values) -> VerificationRow:
    """Whether the judge can watch the rounds of a benchmark case; other cases never rank."""
    layout = arrange([arguments_of(problem, case, inputs)])
    written_bytes = layout.nbytes - layout.writable_at
    if CallOrderWatch.reaches(written_bytes):
        return VerificationRow("watched rounds", case.name, "pass", "passed")
    detail = (
        f"a call writes {written_bytes:,} bytes, too many for the judge to watch, so its times "
        "never rank: make the case smaller"
    )
    return VerificationRow("watched rounds", case.name, "pass", "failed", detail)


def _case_values(code: ProblemCode, case: Case) -> CaseValues:
    inputs = code.inputs(case, seed_for(SEED, case.name))
    other = code.inputs(case, seed_for(SEED, case.name, "previous"))
    eager = code.run_eager(case, inputs)
    is_wide = all(t.element_size() > 2 for value in eager.values() for t in _list(value))
    half = None
    if is_wide:
        half = map_tensors(code.run_eager(case, map_tensors(inputs, _through_half)), _through_half)
    return CaseValues(
        case, inputs, code.run_reference(case, inputs), eager, code.run_eager(case, other), half
    )


def _through_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor


def _row(
    code: ProblemCode,
    data: CaseValues,
    expected: Literal["fail", "pass"],
    name: str,
    outputs: Values,
) -> VerificationRow:
    result = _check_outputs(code, data, outputs)
    outcome: CheckOutcome = "passed" if result.failure is None else "failed"
    if expected == "fail" and outcome == "passed" and _is_reference(code, data, outputs):
        outcome = "same as reference"
    figures = f"rel L2 {result.rel_l2 or 0:.1e}, budget {result.budget_used or 0:.2g}"
    return VerificationRow(name, data.case.name, expected, outcome, result.failure or figures)


def _check_outputs(code: ProblemCode, data: CaseValues, outputs: Values) -> CheckResult:
    return combine_results(
        [
            check(
                a.name,
                outputs[a.name],
                data.truth[a.name],
                data.eager[a.name],
                tolerance_of(code.problem, a, data.case),
                data.inputs[a.name] if a.role == "inout" else None,
            )
            for a in code.written
        ]
    )


def _is_reference(code: ProblemCode, data: CaseValues, outputs: Values) -> bool:
    """Whether each element's error is at most eager PyTorch's, or at most one rounding."""
    for argument in code.written:
        for out, truth, eager in zip(
            _list(outputs[argument.name]),
            _list(data.truth[argument.name]),
            _list(data.eager[argument.name]),
            strict=True,
        ):
            allowed = torch.maximum((eager.double() - truth).abs(), _rounding(truth, out.dtype))
            error = (out.double() - truth).nan_to_num(nan=0.0)
            if bool((error.abs() > allowed.nan_to_num(nan=0.0)).any()):
                return False
    return True


def _rounding(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rounding error that a value of this dtype may have relative to the float64 reference."""
    if not dtype.is_floating_point:
        return torch.zeros_like(truth)
    return truth.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).tiny


def _mutate(code: ProblemCode, data: CaseValues, mutant: Mutant) -> Values | None:
    """The mutant's outputs, or None if it does not apply to this problem."""
    outputs: Values = {}
    try:
        for argument in code.written:
            mutated = [mutant(output) for output in _output_tensors(data, argument.name)]
            listed = argument.kind == "tensors"
            outputs[argument.name] = mutated if listed else mutated[0]
    except NotApplicableError:
        return None
    return outputs


def _output_tensors(data: CaseValues, name: str) -> list[OutputTensor]:
    values = _list(data.eager[name])
    previous = _list(data.previous[name])
    half = _list(data.half[name]) if data.half is not None else [None] * len(values)
    initial = _list(data.inputs[name]) if name in data.inputs else [None] * len(values)
    tensors = [t for v in data.inputs.values() for t in _list(v) if isinstance(t, torch.Tensor)]
    return [
        OutputTensor(
            value=value,
            previous=previous[i],
            half=half[i],
            initial=initial[i],
            source=next(
                (t for t in tensors if t.shape == value.shape and t.dtype == value.dtype), None
            ),
            last=i == len(values) - 1,
            listed=isinstance(data.eager[name], list),
        )
        for i, value in enumerate(values)
    ]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _zeros(output: OutputTensor) -> torch.Tensor:
    return torch.zeros_like(output.value)


def _constant(output: OutputTensor) -> torch.Tensor:
    """One number everywhere: the mean of all finite outputs."""
    finite = output.value[torch.isfinite(output.value)].double()
    return torch.full_like(output.value, float(finite.mean()) if finite.numel() else 0.0)


def _row_mean(output: OutputTensor) -> torch.Tensor:
    mean = output.value.double().mean(-1, keepdim=True)
    return mean.expand_as(output.value).to(output.value.dtype)


def _nothing_done(output: OutputTensor) -> torch.Tensor:
    """An `inout` argument unchanged; any other output as a copy of a similar input."""
    if output.initial is not None:
        return output.initial.clone()
    if output.source is None:
        raise NotApplicableError
    return output.source.clone()


def _unwritten(output: OutputTensor) -> torch.Tensor:
    if output.initial is not None:
        raise NotApplicableError
    left = torch.empty_like(output.value, memory_format=torch.contiguous_format)
    poison(left)
    return left


def _permuted(output: OutputTensor) -> torch.Tensor:
    """Every row (of a vector, every element) in the place of its neighbour."""
    columns = output.value.shape[-1] if output.value.dim() > 1 else 1
    return output.value.reshape(-1, columns).roll(1, 0).reshape(output.value.shape)


def _last_row(output: OutputTensor) -> torch.Tensor:
    """The last row, or the last tensor of a list, is not computed."""
    if output.listed:
        return output.blank() if output.last else output.value
    dropped = output.value.contiguous().clone()
    columns = dropped.shape[-1]
    dropped.view(-1, columns)[-1] = output.blank().reshape(-1, columns)[-1]
    return dropped


def _last_column(output: OutputTensor) -> torch.Tensor:
    """The last column is not computed: the tail that a wrong mask cuts off."""
    dropped = output.value.clone()
    dropped[..., -1] = output.blank()[..., -1]
    return dropped


def _half(output: OutputTensor) -> torch.Tensor:
    if output.half is None:
        raise NotApplicableError
    return output.half


def _previous(output: OutputTensor) -> torch.Tensor:
    return output.previous


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

DRAWN_MUTANTS: dict[str, Mutant] = {"right on the listed shapes only": OutputTensor.blank}
"""What only a drawn case can show: on every listed case, the outputs are right."""
