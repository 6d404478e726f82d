"""Made-up reports for the demo server, with numbers that a grading could have.

A case takes its least time by the problem's cost formulas and the GPU's ceilings, divided by the
share of the roofline that the fastest kernel reaches, times how much slower this kernel is.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from grader.judge.score import scored
from grader.problem import Argument, Case, Problem
from grader.problem.spec import FLOATING_DTYPES
from grader.report import CaseResult, Mismatch, Report, Rule, Verdict, geometric_mean
from grader.stats import estimate
from grader.submission import Submission
from scripts.demo.attempts import Attempt, Gpu

NOTE = "example data: the demo server made this result up, and nothing of it was measured"
SANDBOX = "none (example data)"
MEMORY_SHARES, COMPUTE_SHARES = (0.7, 0.88), (0.5, 0.8)
"""The share of the roofline that the fastest kernel reaches in a case, by what limits it."""
LAUNCH_US = (1.5, 2.5)
"""The time to launch a call."""
EAGER = (1.3, 3.0)
"""PyTorch's time as a multiple of the fastest kernel's."""
UNEVEN = 0.05
"""The least spread of a kernel's speed between cases, as a share."""
OUTSIDE = 0.005
"""How far an interval reaches above its rounds at most, as a share: the judge's own clock is less
exact than the reported times."""
ROUNDS = 10
ROUND_NOISE = 0.0012
"""Standard deviation of the rounds' times, as a share."""


@dataclass(frozen=True)
class _CaseTimes:
    """The times of a benchmark case on one GPU, in microseconds."""

    case: Case
    floor_us: float
    fastest_us: float
    eager_us: float


@dataclass
class Reports:
    """The reports on one problem."""

    problem: Problem
    _times: dict[str, list[_CaseTimes]] = field(default_factory=dict)

    def report(
        self, attempt: Attempt, submission: Submission, at: datetime, rule: Rule | None
    ) -> Report:
        """The report on an attempt's file. `rule` is what a rejected one broke."""
        rng = random.Random(f"report {self.problem.name} {submission.sha256}")
        used = submission.kernel_language
        language = {"kernel_language": used.key} if used else {}
        report = Report(
            problem=self.problem.name,
            problem_digest=self.problem.digest,
            submission_sha256=submission.sha256,
            submission_name=submission.name,
            language=submission.language,
            verdict=attempt.verdict,
            reason="right on every case",
            device="cuda",
            gpu=attempt.gpu.name,
            sandbox=SANDBOX,
            environment={"example_data": True, "ceilings": _ceilings(attempt.gpu)} | language,
            notes=[NOTE],
            seed=0,
            created_at=at,
        )
        if attempt.verdict is Verdict.ACCEPTED:
            return self._accepted(report, attempt, rng)
        return report.model_copy(update=self._failed(attempt.verdict, submission, rule, rng))

    def _accepted(self, report: Report, attempt: Attempt, rng: random.Random) -> Report:
        times = self._times_on(attempt.gpu)
        uneven = _uneven(len(times), UNEVEN + 0.08 * min(attempt.slowdown - 1, 1.0), rng)
        timed = [
            _timed(self.problem, one, one.fastest_us * attempt.slowdown * factor, rng)
            for one, factor in zip(times, uneven, strict=True)
        ]
        with_cases = report.model_copy(update={"cases": [*self._passed, *timed]})
        tensor_bound = sum(_is_tensor_bound(self.problem, one.case, attempt.gpu) for one in times)
        return scored(with_cases, "full", tensor_bound / len(times))

    def _failed(
        self, verdict: Verdict, submission: Submission, rule: Rule | None, rng: random.Random
    ) -> dict[str, Any]:
        """The fields of a report with another verdict."""
        timed = self.problem.cases("benchmark", "cuda")
        left = [_not_run(case) for case in timed]
        if verdict is Verdict.WRONG_ANSWER:
            tests = list(self._passed)
            index = rng.randrange(len(tests))
            tests[index] = _wrong(self.problem, self._tests[index], rng)
            reason = f"case '{tests[index].name}': {tests[index].reason}"
            return {"reason": reason, "cases": [*tests, *left]}
        if verdict is Verdict.REJECTED:
            assert rule is not None
            why = f"broke the rule {rule.replace('_', ' ')}"
            left[0] = left[0].model_copy(update={"status": "rejected", "reason": why})
            reason = f"case '{left[0].name}': {why}"
            return {"rule": rule, "reason": reason, "cases": [*self._passed, *left]}
        return {"reason": f"{submission.name} does not become a callable entry"}

    @cached_property
    def _tests(self) -> list[Case]:
        return [*self.problem.cases("test", "cuda"), *self.problem.draw_cases("cuda", seed=0)]

    @cached_property
    def _passed(self) -> list[CaseResult]:
        """The tests, passed. All reports on the problem have the same."""
        rng = random.Random(f"tests {self.problem.name}")
        return [_passed(self.problem, case, rng) for case in self._tests]

    def _times_on(self, gpu: Gpu) -> list[_CaseTimes]:
        """The times of each benchmark case on a GPU."""
        if gpu.name not in self._times:
            rng = random.Random(f"times {self.problem.name} {gpu.name}")
            cases = self.problem.cases("benchmark", "cuda")
            self._times[gpu.name] = [_case_times(self.problem, case, gpu, rng) for case in cases]
        return self._times[gpu.name]


