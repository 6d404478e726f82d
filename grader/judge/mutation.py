"""Mutation testing of a problem's check: every mutant must fail, every honest implementation pass.

A mutant is what a broken or lazy kernel would leave in the outputs: those of this module, made from
any problem's right outputs, and those of the problem's `checks.py`, which compute. Where a mutant
happens to equal the reference (the mean of a row of one element, permuted rows of a single row) it
proves nothing, and is reported as ``same as reference``: its error is then nowhere larger than
PyTorch's own. Where no check could tell a mutant from honest rounding, the problem admits it by
case: the check errs on the side of accepting.

An author's mistakes are looked for besides: a reference that narrows below float64, a baseline that
is wrong, a function that writes its inputs, inputs that ignore their seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grader.arena import arrange
from grader.judge.correctness.check import check, check_outputs, combine_results
from grader.judge.correctness.error_bound import ErrorBound, error_bounds
from grader.judge.integrity.call_order import CallOrderWatch
from grader.judge.memory.argument_sets import arguments_of
from grader.judge.memory.shared_block import poison
from grader.judge.problem_code import ProblemCode, Values, map_tensors, same_values, seed_for
from grader.judge.record import Device, Progress, ProgressCallback
from grader.problem import Problem
from grader.problem.load import CHECKS_FILE
from grader.problem.spec import Case, Tolerance

SEED = 20_261
"""Verification needs no secrecy; a fixed seed makes it repeatable."""

DRAWN = 8
"""Cases to draw from the domain, on a CPU too."""
LEAST_SHARE = 1e-3
"""Honest implementations that use less of their bounds count as using this much in a margin."""
LIBRARY_REL_L2 = 0.02
"""Bound of a prepared library call, which may round its inputs: the weights of PyTorch's own int4
product meet activations in bf16."""

CheckOutcome = Literal["failed", "passed", "same as reference", "admitted"]


@dataclass(frozen=True)
class VerificationRow:
    """The check of one implementation or mutant on one case."""

    name: str
    case: str
    expected: Literal["fail", "pass"]
    outcome: CheckOutcome
    detail: str = ""
    used: float = 0.0
    """The largest share of any bound that the outputs use; more than 1 fails."""

    @property
    def ok(self) -> bool:
        """Whether the outcome is not the opposite of the expected one."""
        return self.outcome != ("passed" if self.expected == "fail" else "failed")


@dataclass(frozen=True)
class CaseMargin:
    """How far apart the check keeps honest and broken implementations in one case."""

    case: str
    honest: VerificationRow
    """The honest implementation that uses most of its bounds."""
    mutant: VerificationRow | None
    """The mutant that fails by the least; None if none fails."""
    admitted: list[str]
    """The mutants that the case admits."""

    @property
    def ratio(self) -> float | None:
        """What the mutant uses of the bounds, over what the honest implementation uses; infinite
        for a mutant without numbers."""
        if self.mutant is None:
            return None
        return self.mutant.used / max(self.honest.used, LEAST_SHARE)


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

    def margins(self) -> list[CaseMargin]:
        """The margin of each case, in order; cases without an honest implementation left out."""
        found = []
        for case in dict.fromkeys(row.case for row in self.rows):
            rows = [row for row in self.rows if row.case == case]
            honest = [row for row in rows if row.expected == "pass"]
            mutants = [row for row in rows if row.outcome == "failed" and row.expected == "fail"]
            if honest:
                found.append(
                    CaseMargin(
                        case,
                        max(honest, key=lambda row: row.used),
                        min(mutants, key=lambda row: row.used, default=None),
                        [row.name for row in rows if row.outcome == "admitted"],
                    )
                )
        return found


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
    bounds: dict[str, ErrorBound]
    """The error bounds of the outputs."""
    narrowed: str | None
    """The first operator of the reference that narrowed float64 values, and to which dtype."""


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
    eager PyTorch on the benchmarks' variants. Also check the reference's precision and the
    baselines. On a GPU, report benchmarks that could never rank. On cases drawn from the problem's
    domain, `DRAWN_MUTANTS` take the place of the problem's own.

    Raises `ProblemError` when the problem's own code fails, or the inputs of a benchmark ignore the
    seed.
    """
    code = ProblemCode(problem, device)
    result = VerificationResult()
    listed = problem.cases("test", device) + problem.cases("benchmark", device)
    cases = listed + problem.draw_cases(device, SEED, DRAWN)
    seeded = problem.cases("benchmark", device) or listed
    compiled = torch.compile(code.eager, dynamic=True)
    for index, case in enumerate(cases):
        progress(Progress("verify", case.name, index, len(cases)))
        code.check_deterministic(case)
        if case in seeded:
            code.check_seeded(case)
        data = case_values(code, case, SEED)
        result.rows.append(_precision_row(data))
        honest = {"eager": code.eager, "compile": compiled}
        result.rows += check_case(code, data, honest, is_drawn=case not in listed)
        if case in problem.spec.benchmarks:
            result.rows += _baseline_rows(code, data)
        result.rows.append(_inputs_row(code, data))
        if case in problem.spec.benchmarks:
            result.rows += [_variant_row(code, case, other) for other in problem.variants(case)]
            if device == "cuda":
                result.rows.append(watchable_row(problem, case, data.inputs))
    return result


