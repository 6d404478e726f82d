"""A board after two weeks of use: improvements, ties, mistakes, and hostile text.

Every submission goes through a real ledger: submitted, claimed, begun and finished.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from grader.fleet import Ledger
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import CaseResult, Mismatch, Report, geometric_mean
from grader.stats import Estimate, estimate, product_interval
from grader.submission import Submission
from tests.fleet.conftest import Clock

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
BYTES_PER_S = {H100: 3.35e12, A100: 2.04e12}
EAGER_SOL = 0.62

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)>"
"""Hostile text for every field that a competitor may choose."""

ATTACK_NAME = "<img src=x onerror=alert(4)>"
"""Hostile text as short as a user's name must be."""

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=float("-inf")).to(tl.float32)
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * cols + at, weights / tl.sum(weights, axis=0), mask=at < cols)


def softmax(x, out):
    kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
"""


def accepted(problem: Problem, sol: float, gpu: str = H100, noise: int = 0) -> dict[str, Any]:
    """The fields of an accepted, ranked report that reaches about `sol` of the roofline."""
    rng = random.Random(f"{sol} {noise}")
    tests = problem.cases("test", "cuda") + problem.draw_cases("cuda", noise)
    results = [_tested(case) for case in tests]
    timed = [
        _timed(problem, case, sol * rng.uniform(0.93, 1.07), gpu, rng)
        for case in problem.cases("benchmark", "cuda")
    ]
    times = [case.time_us for case in timed if case.time_us]
    ratios = {
        name: geometric_mean([case.baseline_us[name] / (case.time_us or 1) for case in timed])
        for name in ("eager", "compiled")
    }
    return {
        "verdict": "accepted",
        "reason": f"all {len(results + timed)} cases passed",
        "gpu": gpu,
        "device": "cuda",
        "ranked": True,
        "score_us": geometric_mean(times),
        "score_ci_us": product_interval(
            [Estimate(case.time_us, case.ci_us) for case in timed if case.time_us and case.ci_us]
        ),
        "speedup": ratios,
        "cases": results + timed,
    }


def cpu_accepted(problem: Problem) -> dict[str, Any]:
    """The fields of a report that was accepted on a CPU, and so is not ranked."""
    rng = random.Random(3)
    timed = [
        CaseResult(
            name=case.name, kind="benchmark", params=case.params, status="passed",
            time_us=(time := rng.uniform(4e4, 9e4)), ci_us=(time * 0.98, time * 1.03),
            baseline_us={"eager": 61.5},
        )
        for case in problem.cases("benchmark", "cpu")
    ]  # fmt: skip
    tests = [_tested(case) for case in problem.cases("test", "cpu")]
    return {
        "verdict": "accepted", "reason": "all cases passed", "device": "cpu", "gpu": None,
        "ranked": False, "cases": tests + timed,
    }  # fmt: skip


def wrong(problem: Problem, reason: str = "row 5 is off by 3.1e-01") -> dict[str, Any]:
    """The fields of a report whose third test is wrong, after which no case ran."""
    first, second, third, *rest = problem.cases("test", "cuda")
    mismatch = Mismatch(
        argument="out", shape=[13, 127], index=[5, 96], expected=0.00731, got=float("nan"),
        wrong_elements=412, total_elements=1651, worst_slice="row 5",
        histogram=[("exact", 61), ("1e-9", 803), ("1e-8", 375), ("1e-2", 180), ("1e-1", 228),
                   ("nan or inf", 4)],
    )  # fmt: skip
    failed = CaseResult(
        name=third.name, kind="test", params=third.params, status="wrong_answer", reason=reason,
        max_abs_err=0.31, rel_l2=0.2, worst_slice_rel_l2=0.9, error_budget_used=4.1e6,
        mismatch=mismatch,
    )  # fmt: skip
    left = [
        CaseResult(name=case.name, kind="test", params=case.params, status="not_run")
        for case in rest
    ]
    left += [
        CaseResult(name=case.name, kind="benchmark", params=case.params, status="not_run")
        for case in problem.cases("benchmark", "cuda")
    ]
    return {
        "verdict": "wrong_answer", "reason": f"test {third.name}: {reason}", "device": "cuda",
        "gpu": H100, "ranked": False, "cases": [_tested(first), _tested(second), failed, *left],
    }  # fmt: skip


def failed(verdict: str, reason: str, log: str = "") -> dict[str, Any]:
    """The fields of a report without cases."""
    return {
        "verdict": verdict, "reason": reason, "device": "cuda", "gpu": H100, "ranked": False,
        "cases": [], "log": log,
    }  # fmt: skip


def queue_submission(
    ledger: Ledger,
    problem: Problem,
    user: str,
    *,
    name: str = "softmax.py",
    source: str = SOURCE,
    gpu: str | None = None,
) -> int:
    """Queue a submission. Returns its number."""
    language: Any = "cuda" if name.endswith(".cu") else "python"
    submission = Submission(name, language, source.encode())
    return ledger.submit(user, problem.name, problem.digest, submission, gpu, max_in_flight=1000)


def finish(ledger: Ledger, clock: Callable[[], datetime], fields: dict[str, Any]) -> int:
    """Finish the oldest waiting submission with these fields. Returns the result's number."""
    lease = ledger.claim("worker-1", lease_s=30)
    assert lease is not None
    assert ledger.begin(lease)
    report = Report.model_validate(
        {
            "problem": lease.problem,
            "problem_digest": lease.problem_digest,
            "submission_sha256": Submission(lease.name, lease.language, lease.source).sha256,
            "submission_name": lease.name,
            "language": lease.language,
            "sandbox": "docker",
            "seed": 4242424242,
            "created_at": clock(),
            "stages_s": {
                "sandbox_start": 0.41, "load": 3.2, "test": 6.1, "benchmark": 11.9, "total": 21.7,
            },
            "environment": {"torch": "2.11.0+cu130", "triton": "3.6.0", "driver": "580.65.06"},
            "log": "",
        }
        | fields
    )  # fmt: skip
    number = ledger.finish(lease, report)
    assert number is not None
    return number


