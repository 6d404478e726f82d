"""An author's mistakes: a reference that narrows below float64 or ignores an input, a wrong
baseline, a function that writes its inputs, an unfair variant, a benchmark that could never rank.
"""

from __future__ import annotations

from functools import partial

from grader.arena import arrange
from grader.judge.integrity.call_order import CallOrderWatch
from grader.judge.memory.argument_sets import arguments_of
from grader.judge.problem_code import ProblemCode, Values, same_values, seed_for
from grader.judge.verification.case_check import SEED, CaseValues, case_values, check_row
from grader.judge.verification.input_mutants import perturbed
from grader.judge.verification.result import CheckOutcome, VerificationRow
from grader.problem import Problem
from grader.problem.spec import Case, ProblemError, Tolerance

LIBRARY_REL_L2 = 0.02
"""Bound of a prepared library call, which may round its inputs: the weights of PyTorch's own int4
product meet activations in bf16."""


def variant_row(code: ProblemCode, case: Case, other: Case) -> VerificationRow:
    """Eager PyTorch on the inputs of a variant: a variant that it fails would be unfair."""
    changed = other.params.items() - case.params.items()
    name = ", ".join([case.name, *(f"{k}={v}" for k, v in changed)])
    data = case_values(code, other.model_copy(update={"name": name}), SEED)
    return check_row(code, data, "pass", "eager", data.eager)


def precision_row(data: CaseValues) -> VerificationRow:
    """Whether the reference kept to float64; below it, its rounding would be blamed on others."""
    if data.narrowed is None:
        return VerificationRow("float64 reference", data.case.name, "pass", "passed")
    detail = f"reference() narrows float64 values: {data.narrowed}; compute in float64 throughout"
    return VerificationRow("float64 reference", data.case.name, "pass", "failed", detail)


def baseline_rows(code: ProblemCode, data: CaseValues) -> list[VerificationRow]:
    """The problem's baselines, and the library calls that support a case, where they are timed."""
    rows = []
    for name, function in code.baselines.items():
        if function is not code.eager:
            outputs = code.run(function, f"{name}()", data.case, data.inputs)
            rows.append(check_row(code, data, "pass", f"baseline {name}", outputs))
    bounds = Tolerance(atol=float("inf"), rtol=0, rel_l2=LIBRARY_REL_L2)
    for name, prepare in code.prepared.items():
        what, prepared = f"{name}()", partial(code.bound(prepare, data.case), **data.inputs)
        ready = code.call(what, data.case, [data.inputs], prepared)
        if ready is not None:
            outputs = code.run(lambda *, call=ready, **_: call(), what, data.case, data.inputs)
            rows.append(check_row(code, data, "pass", f"baseline {name}", outputs, bounds))
    return rows


def inputs_row(code: ProblemCode, data: CaseValues) -> VerificationRow:
    """Whether the inputs are what they were, after all functions of the problem ran on them."""
    fresh = code.inputs(data.case, seed_for(SEED, data.case.name))
    changed = [name for name, value in fresh.items() if not same_values(value, data.inputs[name])]
    outcome: CheckOutcome = "failed" if changed else "passed"
    detail = f"a function in reference.py wrote its input '{changed[0]}'" if changed else ""
    return VerificationRow("inputs unchanged", data.case.name, "pass", outcome, detail)


class IgnoredInputs:
    """Looks for inputs that change no output of the reference, whatever their value."""

    def __init__(self, code: ProblemCode) -> None:
        self._code = code
        self._names = [a.name for a in code.problem.spec.args if a.role != "out"]

    def try_case(self, data: CaseValues) -> None:
        """Change every input that has not mattered yet, one at a time."""
        redrawn = self._code.inputs(data.case, seed_for(SEED, data.case.name, "perturbed"))
        for name in list(self._names):
            other = perturbed(data.inputs[name], redrawn[name])
            try:
                outputs = self._code.run_reference(data.case, data.inputs | {name: other})
            except ProblemError:  # it minds
                self._names.remove(name)
                continue
            if not all(same_values(value, data.truth[key]) for key, value in outputs.items()):
                self._names.remove(name)

    def rows(self) -> list[VerificationRow]:
        """A row for each input that changed nothing in any case."""
        detail = "reference() gives the same outputs whatever its value: use it, or leave it out"
        return [
            VerificationRow(f"input '{name}' is used", "every case", "pass", "failed", detail)
            for name in self._names
        ]


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
