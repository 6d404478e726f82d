"""The score of an accepted GPU grading: geometric means, their intervals, and whether it ranks."""

from __future__ import annotations

from collections.abc import Sequence

from grader.judge.record import Effort
from grader.problem import Problem
from grader.report import Report, geometric_mean
from grader.stats import Estimate, estimate, product_interval, widened

RANKED_PRECISION = 0.002
"""A ranked score is known to ± this share of itself."""
RUN_TO_RUN_SHARE = 0.002
"""A score's interval reaches at least this share to both sides: a grading sees only its own rounds,
and two gradings of one file seldom differ by more than twice this (docs/measurements.md)."""
CLOCK_LEVEL_SHARE = 0.0045
"""The same where all cases keep the tensor cores busy: under that load a chip may run 0.9 % slower
for a whole grading, which cannot be seen from outside."""


def tensor_bound_share(problem: Problem) -> float:
    """The share of the benchmark cases that are bound by tensor cores."""
    from grader.judge.timing.plan import (
        is_tensor_bound,  # imports torch, which loads in the background
    )

    cases = problem.cases("benchmark", "cuda")
    return sum(is_tensor_bound(problem, case) for case in cases) / max(1, len(cases))


def scored(
    report: Report, effort: Effort, tensor_share: float, unranked_cases: Sequence[str] = ()
) -> Report:
    """The report with score, interval, speedups, and `ranked`.

    `tensor_share` is the share of benchmark cases bound by tensor cores. A score ranks if every
    case converged and the score is known to `RANKED_PRECISION`; otherwise a note says why not. The
    notes of `unranked_cases` are in the report already.
    """
    timed = [c for c in report.cases if c.kind == "benchmark" and c.time_us is not None]
    if not timed:
        return report
    unconverged = [c.name for c in timed if not c.converged]
    notes = [*report.notes]
    unexplained = ", ".join(name for name in unconverged if name not in unranked_cases)
    if unexplained and effort == "full":
        notes.append(f"not ranked: the time of {unexplained} did not converge; submit it again")
    names = set.intersection(*(set(c.baseline_us) for c in timed))
    score_us = geometric_mean([c.time_us for c in timed if c.time_us is not None])
    interval = product_interval(
        [Estimate(c.time_us, c.ci_us) for c in timed if c.time_us and c.ci_us]
    )
    # Of the rounds alone: `ci_us` may be wider, because of the outside clock.
    rounds = product_interval([estimate(c.round_us) for c in timed])
    precision = (rounds[1] - rounds[0]) / 2 / score_us
    least_share = RUN_TO_RUN_SHARE + (CLOCK_LEVEL_SHARE - RUN_TO_RUN_SHARE) * tensor_share
    if not unconverged and precision > RANKED_PRECISION and effort == "full":
        notes.append(f"not ranked: the score is known to ±{precision:.2%} only; submit it again")
    return report.model_copy(
        update={
            "score_us": score_us,
            "score_ci_us": widened(interval, score_us, least_share),
            "speedup": {
                name: geometric_mean([c.baseline_us[name] / (c.time_us or 1.0) for c in timed])
                for name in sorted(names)
            },
            "ranked": effort == "full" and not unconverged and precision <= RANKED_PRECISION,
            "notes": notes,
        }
    )
