"""The result of one benchmark case, as the report carries it."""

from __future__ import annotations

from grader import stats
from grader.judge.gpu.state import gpu_state
from grader.judge.grading import Grading
from grader.judge.timing.measure import Timing
from grader.judge.timing.plan import POLICY, floor_us
from grader.judge.verdict import Fault
from grader.problem.spec import Case
from grader.report import CaseResult, Rule, Verdict


def benchmark_result(
    grading: Grading,
    case: Case,
    timing: Timing,
    cold_us: float | None,
    eager_us: list[float],
    copy_us: float | None = None,
) -> CaseResult:
    """The result of a benchmark case. `eager_us` is what PyTorch took per call between the rounds,
    `copy_us` what copying returned outputs takes.
    A time below the hardware's own limit is noted as a fault."""
    has_cost = grading.problem.spec.cost is not None
    share = None
    if grading.device == "cuda":
        grading.record.environment[f"gpu_state_{case.name}"] = gpu_state()
    if grading.device == "cuda" and has_cost:
        share = floor_us(grading.problem, case) / timing.time_us
        if share > 1 / POLICY.floor_share:
            reason = (
                f"benchmark '{case.name}': {timing.time_us:.1f} µs is {share:.2f} times the "
                "hardware's own limit; held for review"
            )
            # Not raised: a forged time shows more clearly in a longer case.
            grading.record.faults.append(Fault(Verdict.REJECTED, reason, Rule.BELOW_FLOOR))
    baseline_us = dict(grading.baselines_us.get(case.name, {}))
    if eager_us and "eager" in baseline_us:
        # Timed between the rounds, so that drift cancels; unless something has slowed it down.
        slowest_us = baseline_us["eager"] * (1 + POLICY.baseline_drift)
        baseline_us["eager"] = min(stats.median(eager_us), slowest_us)
    return CaseResult(
        name=case.name,
        kind="benchmark",
        params=case.params,
        status="passed",
        time_us=timing.time_us,
        ci_us=timing.ci_us,
        external_us=timing.external_us,
        cold_us=cold_us,
        returned_copy_us=copy_us,
        rounds=timing.rounds,
        round_us=[max(round(us, 3), POLICY.least_us) for us in timing.round_us],
        round_mhz=[round(mhz, 1) for mhz in timing.round_mhz],
        calls_per_round=timing.calls_per_round,
        converged=timing.converged,
        graph=timing.graph,
        baseline_us=baseline_us,
        gb_per_s=grading.problem.bytes(case) / timing.time_us / 1e3 if has_cost else None,
        tflop_per_s=grading.problem.flops(case) / timing.time_us / 1e6 if has_cost else None,
        sol=share,
    )
