"""The code of another set's problem, with the interface of a problem's own code.

Everything runs in the set's sandbox (`set_host`). Two gates judge an output: the set's own check,
with its own tolerance, and ours, against the reference in float64 where that computes so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from grader.arena import TensorSpec
from grader.arena.layout import dense_strides, tensor_like
from grader.judge.correctness.check import ExpectedOutputs, compare_outputs, is_left_out
from grader.judge.problem_code import ProblemCode, Values, same_values
from grader.judge.set_host import SetHost
from grader.problem import Problem
from grader.problem.imported import CaseForm, ImportedProblem, TensorForm
from grader.problem.spec import FLOATING_DTYPES, Argument, Case

PERTURBATION = 1 / 128
"""The largest relative change of fixed public data, which no submission can then know."""


class SetCode(ProblemCode):
    """A problem of another set, run by a host."""

    is_local = False
    has_budget = False

    def __init__(
        self,
        problem: Problem,
        device: str,
        host: SetHost,
        stopped: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        assert problem.imported is not None
        self.problem = problem
        self.device = device
        self._imported: ImportedProblem = problem.imported
        self._host = host
        self._stopped = stopped
        self.baselines = {}
        self.prepared = {}
        self.honest = {}
        self.mutants = {}
        self.admitted = {}
        self.written = [a for a in problem.spec.args if a.role != "in"]
        self.eager = self.reference = _never
        self._gates: dict[str, tuple[bool, bool]] = {}
        """Case → what the float64 gate and the set's own check said of its last call."""
        self._incomparable: set[str] = set()
        """Cases with inputs that the float64 gate left to the set's own check."""
        self._magnitude = None

    def inputs(self, case: Case, seed: int, call: int = 0) -> Values:
        form = self._form(case)
        tensors = [
            (a, v.form)
            for a, v in self._pairs(form)
            if isinstance(v.form, TensorForm) and a.role != "out" and not v.absent
        ]
        with self._stopped():
            specs = [_spec(a, f) for a, f in tensors]
            made = self._host.generate(self._number(case), specs, seed % 2**63)
        generator = torch.Generator(device=self.device).manual_seed(seed % 2**63)
        values: Values = {}
        found = dict(zip([a.name for a, _ in tensors], made, strict=True))
        for argument, value in self._pairs(form):
            if argument.role == "out":
                continue
            if argument.kind == "scalar":
                values[argument.name] = value.form.scalar
            elif value.absent:
                values[argument.name] = tensor_like(_spec(argument, value.form), self.device)
            else:
                tensor = found[argument.name]
                is_fixed = value.name in form.fixed and not argument.weight
                values[argument.name] = _perturbed(tensor, generator) if is_fixed else tensor
        return values

    def has_public_data(self, case: Case) -> bool:
        """Whether some of a case's inputs are the same in every grading."""
        names = {
            a.name
            for a, v in self._pairs(self._form(case))
            if v.name in self._form(case).fixed and not a.weight
        }
        if not names:
            return False
        first, second = self.inputs(case, 1), self.inputs(case, 2)
        return any(same_values(first[name], second[name]) for name in names)

    def run_reference(self, case: Case, inputs: Values) -> Values:
        """The outputs of the reference in float64, or if it does not compute so, of the reference
        as it is."""
        return self._answers(case, inputs, case.name in self._imported.wide)

    def run_eager(self, case: Case, inputs: Values) -> Values:
        return self._answers(case, inputs, False)

    def magnitude(self, case: Case, inputs: Values, truth: Values) -> Values:
        return truth

    @property
    def has_residuals(self) -> bool:
        return True

    def residuals(self, case: Case, inputs: Values, outputs: Values) -> dict[str, float]:
        """What the set's own check says of the outputs. Where one was left out, it gets the
        reference's."""
        left_out = [a.name for a in self.written if is_left_out(a, outputs[a.name])]
        if left_out:
            right = self.run_eager(case, inputs)
            outputs = outputs | {name: right[name] for name in left_out}
        written = [outputs[a.name] for a in self.written]
        given = self._tensors(case, inputs)
        with self._stopped():
            is_right, message = self._host.check(self._number(case), given, written)
        words = f"{self._imported.source.set_title}'s own check: {message or 'wrong'}"
        return {words: 0.0 if is_right else math.inf}

    def is_incomparable(self, case: Case, inputs: Values, truth: Values) -> bool:
        """Whether the reference itself is not within the bounds for these inputs. It may choose
        between values that are almost equal, as the experts of a token, and choose others in
        float64. The import has measured its error for other inputs."""
        eager = self.run_eager(case, inputs)
        results = compare_outputs(self, case, eager, ExpectedOutputs(truth, inputs))
        if all(result.failure is None for result in results):
            return False
        self._incomparable.add(case.name)
        return True

    def note_gates(self, case: Case, compared: bool, judged: bool) -> None:
        if case.name in {one.name for one in self.problem.spec.tests}:
            self._gates[case.name] = compared, judged

    def notes(self) -> list[str]:
        """What each gate said, where they disagree, and what is judged less strictly."""
        if not self._gates:
            return []
        own = f"{self._imported.source.set_title}'s own check"
        compared = self._imported.wide - self._incomparable
        wide = {n: found[0] for n, found in self._gates.items() if n in compared}
        right = sum(judged for _, judged in self._gates.values())
        lines = [f"{own}: right in {right} of {len(self._gates)} tests"]
        if wide:
            lines.append(f"the float64 gate: right in {sum(wide.values())} of {len(wide)} tests")
        for name in sorted(self._incomparable):
            why = "for these inputs, the reference's own error is above the bound"
            lines.append(f"no float64 gate in '{name}': {why}")
        for name, (near, judged) in self._gates.items():
            if name in wide and near != judged:
                says = ("right", "wrong") if judged else ("wrong", "right")
                lines.append(
                    f"the gates disagree in '{name}': {own} says {says[0]}, the float64 gate "
                    f"{says[1]}; both must pass"
                )
        return [*lines, *self._imported.limits]

    def bound(self, function: Callable[..., Any], case: Case) -> Callable[..., Any]:
        return partial(self._eager_of, case)

    def check_deterministic(self, case: Case) -> None:
        """Done when the case was described."""

    def _eager_of(self, case: Case, **inputs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(self._answers(case, inputs, False).values())

    def _answers(self, case: Case, inputs: Values, wide: bool) -> Values:
        specs = []
        for argument, value in self._pairs(self._form(case)):
            if argument.role != "in":
                assert isinstance(value.form, TensorForm)
                dtype = value.form.dtype
                dtype = "fp64" if wide and dtype in FLOATING_DTYPES else dtype
                specs.append(_packed(dtype, value.form.lent_shape(len(argument.shape))))
        given = self._tensors(case, inputs)
        with self._stopped():
            outputs = self._host.reference(self._number(case), given, specs, wide)
        return dict(zip([a.name for a in self.written], outputs, strict=True))

    def _tensors(self, case: Case, inputs: Values) -> list[torch.Tensor]:
        """The tensors that the set's code gets for a case."""
        given = [a for a, v in self._pairs(self._form(case)) if a.role != "out" and not v.absent]
        return [inputs[a.name] for a in given if a.kind == "tensor"]

    def _form(self, case: Case) -> CaseForm:
        return self._imported.forms[case.name]

    def _number(self, case: Case) -> int:
        return self._imported.numbers[case.name]

    def _pairs(self, form: CaseForm) -> Sequence[tuple[Argument, Any]]:
        return list(zip(self.problem.spec.args, form.values, strict=True))


def _never(**_: Any) -> Any:
    raise AssertionError("the reference of another set never runs in the judge")


def _spec(argument: Argument, form: TensorForm) -> TensorSpec:
    """A tensor as its set lays it out, or contiguous, if it has other dimensions there."""
    shape = form.lent_shape(len(argument.shape))
    if list(shape) != form.shape:
        return _packed(form.dtype, shape)
    return TensorSpec(0, form.dtype, shape, tuple(form.strides))


def _packed(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """A contiguous tensor."""
    return TensorSpec(0, dtype, shape, dense_strides(shape))


def _perturbed(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Fixed floating-point data with small relative changes, unless all are whole numbers, which
    may be labels or counts."""
    if not tensor.is_floating_point() or tensor.element_size() == 1:
        return tensor
    wide = tensor.double()
    if bool((wide == wide.round()).all()):
        return tensor
    noise = torch.rand(wide.shape, generator=generator, device=wide.device, dtype=wide.dtype)
    return (wide * (1 + (noise - 0.5) * 2 * PERTURBATION)).to(tensor.dtype)
