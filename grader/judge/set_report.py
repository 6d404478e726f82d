"""Whether a problem of another set is judged well: its own reference is accepted, and copies of the
reference's output that are wrong are not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from grader.judge.correctness.check import ExpectedOutputs, check_outputs
from grader.judge.gpu.lock import gpu_lock
from grader.judge.grade import grade
from grader.judge.import_problem import import_problem
from grader.judge.pieces import pieces
from grader.judge.problem_code import Values, map_tensors, same_values, seed_for
from grader.judge.set_code import SetCode
from grader.judge.set_host import open_host
from grader.judge.set_spec import LIMITS
from grader.problem import Problem, ProblemError
from grader.problem.imported import SetSource
from grader.problem.spec import Case, Limits
from grader.problem_sets.reference_submission import reference_submission
from grader.report import Verdict, one_line
from grader.sandbox.base import Device, RunnerLimits, Sandbox, SandboxError
from grader.sandbox.pool import RunnerPool
from grader.submission import Submission

GPU_WORDS = (b"load_inline", b"triton")
"""What only a solution for a GPU has."""

CONTEXT_BYTES = 3 << 30
"""Device memory of three processes and their libraries: the judge, the set's code, the runner."""
COPIES = 4
"""How often a problem's inputs, outputs and largest tensor are in device memory at the same time,
at most: those of the judge, those lent to the set's code and to the runner, and in float64."""

State = Literal["runs", "runs with limits", "cannot"]


@dataclass
class SetReport:
    """What is known of one problem."""

    name: str
    state: State
    reasons: list[str] = field(default_factory=list)
    """Why it cannot be judged, or what is judged less strictly."""
    tests: int = 0
    benchmarks: int = 0
    float64_cases: int = 0
    """Cases that the float64 gate judges."""
    solutions: int = 0
    """The set's own solutions that got the verdict which it expects."""
    took_s: float = 0.0


def report_problem(
    source: SetSource,
    sandbox: Sandbox,
    device: Device,
    problem: Problem | None = None,
    reserve: Callable[[int], None] | None = None,
) -> SetReport:
    """Import a problem, unless it is given, grade its own reference as a submission, and check that
    an output which is 5 % too large, one without its last slice, and zeros are wrong.

    Before tensors are made, `reserve` is called with about how many bytes of memory are needed on
    the device, and may wait for them.
    """
    start = time.monotonic()
    try:
        with ExitStack() as stack:
            with gpu_lock(device, shared=True):
                # The runner of the grading starts while the set's code is imported.
                limits = RunnerLimits.of(Limits(**LIMITS))
                pool = stack.enter_context(RunnerPool(sandbox, limits, device, refill=False))
                host = open_host(source, sandbox, device)
            if reserve is not None:
                reserve(CONTEXT_BYTES + COPIES * host.memory_bytes())
            problem = problem or import_problem(source, sandbox, device)
            report = _proved(problem, source, pool, device)
    except (ProblemError, SandboxError) as error:
        reason = str(error).removeprefix(f"{source.folder}: ")
        report = SetReport(source.name, "cannot", [reason])
    except (RuntimeError, OSError) as error:
        if "memory" not in str(error).lower():
            raise
        report = SetReport(source.name, "cannot", [f"the judge: {one_line(str(error))}"])
    report.took_s = round(time.monotonic() - start, 1)
    return report


def _proved(problem: Problem, source: SetSource, sandbox: Sandbox, device: Device) -> SetReport:
    assert problem.imported is not None
    limits = list(problem.imported.limits)
    report = SetReport(
        source.name,
        "runs with limits" if limits else "runs",
        limits,
        len(problem.cases("test", device)),
        len(problem.cases("benchmark", device)),
        len(problem.imported.wide),
    )
    result = grade(
        problem, reference_submission(source), sandbox=sandbox, device=device, benchmarks=False
    )
    if result.verdict is not Verdict.ACCEPTED:
        verdict = result.verdict.value if result.verdict else "no verdict"
        return _cannot(report, f"its own reference is {verdict}: {result.reason}")
    report.solutions, others = _solutions(problem, source, sandbox, device)
    if others:
        report.state, report.reasons = "runs with limits", [*report.reasons, *others]
    with gpu_lock(device, shared=True):
        escaped = escaped_mutants(problem, source, sandbox, device)
    if escaped:
        return _cannot(report, f"accepted although wrong: {', '.join(escaped)}")
    return report