def check_case(
    code: ProblemCode,
    data: CaseValues,
    honest: dict[str, Callable[..., Any]],
    is_drawn: bool = False,
) -> Iterator[VerificationRow]:
    """Check every mutant, the honest implementations given, by name, and those of the problem."""
    for name, mutant in (MUTANTS | DRAWN_MUTANTS if is_drawn else MUTANTS).items():
        outputs = _mutate(code, data, mutant)
        if outputs is not None:
            yield _row(code, data, "fail", name, outputs)
    # Which of them a drawn case admits, no author could say beforehand.
    for name, broken in ({} if is_drawn else code.mutants).items():
        outputs = _run(code, data, name, broken, CHECKS_FILE)
        if outputs is not None:
            yield _row(code, data, "fail", name, outputs)
    for name, implementation in (honest | code.honest).items():
        file = CHECKS_FILE if name in code.honest else "reference.py"
        outputs = _run(code, data, name, implementation, file)
        if outputs is not None:
            yield _row(code, data, "pass", name, outputs)


def _run(
    code: ProblemCode, data: CaseValues, name: str, function: Callable[..., Any], file: str
) -> Values | None:
    """The outputs of an implementation, which stands in `file`; or None if it returns None: it has
    no meaning there."""
    applies = True

    def known(**inputs: Any) -> Any:
        nonlocal applies
        returned = function(**inputs)
        applies = returned is not None
        return returned if applies else tuple(data.eager.values())

    outputs = code.run(known, f"'{name}'", data.case, data.inputs, file)
    return outputs if applies else None


def _variant_row(code: ProblemCode, case: Case, other: Case) -> VerificationRow:
    """Eager PyTorch on the inputs of a variant: a variant that it fails would be unfair."""
    changed = other.params.items() - case.params.items()
    name = ", ".join([case.name, *(f"{k}={v}" for k, v in changed)])
    data = case_values(code, other.model_copy(update={"name": name}), SEED)
    return _row(code, data, "pass", "eager", data.eager)


def _precision_row(data: CaseValues) -> VerificationRow:
    """Whether the reference kept to float64; below it, its rounding would be blamed on others."""
    if data.narrowed is None:
        return VerificationRow("float64 reference", data.case.name, "pass", "passed")
    detail = f"reference() narrows float64 values: {data.narrowed}; compute in float64 throughout"
    return VerificationRow("float64 reference", data.case.name, "pass", "failed", detail)


