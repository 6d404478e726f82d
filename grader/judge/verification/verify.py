"""`verify()`: every mutant must fail the problem's check, every honest implementation pass it."""

from __future__ import annotations

import torch

from grader.judge.gpu.lock import gpu_lock
from grader.judge.problem_code import ProblemCode
from grader.judge.record import Device, Progress, ProgressCallback
from grader.judge.verification import author_checks
from grader.judge.verification.case_check import (
    SEED,
    case_values,
    check_case,
    check_plausible_bugs,
)
from grader.judge.verification.result import VerificationResult
from grader.problem import Problem
from grader.problem.spec import Case

DRAWN = 8
"""Cases to draw from the domain, on a CPU too."""


def verify(
    problem: Problem, device: Device, progress: ProgressCallback = lambda _: None
) -> VerificationResult:
    """Check mutants and honest implementations on every test and benchmark case for `device`, and
    eager PyTorch on the benchmarks' variants; plausible bugs on the tests. Also check that the
    reference keeps to float64 and uses every input, and the baselines. On a GPU, report benchmarks
    that could never rank. On cases drawn from the problem's domain, `DRAWN_MUTANTS` take the place
    of the problem's own. torch.compile runs on `compiled_cases` only.

    Others that time nothing may use the GPU meanwhile. Raises `ProblemError` when the problem's own
    code fails, or the inputs of a benchmark ignore the seed.
    """
    with gpu_lock(device, shared=True):
        return _verified(problem, device, progress)


def _verified(problem: Problem, device: Device, progress: ProgressCallback) -> VerificationResult:
    code = ProblemCode(problem, device)
    listed = problem.cases("test", device) + problem.cases("benchmark", device)
    cases = listed + problem.draw_cases(device, SEED, DRAWN)
    seeded = problem.cases("benchmark", device) or listed
    ignored = author_checks.IgnoredInputs(code)
    compiled = torch.compile(code.eager, dynamic=True)
    to_compile = compiled_cases(problem, listed)
    result = VerificationResult(cases=len(cases), compiled=[case.name for case in to_compile])
    for index, case in enumerate(cases):
        progress(Progress("verify", case.name, index, len(cases)))
        code.check_deterministic(case)
        if case in seeded:
            code.check_seeded(case)
        data = case_values(code, case, SEED)
        result.rows.append(author_checks.precision_row(data))
        honest = {"eager": code.eager}
        if case in to_compile:
            honest["compile"] = compiled
        result.rows += check_case(code, data, honest, is_drawn=case not in listed)
        if case in problem.spec.tests:
            result.rows += check_plausible_bugs(code, data)
            ignored.try_case(data)
        if case in problem.spec.benchmarks:
            result.rows += author_checks.baseline_rows(code, data)
        result.rows.append(author_checks.inputs_row(code, data))
        if case in problem.spec.benchmarks:
            result.rows += [
                author_checks.variant_row(code, case, other) for other in problem.variants(case)
            ]
            if device == "cuda":
                result.rows.append(author_checks.watchable_row(problem, case, data.inputs))
    result.rows += ignored.rows()
    return result


def compiled_cases(problem: Problem, cases: list[Case]) -> list[Case]:
    """The case that moves most bytes of each combination of the arguments' dtypes.

    Compiling takes a second or more for each dtype, layout and flag, which was four fifths of a
    verification on a CPU; and after eight of them PyTorch runs a function as it is, unless told
    otherwise. The largest case has the longest sums, where compiled code may differ most.
    """
    largest: dict[tuple[str, ...], Case] = {}
    for case in cases:
        dtypes = tuple(problem.dtype(argument, case) for argument in problem.spec.args)
        known = largest.get(dtypes)
        if known is None or problem.bytes(case) > problem.bytes(known):
            largest[dtypes] = case
    return list(largest.values())
