"""One number in [0, 1] for a report, for trainers."""

from __future__ import annotations

from grader.report import Report, Verdict

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
    if report.verdict is None or report.verdict is Verdict.JUDGE_ERROR:
        raise NoVerdictError(report.reason)
    if report.verdict in NO_REWARD:
        return 0.0
    if report.verdict is not Verdict.ACCEPTED:
        return TESTS_SHARE * tests_passed(report)
    return TESTS_SHARE + (1 - TESTS_SHARE) * speed(report)


def tests_passed(report: Report) -> float:
    """The share of tests that passed, of those that were to run."""
    tests = [case for case in report.cases if case.kind == "test"]
    return sum(case.status == "passed" for case in tests) / max(len(tests), 1)


def speed(report: Report) -> float:
    """How fast it is, from 0 to 1: the mean share of the roofline over the benchmarks. Where the
    roofline is not known, s / (1 + s) of the speedup s over the fastest baseline, which is 0.5 at
    the baseline's speed. 0 if it was not timed on a GPU: times on a CPU are practice."""
    if report.device != "cuda" or report.score_us is None:
        return 0.0
    shares = [case.sol for case in report.cases if case.kind == "benchmark"]
    known = [min(max(share, 0.0), 1.0) for share in shares if share is not None]
    if known and len(known) == len(shares):
        return sum(known) / len(known)
    speedup = min(report.speedup.values(), default=0.0)
    return speedup / (1 + speedup)