def _case_times(problem: Problem, case: Case, gpu: Gpu, rng: random.Random) -> _CaseTimes:
    moving_us, computing_us = gpu.times_us(problem, case)
    floor_us = max(moving_us, computing_us)
    shares = MEMORY_SHARES if moving_us >= computing_us else COMPUTE_SHARES
    fastest_us = floor_us / rng.uniform(*shares) + rng.uniform(*LAUNCH_US)
    return _CaseTimes(case, floor_us, fastest_us, fastest_us * rng.uniform(*EAGER))


def _uneven(count: int, spread: float, rng: random.Random) -> list[float]:
    """Factors with a geometric mean of 1: a kernel is not equally good at all shapes."""
    factors = [math.exp(rng.uniform(-spread, spread)) for _ in range(count)]
    mean = geometric_mean(factors)
    return [factor / mean for factor in factors]


def _timed(problem: Problem, times: _CaseTimes, time_us: float, rng: random.Random) -> CaseResult:
    noise = [rng.gauss(1, ROUND_NOISE) for _ in range(ROUNDS)]
    middle = estimate(noise).value
    round_us = [round(time_us * share / middle, 3) for share in noise]
    time_us, (low_us, high_us) = estimate(round_us)
    external_us = time_us * (1 + rng.uniform(-OUTSIDE, OUTSIDE))
    return CaseResult(
        name=times.case.name,
        kind="benchmark",
        params=times.case.params,
        status="passed",
        time_us=time_us,
        ci_us=(low_us, max(high_us, external_us)),
        external_us=external_us,
        rounds=len(round_us),
        round_us=round_us,
        converged=True,
        baseline_us={"eager": times.eager_us},
        gb_per_s=problem.bytes(times.case) / time_us / 1e3,
        tflop_per_s=problem.flops(times.case) / time_us / 1e6,
        sol=times.floor_us / time_us,
    )


def _is_tensor_bound(problem: Problem, case: Case, gpu: Gpu) -> bool:
    moving_us, computing_us = gpu.times_us(problem, case)
    return problem.unit == "tensor" and computing_us > moving_us


def _passed(problem: Problem, case: Case, rng: random.Random) -> CaseResult:
    """A test whose errors are a part of what the problem allows; zero where it allows none."""
    allowed = [
        (problem.spec.tolerances | argument.tolerances)[dtype]
        for argument in _outputs(problem)
        if (dtype := problem.dtype(argument, case)) in FLOATING_DTYPES
    ]
    share = rng.uniform(0.05, 0.5)
    rel_l2 = min((one.rel_l2 for one in allowed), default=0.0) * share / 5
    return CaseResult(
        name=case.name,
        kind="test",
        params=case.params,
        status="passed",
        max_abs_err=max((max(one.atol, one.rtol) for one in allowed), default=0.0) * share / 5,
        rel_l2=rel_l2,
        worst_slice_rel_l2=rel_l2 * 1.5,
        error_budget_used=share if allowed else 0.0,
    )


def _wrong(problem: Problem, case: Case, rng: random.Random) -> CaseResult:
    """A test in which a part of the first output's elements is wrong."""
    argument = _outputs(problem)[0]
    # The sizes of a list of tensors are known to the input generator alone.
    shape = problem.shape(argument, case) if argument.kind == "tensor" else (4096,)
    total = math.prod(shape)
    count = max(1, int(total * rng.uniform(0.02, 0.3)))
    is_float = problem.dtype(argument, case) in FLOATING_DTYPES
    expected = rng.gauss(0, 1) if is_float else 0.0
    got = expected + rng.uniform(0.2, 0.9) if is_float else 1.0
    first = rng.randrange(total)
    name = argument.name if argument.kind == "tensor" else f"{argument.name}[0]"
    index = [first // math.prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape)]
    mismatch = Mismatch(
        argument=name,
        shape=list(shape),
        index=index,
        expected=expected,
        got=got,
        wrong_elements=count,
        total_elements=total,
        histogram=_histogram(total, count)
        if is_float
        else [("exact", total - count), ("1e0", count)],
        worst_slice=f"row {first // shape[-1]}" if len(shape) > 1 else None,
    )
    return CaseResult(
        name=case.name,
        kind="test",
        params=case.params,
        status="wrong_answer",
        reason=f"{count} of {total} elements of '{argument.name}' are wrong",
        max_abs_err=got - expected,
        rel_l2=0.2,
        worst_slice_rel_l2=0.6,
        error_budget_used=1e4,
        mismatch=mismatch,
    )


def _histogram(total: int, wrong: int) -> list[tuple[str, int]]:
    """Elements by decade of their error: small ones of the right elements, large ones of the
    wrong."""
    large = wrong // 3
    right = total - wrong
    return [
        ("exact", right // 4),
        ("1e-8", right - right // 4),
        ("1e-2", large),
        ("1e-1", wrong - large),
    ]


def _not_run(case: Case) -> CaseResult:
    return CaseResult(name=case.name, kind="benchmark", params=case.params, status="not_run")


def _outputs(problem: Problem) -> list[Argument]:
    return [argument for argument in problem.spec.args if argument.role != "in"]


def _ceilings(gpu: Gpu) -> dict[str, float]:
    return {
        "bytes_per_s": gpu.bytes_per_s,
        "fp32_per_s": gpu.fp32_per_s,
        "tensor_per_s": gpu.tensor_per_s,
    }