def _solutions(
    problem: Problem, source: SetSource, sandbox: Sandbox, device: Device
) -> tuple[int, list[str]]:
    """How many of the set's own solutions got the verdict that it expects, and a line for each
    other. Those for a GPU are left out where there is none."""
    agreed, for_gpu, others = 0, 0, []
    every = _with_benchmarks_as_tests(problem)
    for name, (content, is_right) in source.solutions.items():
        if device == "cpu" and any(word in content for word in GPU_WORDS):
            for_gpu += 1
            continue
        submission = Submission("solution.py", "python", content)
        result = grade(every, submission, sandbox=sandbox, device=device, benchmarks=False)
        if (result.verdict is Verdict.ACCEPTED) == is_right:
            agreed += 1
        else:
            verdict = result.verdict.value if result.verdict else "no verdict"
            others.append(f"the set's own solution {name} is {verdict}: {result.reason}")
    if for_gpu:
        others.append(f"{for_gpu} of the set's own solutions need a GPU and were not graded")
    return agreed, others


def _with_benchmarks_as_tests(problem: Problem) -> Problem:
    """Some solutions are wrong for large inputs only. Nothing is timed, so others may use the GPU
    meanwhile."""
    spec = problem.spec
    tests = [*spec.tests, *spec.benchmarks]
    return replace(problem, spec=spec.model_copy(update={"tests": tests, "benchmarks": []}))


def _cannot(report: SetReport, reason: str) -> SetReport:
    report.state, report.reasons = "cannot", [reason]
    return report


def escaped_mutants(
    problem: Problem, source: SetSource, sandbox: Sandbox, device: Device
) -> list[str]:
    """The wrong outputs that pass the check in every case. Those that equal the right ones
    everywhere are left out."""
    code = SetCode(problem, device, open_host(source, sandbox, device))
    applied: set[str] = set()
    caught: set[str] = set()
    for case in problem.cases("test", device) + problem.cases("benchmark", device):
        _try_mutants(code, case, applied, caught)
        if caught == set(MUTANTS):
            break
    return [name for name in MUTANTS if name in applied - caught]


def _try_mutants(code: SetCode, case: Case, applied: set[str], caught: set[str]) -> None:
    """Add the mutants that change a right output of a case to `applied`, and those that fail to
    `caught`. Those that are caught already are left out."""
    inputs = code.inputs(case, seed_for(0, "mutants", case.name))
    right = code.run_eager(case, inputs)
    truth = code.run_reference(case, inputs)
    for name, mutate in MUTANTS.items():
        if name in caught:
            continue
        wrong = _mutated(right, mutate)
        if all(same_values(wrong[key], right[key]) for key in right):
            continue
        applied.add(name)
        if check_outputs(code, case, wrong, ExpectedOutputs(truth, inputs)).failure is not None:
            caught.add(name)


def _mutated(outputs: Values, mutate: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    return map_tensors(
        outputs, lambda tensor: mutate(tensor.clone(memory_format=torch.contiguous_format))
    )


def _scaled(tensor: torch.Tensor) -> torch.Tensor:
    for (piece,) in pieces(tensor):
        piece.copy_(piece.double() * 1.05)
    return tensor


def _without_last_slice(tensor: torch.Tensor) -> torch.Tensor:
    axis = next((i for i, size in enumerate(tensor.shape) if size > 1), None)
    if axis is not None:
        tensor.select(axis, -1).zero_()
    return tensor


MUTANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scaled by 1.05": _scaled,
    "without its last slice": _without_last_slice,
    "zeros": torch.Tensor.zero_,
}
"""What is done to a copy of the right outputs, by name."""
