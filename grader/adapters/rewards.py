"""One number in [0, 1] for a report, for trainers."""

from __future__ import annotations

from grader.report import Report, Reward, Verdict

TESTS_SHARE = 0.3
"""The reward of a submission that passes all its tests, and whose speed is not known."""

NO_REWARD = (Verdict.COMPILE_ERROR, Verdict.REJECTED, Verdict.OUTPUT_LIMIT_EXCEEDED)
"""Verdicts that are worth nothing, whatever passed before."""


class NoVerdictError(Exception):
    """There is no verdict on the submission, so it has no reward; zero would blame it."""


def reward(report: Report) -> float:
    """The reward of a submission.

    - 0 if it does not compile, breaks a rule, or floods its output.
    - `TESTS_SHARE` × the share of tests that passed, if it is not accepted.
    - `TESTS_SHARE` + (1 - `TESTS_SHARE`) × `speed`, if it is accepted.

    Raises `NoVerdictError` for a `judge_error`, and where no verdict was possible.
    """
    found = report.reward
    if found is None:
        raise NoVerdictError(report.reason)
    if report.verdict in NO_REWARD:
        return 0.0
    if report.verdict is not Verdict.ACCEPTED:
        return TESTS_SHARE * found.tests_passed
    return TESTS_SHARE + (1 - TESTS_SHARE) * speed(found)


def speed(found: Reward) -> float:
    """How fast it is, from 0 to 1: its share of the roofline. Where that is not known, s / (1 + s)
    of the speedup s over the fastest baseline, which is 0.5 at the baseline's speed. 0 if it was
    not timed on a GPU: times on a CPU are practice."""
    if found.roofline is not None:
        return min(found.roofline, 1.0)
    return found.speedup / (1 + found.speedup) if found.speedup is not None else 0.0
