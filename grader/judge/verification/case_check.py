"""One case's implementations and mutants, each through the check.

A mutant is what a broken or lazy kernel would leave in the outputs: those of `mutants`, made from
any problem's right outputs, and those of the problem's `checks.py`, which compute. Where a mutant
happens to equal the reference (the mean of a row of one element, permuted rows of a single row) it
proves nothing, and is reported as ``same as reference``: its error is then nowhere larger than
PyTorch's own. Where no check could tell a mutant from honest rounding, the problem admits it by
case: the check errs on the side of accepting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grader.judge.correctness.check import ExpectedOutputs, check, check_outputs, combine_results
from grader.judge.correctness.error_bound import ErrorBound, error_bounds
from grader.judge.problem_code import (
    ProblemCode,
    Values,
    listed,
    map_tensors,
    same_values,
    seed_for,
)
from grader.judge.verification.input_mutants import TAKEN_AS_1, form_of, input_mutants
from grader.judge.verification.mutants import (
    DRAWN_MUTANTS,
    MUTANTS,
    Mutant,
    NotApplicableError,
    OutputTensor,
)
from grader.judge.verification.result import CheckOutcome, Expected, VerificationRow
from grader.problem.load import CHECKS_FILE
from grader.problem.spec import Case, ProblemError, Tolerance

SEED = 20_261
"""Verification needs no secrecy; a fixed seed makes it repeatable."""


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
    """Eager PyTorch's outputs through bfloat16; None if none is a wider floating-point tensor."""
    bounds: dict[str, ErrorBound]
    """The error bounds of the outputs."""
    narrowed: str | None
    """The first operator of the reference that narrowed float64 values, and to which dtype."""


def check_case(
    code: ProblemCode,
    data: CaseValues,
    honest: dict[str, Callable[..., Any]],
    is_drawn: bool = False,
) -> Iterator[VerificationRow]:
    """Check every mutant, the honest implementations given, by name, and those of the problem."""
    for name, mutant in (MUTANTS | DRAWN_MUTANTS if is_drawn else MUTANTS).items():
        try:
            outputs = _mutate(code, data, mutant)
        except NotApplicableError as reason:
            yield VerificationRow(name, data.case.name, "fail", "left out", str(reason))
        else:
            yield check_row(code, data, "fail", name, outputs)
    # Which of them a drawn case admits, no author could say beforehand.
    for name, broken in ({} if is_drawn else code.mutants).items():
        found = _run(code, data, name, broken, CHECKS_FILE)
        if found is not None:
            yield check_row(code, data, "fail", name, found)
    for name, implementation in (honest | code.honest).items():
        file = CHECKS_FILE if name in code.honest else "reference.py"
        found = _run(code, data, name, implementation, file)
        if found is not None:
            yield check_row(code, data, "pass", name, found)


def check_plausible_bugs(code: ProblemCode, data: CaseValues) -> Iterator[VerificationRow]:
    """Check what kernels give that read an input wrongly, or swap two outputs."""
    for name, inputs in input_mutants(code.problem.spec.args, data.inputs):
        if name.endswith(TAKEN_AS_1) and all(
            same_values(value, data.inputs[key]) for key, value in inputs.items()
        ):
            # Not a bug of this case, but one that no case may show.
            detail = "it is 1 in every case: let it vary"
            yield VerificationRow(name, data.case.name, "fail once", "passed", detail)
            continue
        try:
            outputs = code.run_eager(data.case, inputs)
        except ProblemError as error:  # such values may be no inputs of this problem
            yield VerificationRow(name, data.case.name, "fail once", "left out", str(error))
            continue
        yield check_row(code, data, "fail once", name, outputs)
    for one, other in combinations(code.written, 2):
        first, second = data.eager[one.name], data.eager[other.name]
        if one.kind == other.kind and form_of(first) == form_of(second):
            name = f"outputs '{one.name}' and '{other.name}' swapped"
            outputs = data.eager | {one.name: second, other.name: first}
            yield check_row(code, data, "fail once", name, outputs)


def _run(
    code: ProblemCode, data: CaseValues, name: str, function: Callable[..., Any], file: str
) -> Values | None:
    """The outputs of an implementation, which stands in `file`; or None if it returns None: it has
    no meaning there."""
    applies = True

    def known(**inputs: Any) -> Any:
        nonlocal applies
        returned = code.bound(function, data.case)(**inputs)
        applies = returned is not None
        return returned if applies else tuple(data.eager.values())

    outputs = code.run(known, f"'{name}'", data.case, data.inputs, file)
    return outputs if applies else None


def case_values(code: ProblemCode, case: Case, seed: int) -> CaseValues:
    """Inputs of a case by a master seed, and the outputs that mutants are made of."""
    inputs = code.inputs(case, seed_for(seed, case.name))
    other = code.inputs(case, seed_for(seed, case.name, "previous"))
    eager = code.run_eager(case, inputs)
    half = None
    if any(_is_wide(t) for value in eager.values() for t in listed(value)):
        half = map_tensors(code.run_eager(case, map_tensors(inputs, _through_half)), _through_half)
    with _NarrowingWatch() as watch:
        truth = code.run_reference(case, inputs)
    bounds = error_bounds(code, case, inputs, truth)
    previous = code.run_eager(case, other)
    return CaseValues(case, inputs, truth, eager, previous, half, bounds, watch.found)


def _is_wide(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 2


def _through_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor


def check_row(
    code: ProblemCode,
    data: CaseValues,
    expected: Expected,
    name: str,
    outputs: Values,
    bounds: Tolerance | None = None,
) -> VerificationRow:
    """Check against every bound of the problem; or with `bounds` against those, and no budget."""
    explained = expected == "pass"  # that a mutant fails needs no explanation
    if bounds is None:
        right = ExpectedOutputs(data.truth, data.inputs, data.eager, data.bounds)
        result = check_outputs(code, data.case, outputs, right, explained)
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
    if expected != "pass" and outcome == "passed":
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
            listed(outputs[argument.name]),
            listed(data.truth[argument.name]),
            listed(data.eager[argument.name]),
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


def _mutate(code: ProblemCode, data: CaseValues, mutant: Mutant) -> Values:
    """The mutant's outputs; right tensors where it does not apply. Raises `NotApplicableError`
    where it applies to none."""
    outputs: Values = {}
    reasons: list[NotApplicableError] = []
    applies = False
    for argument in code.written:
        mutated = []
        for output in _output_tensors(data, argument.name):
            try:
                mutated.append(mutant(output))
                applies = True
            except NotApplicableError as reason:
                reasons.append(reason)
                mutated.append(output.value)
        outputs[argument.name] = mutated if argument.kind == "tensors" else mutated[0]
    if not applies:
        raise reasons[0]
    return outputs


def _output_tensors(data: CaseValues, name: str) -> list[OutputTensor]:
    values = listed(data.eager[name])
    previous = listed(data.previous[name])
    half = listed(data.half[name]) if data.half is not None else [None] * len(values)
    initial = listed(data.inputs[name]) if name in data.inputs else [None] * len(values)
    tensors = [t for v in data.inputs.values() for t in listed(v) if isinstance(t, torch.Tensor)]
    return [
        OutputTensor(
            value=value,
            previous=previous[i],
            half=half[i] if _is_wide(value) else None,
            initial=initial[i],
            source=next(
                (t for t in tensors if t.shape == value.shape and t.dtype == value.dtype), None
            ),
            last=i == len(values) - 1,
            listed=isinstance(data.eager[name], list),
        )
        for i, value in enumerate(values)
    ]


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
