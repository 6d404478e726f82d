"""Pure functions from the faults of a grading to its verdict and its reason.

The gravest fault decides, in whatever order they were found. Precedence, highest first:

1. `judge_error`: a failure of the judge says nothing about the submission.
2. `output_limit_exceeded`, `memory_limit_exceeded`, `time_limit_exceeded`: the judge ended the run,
   so its other findings are incomplete.
3. `compile_error`: the file did not become an entry. The runner ended before it replied that the
   file is loaded, by an exception, an exit, a signal or a closed wire.
4. `runtime_error`: a call did not finish, or a message broke the protocol, at any time.
5. `wrong_answer`: calls finished and an output is wrong. It precedes `rejected`: a trick whose
   outputs are wrong gains nothing.
6. `rejected`: the outputs are right, and a named rule was broken. Of several rules, the first in
   the order of `Rule` is named; `below_floor`, which only holds a result for review, comes last.
7. `accepted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """One failure, with the verdict that it leads to."""

    verdict: Verdict
    reason: str
    rule: Rule | None = None
    """The broken rule; set if and only if the verdict is `rejected`."""
    killed: bool = False
    """Whether SIGKILL ended the runner for no visible reason. The host may have sent it."""

    def __post_init__(self) -> None:
        if self.verdict not in PRECEDENCE:
            raise ValueError(f"{self.verdict} is not the verdict of a fault")
        if (self.rule is not None) != (self.verdict is Verdict.REJECTED):
            raise ValueError("`rejected` needs a rule, and no other verdict has one")


class SubmissionFault(Exception):
    """Ends a grading that cannot go on because of `faults`. `fault` is the gravest of them."""

    def __init__(self, fault: Fault, *others: Fault) -> None:
        self.faults = (fault, *others)
        self.fault = min(self.faults, key=_rank)
        super().__init__(self.fault.reason)


def decide(faults: Iterable[Fault]) -> Fault | None:
    """The fault that decides the verdict, or None for `accepted`.

    Among faults of equal precedence, the first one found decides.
    """
    return min(faults, key=_rank, default=None)


def reason_of(faults: Sequence[Fault]) -> str:
    """The reason of the deciding fault. After "also:" comes the first reason of every other verdict
    and rule, unless the deciding one says the same of its own case.

    Raises ValueError when there are no faults.
    """
    kinds = {(f.verdict, f.rule): f for f in reversed(faults)}  # the first of each kind is kept
    decided, *others = sorted(kinds.values(), key=_rank)
    case = decided.reason.partition(": ")[0] + ": "  # named once
    also = [
        f"also: {other.reason.removeprefix(case)}"
        for other in others
        if not _is_repeated(other.reason, decided.reason)
    ]
    return "; ".join([decided.reason, *also])


def _is_repeated(reason: str, decided: str) -> bool:
    """Whether the reason of another case, without that, is a part of the deciding one."""
    return (reason.partition(": ")[2] or reason) in decided


def _rank(fault: Fault) -> tuple[int, int]:
    rule = 0 if fault.rule is None else list(Rule).index(fault.rule)
    return PRECEDENCE.index(fault.verdict), rule
