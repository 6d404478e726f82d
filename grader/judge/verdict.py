"""One pure function from the faults of a grading to its verdict.

Precedence, highest first, when a grading shows several faults:

1. `judge_error`: our own failure says nothing about the submission.
2. `output_limit_exceeded`, `memory_limit_exceeded`, `time_limit_exceeded`: the judge ended the run,
   so everything else it showed is unfinished.
3. `compile_error`: nothing ran.
4. `runtime_error`: a call did not finish.
5. `wrong_answer`: calls finished and an output is wrong. It beats `rejected`: a trick that does not
   even give right outputs is a wrong answer.
6. `rejected`: the outputs are right, and a named rule was broken. Of several rules, the first in
   the order of `Rule` is named; `below_floor`, which only holds a result for review, comes last.
7. `accepted`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grader.report import Rule, Verdict

PRECEDENCE = (
    Verdict.JUDGE_ERROR,
    Verdict.OUTPUT_LIMIT_EXCEEDED,
    Verdict.MEMORY_LIMIT_EXCEEDED,
    Verdict.TIME_LIMIT_EXCEEDED,
    Verdict.COMPILE_ERROR,
    Verdict.RUNTIME_ERROR,
    Verdict.WRONG_ANSWER,
    Verdict.REJECTED,
)


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong, with the verdict it calls for."""

    verdict: Verdict
    reason: str
    rule: Rule | None = None
    """The broken rule; set if and only if the verdict is `rejected`."""
    killed: bool = False
    """Whether the runner died of SIGKILL for no visible reason. The host may have sent it."""

    def __post_init__(self) -> None:
        if self.verdict not in PRECEDENCE:
            raise ValueError(f"{self.verdict} is no fault")
        if (self.rule is not None) != (self.verdict is Verdict.REJECTED):
            raise ValueError("a rule goes with `rejected`, and only with it")


class SubmissionFault(Exception):
    """Raised where a grading cannot go on because of `fault`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


def decide(faults: Iterable[Fault]) -> Fault | None:
    """The fault that decides the verdict, or None for `accepted`.

    Among faults of equal precedence, the first one found decides.
    """
    return min(faults, key=_rank, default=None)


def _rank(fault: Fault) -> tuple[int, int]:
    rule = 0 if fault.rule is None else list(Rule).index(fault.rule)
    return PRECEDENCE.index(fault.verdict), rule