def two_weeks(ledger: Ledger, clock: Clock, problem: Problem) -> dict[str, int]:
    """Fill a board. Returns the numbers of some submissions by what they are examples of."""
    marks: dict[str, int] = {}

    def add(user: str, fields: dict[str, Any], mark: str = "", **what: Any) -> None:
        number = queue_submission(ledger, problem, user, **what)
        clock.move(25)
        finish(ledger, clock, fields)
        if mark:
            marks[mark] = number

    add("ada", accepted(problem, 0.41))
    clock.move(timedelta(hours=7).total_seconds())
    add("grace", failed("compile_error", "line 4: SyntaxError: invalid syntax"))
    add("grace", wrong(problem), "wrong")
    clock.move(timedelta(hours=20).total_seconds())
    add("grace", accepted(problem, 0.55), name="fused.cu")
    clock.move(timedelta(days=1).total_seconds())
    add("linus", accepted(problem, 0.5))
    add("ada", accepted(problem, 0.66), "old")
    clock.move(timedelta(days=2, hours=3).total_seconds())
    add("barbara", accepted(problem, 0.71), name="wide_rows.cu")
    add("edsger", accepted(problem, 0.7099, noise=1))
    clock.move(timedelta(days=1).total_seconds())
    add("margaret", failed("time_limit_exceeded", "case widest: a call took more than 20 s"))
    add("margaret", cpu_accepted(problem), "practice")
    clock.move(timedelta(days=3).total_seconds())
    add(
        ATTACK_NAME,
        accepted(problem, 0.6) | {"log": ATTACK, "notes": [ATTACK]},
        "attack",
        name=f"{ATTACK}.py",
        source=f"# {ATTACK}\n{SOURCE}",
    )
    add(ATTACK_NAME, wrong(problem, ATTACK) | {"log": ATTACK}, "wrong_attack")
    add("ada", accepted(problem, 0.835), "best", name="two_pass.py", source=SOURCE + "\n# faster\n")
    clock.move(timedelta(days=2).total_seconds())
    add("katherine", accepted(problem, 0.93), "leader", name="cluster.cu")
    add("katherine", accepted(problem, 0.7, A100), name="cluster.cu")
    add("dorothy", failed("rejected", "the time claimed is below what the clock allows")
        | {"rule": "time_claim"}, "rejected")  # fmt: skip
    add("alan", failed("runtime_error", "softmax raised ValueError: " + ATTACK, ATTACK), "raised")
    clock.move(timedelta(hours=5).total_seconds())
    marks["waiting"] = queue_submission(ledger, problem, "linus")
    marks["waiting_attack"] = queue_submission(ledger, problem, ATTACK_NAME, name=f"{ATTACK}.py")
    return marks


def _tested(case: Case) -> CaseResult:
    return CaseResult(
        name=case.name, kind="test", params=case.params, status="passed", max_abs_err=7.8e-9,
        rel_l2=6.2e-8, worst_slice_rel_l2=8.9e-8, error_budget_used=0.17,
    )  # fmt: skip


def _timed(problem: Problem, case: Case, sol: float, gpu: str, rng: random.Random) -> CaseResult:
    least_us = problem.bytes(case) / BYTES_PER_S[gpu] * 1e6
    sol = min(sol, 0.97)
    rounds = [least_us / sol * rng.gauss(1, 0.004) for _ in range(120)]
    rounds += [least_us / sol * rng.uniform(1.01, 1.04) for _ in range(9)]
    time_us, (low_us, high_us) = estimate(rounds)
    return CaseResult(
        name=case.name, kind="benchmark", params=case.params, status="passed",
        rel_l2=6.2e-8, max_abs_err=7.8e-9, error_budget_used=0.17,
        time_us=time_us, ci_us=(low_us, high_us), external_us=time_us * 0.99,
        cold_us=time_us * 1.6, rounds=len(rounds), round_us=rounds, converged=True,
        round_mhz=[1979.6 - i % 8 for i in range(len(rounds))],
        baseline_us={"eager": least_us / EAGER_SOL, "compiled": least_us / 0.74},
        gb_per_s=problem.bytes(case) / time_us / 1e3,
        tflop_per_s=problem.flops(case) / time_us / 1e6, sol=sol,
    )  # fmt: skip