class _NarrowingWatch(TorchDispatchMode):
    """Notes the first operator that turns float64 values into narrower ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.found is None and torch.float64 in _floating_dtypes((args, kwargs)):
            narrow = _floating_dtypes(result) - {torch.float64}
            if narrow:
                self.found = f"{func.overloadpacket.__name__} gives {min(map(str, narrow))}"
        return result


def _floating_dtypes(tree: Any) -> set[torch.dtype]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def _baseline_rows(code: ProblemCode, data: CaseValues) -> list[VerificationRow]:
    """The problem's baselines, and the library calls that support a case, where they are timed."""
    rows = []
    for name, function in code.baselines.items():
        if function is not code.eager:
            outputs = code.run(function, f"{name}()", data.case, data.inputs)
            rows.append(_row(code, data, "pass", f"baseline {name}", outputs))
    bounds = Tolerance(atol=float("inf"), rtol=0, rel_l2=LIBRARY_REL_L2)
    for name, prepare in code.prepared.items():
        what, prepared = f"{name}()", partial(prepare, **data.inputs)
        ready = code.call(what, data.case, [data.inputs], prepared)
        if ready is not None:
            outputs = code.run(lambda *, call=ready, **_: call(), what, data.case, data.inputs)
            rows.append(_row(code, data, "pass", f"baseline {name}", outputs, bounds))
    return rows


def _inputs_row(code: ProblemCode, data: CaseValues) -> VerificationRow:
    """Whether the inputs are what they were, after all functions of the problem ran on them."""
    fresh = code.inputs(data.case, seed_for(SEED, data.case.name))
    changed = [name for name, value in fresh.items() if not same_values(value, data.inputs[name])]
    outcome: CheckOutcome = "failed" if changed else "passed"
    detail = f"a function in reference.py wrote its input '{changed[0]}'" if changed else ""
    return VerificationRow("inputs unchanged", data.case.name, "pass", outcome, detail)


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


def case_values(code: ProblemCode, case: Case, seed: int) -> CaseValues:
    """Inputs of a case by a master seed, and the outputs that mutants are made of."""
    inputs = code.inputs(case, seed_for(seed, case.name))
    other = code.inputs(case, seed_for(seed, case.name, "previous"))
    eager = code.run_eager(case, inputs)
    is_wide = all(t.element_size() > 2 for value in eager.values() for t in _list(value))
    half = None
    if is_wide:
        half = map_tensors(code.run_eager(case, map_tensors(inputs, _through_half)), _through_half)
    with _NarrowingWatch() as watch:
        truth = code.run_reference(case, inputs)
    bounds = error_bounds(code, case, inputs, truth)
    previous = code.run_eager(case, other)
    return CaseValues(case, inputs, truth, eager, previous, half, bounds, watch.found)


def _through_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor


def _row(
    code: ProblemCode,
    data: CaseValues,
    expected: Literal["fail", "pass"],
    name: str,
    outputs: Values,
    bounds: Tolerance | None = None,
) -> VerificationRow:
    """Check against every bound of the problem; or with `bounds` against those, and no budget."""
    if bounds is None:
        result = check_outputs(
            code, data.case, outputs, data.truth, data.eager, data.inputs, data.bounds
        )
    else:
        result = combine_results(
            [
                check(
                    a.name,
                    outputs[a.name],
                    data.truth[a.name],
                    None,
                    bounds,
                    data.inputs[a.name] if a.role == "inout" else None,
                )
                for a in code.written
            ]
        )
    outcome: CheckOutcome = "passed" if result.failure is None else "failed"
    if expected == "fail" and outcome == "passed":
        if _is_reference(code, data, outputs):
            outcome = "same as reference"
        elif data.case.name in code.admitted.get(name, ()):
            outcome = "admitted"
    figures = f"rel L2 {result.rel_l2 or 0:.1e}, budget {result.budget_used or 0:.2g}"
    detail = result.failure or figures
    return VerificationRow(name, data.case.name, expected, outcome, detail, result.used)


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
