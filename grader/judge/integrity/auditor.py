"""The audit of timed rounds: were the calls made as asked, one after the other, on true inputs?

The benchmark loop knows only `Auditor`: it arms a round, has it watched, and receives `Evidence`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from grader.judge.integrity.call_order import CallOrderWatch
from grader.judge.integrity.deferred_inputs import DeferredInputs
from grader.judge.integrity.policy import CALL_ORDER, DEFERRED
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import SharedBlock
from grader.judge.problem_code import Values
from grader.judge.verdict import Fault, decide
from grader.report import Rule, Verdict

OtherInputs = Callable[[int], Values]
"""Inputs like those of a set, that no runner has seen."""


@dataclass(frozen=True)
class Evidence:
    """What an audit concluded of one round."""

    faults: tuple[Fault, ...] = ()
    discard: str | None = None
    """Why the round's time does not count; None where it does."""
    unchecked: frozenset[int] = frozenset()
    """Sets whose outputs prove nothing, since their call may have read stale inputs."""
    deferred: frozenset[int] = frozenset()
    """Sets with inputs that were written just before their call."""

    @property
    def fault(self) -> Fault | None:
        """The gravest of the faults."""
        return decide(self.faults)


@dataclass
class AuditTally:
    """What the audits of all rounds of one grading have found."""

    overlaps: int = 0
    """Samples that showed overlapping calls."""
    explained: list[bool] = field(default_factory=list)
    """For each undecidable set with wrong outputs: whether mixed inputs explain them."""

    def copy(self) -> AuditTally:
        """The tally as it is now."""
        return AuditTally(self.overlaps, [*self.explained])


class RoundOutputs(Protocol):
    """The outputs of the last round, as an audit needs them."""

    def doubtful(self) -> Collection[int]:
        """Sets that a quick comparison finds wrong."""

    def is_right(self, index: int) -> bool:
        """Whether a set's outputs are right for the inputs in the shadow."""

    def unexplained(self, index: int, stale: AbstractContextManager[None]) -> tuple[str, int]:
        """The output with the most elements that no mixture of the true inputs and those `stale`
        puts into the shadow explains, and how many those are."""


class Auditor:
    """Audits the rounds of one benchmark case. This one finds nothing: for single calls, and on a
    CPU, where times do not rank."""

    def __init__(self, unranked: str | None = None) -> None:
        self._unranked = unranked

    def arm(self, order: list[int], other_inputs: OtherInputs) -> None:
        """Prepare for a round in this order, whose inputs lie in the shadow."""

    def sample_early(self, is_early: Callable[[], bool]) -> None:
        """Sample while inputs are being published; it counts if `is_early()` holds afterwards."""

    def watch(self, going_on: Callable[[], bool]) -> None:
        """Sample until the round is over."""

    def disarm(self) -> None:
        """Make the shadow true again, once the snapshot is taken."""

    def conclude(self, round_us: float, outputs: RoundOutputs) -> Evidence:
        """What the round has shown; it took `round_us` by the judge's clock."""
        return Evidence()

    def learn(self, call_us: float) -> None:
        """A round of ordinary inputs was right and counts; its calls took `call_us` each by the
        judge's clock. Reported times would let a submission aim the writes."""

    def unranked_reason(self) -> str | None:
        """Why the case cannot rank, though no rule was broken; None where it can."""
        return self._unranked


class CopyEngineAudit(Auditor):
    """Watches the order of calls, and defers inputs where `deferred` is given."""

    def __init__(
        self,
        block: SharedBlock,
        watch: CallOrderWatch,
        deferred: DeferredInputs | None,
        tally: AuditTally,
        ranks: bool,
    ) -> None:
        super().__init__()
        self._block = block
        self._watch = watch
        self._deferred = deferred
        self._tally = tally
        self._ranks = ranks
        self._overlaps = 0
        self._call_us = math.inf  # the least that calls of a round took
        self._defers = False  # whether the present round has deferred inputs
        self._order: list[int] = []

    def arm(self, order: list[int], other_inputs: OtherInputs) -> None:
        self._order = order
        self._defers = self._deferred is not None and not math.isinf(self._call_us)
        if self._deferred is not None and self._defers:
            pace_us = self._call_us * DEFERRED.pace_share
            self._deferred.arm(order, pace_us, secrets.SystemRandom(), other_inputs)
        self._watch.arm(order)

    def sample_early(self, is_early: Callable[[], bool]) -> None:
        self._watch.sample_early(is_early)

    def watch(self, going_on: Callable[[], bool]) -> None:
        watch, deferred = self._watch, self._deferred if self._defers else None
        closing = max(0, len(self._order) - CALL_ORDER.closing_calls)
        is_closing = False
        watch.begin()
        if deferred is not None:
            deferred.begin()
        while going_on() and not watch.is_full:
            wrote = deferred is not None and deferred.write_due(watch.copies, watch.samples)
            # A write's sample is kept short, and so are samples between the last probes.
            furthest = watch.sample(with_pairs=not wrote and not is_closing)
            if deferred is not None:
                deferred.saw(furthest, is_closing)
            is_closing = is_closing or furthest >= closing
            if is_closing:
                self._block.probe_continuously()
            watch.end_sample()
        if deferred is not None:
            deferred.write_rest(watch.copies, is_over=not watch.is_full)

    def disarm(self) -> None:
        if self._deferred is not None and self._defers:
            self._deferred.restore()

    def conclude(self, round_us: float, outputs: RoundOutputs) -> Evidence:
        faults: list[Fault] = []
        unchecked, written = set[int](), set[int]()
        if self._deferred is not None and self._defers:
            written = set(self._deferred.written)
            faults, unchecked = self._conclude_deferred(self._deferred, outputs)
        if self._watch.wrote_early():
            faults.append(_broken("outputs were written before the calls were asked for"))
        if self._watch.ran_concurrently():
            faults.append(_broken("calls of a round ran side by side"))
        overlaps = self._watch.overlaps()
        self._overlaps += overlaps
        self._tally.overlaps += overlaps
        if self._tally.overlaps >= CALL_ORDER.most_overlaps:
            faults.append(_broken("a call began before the one before it had ended"))
        is_blind = self._ranks and self._watch.was_blind(round_us)
        discard = "the judge could not watch" if is_blind else None
        return Evidence(tuple(faults), discard, frozenset(unchecked), frozenset(written))

    def _conclude_deferred(
        self, deferred: DeferredInputs, outputs: RoundOutputs
    ) -> tuple[list[Fault], set[int]]:
        """Faults, and the sets that prove nothing."""
        in_time = deferred.in_time(self._watch.first_unfinished())
        undecidable = deferred.written.keys() - in_time
        doubtful = set(outputs.doubtful())
        faults: list[Fault] = []
        unchecked = set(undecidable)
        if any(self._matches_stale(i, deferred, outputs) for i in doubtful & in_time):
            faults.append(_broken("inputs were read before their call began"))
            # Any of them may have been read during its write, and be wrong for both.
            unchecked |= in_time
        for i in sorted(undecidable & doubtful):
            if outputs.is_right(i):
                continue
            name, count = outputs.unexplained(i, deferred.stale(i))
            self._tally.explained.append(count == 0)
            unexplained, wrong = self._tally.explained.count(False), len(self._tally.explained)
            if unexplained >= max(DEFERRED.least_unexplained, wrong // 2 + 1):
                what = f"{count} elements of '{name}' are wrong or were never written"
                reason = f"{what}, whenever its inputs were read"
                faults.append(Fault(Verdict.WRONG_ANSWER, reason))
        return faults, unchecked

    @staticmethod
    def _matches_stale(index: int, deferred: DeferredInputs, outputs: RoundOutputs) -> bool:
        """Whether a set's outputs are wrong for its true inputs, and right for the stale ones."""
        if outputs.is_right(index):
            return False
        with deferred.stale(index):
            return outputs.is_right(index)

    def learn(self, call_us: float) -> None:
        self._call_us = min(self._call_us, call_us)

    def unranked_reason(self) -> str | None:
        if not self._ranks:
            return None
        if self._overlaps:
            return (
                "one sample showed a call that began before the one before it had ended, which "
                "proves nothing; submit it again"
            )
        # A call may leave most of its state as it is; then its end cannot be seen.
        if self._deferred is None or self._block.outputs_in_shadow or self._deferred.counts.suffice:
            return None
        return (
            "the inputs that the judge writes just before their call came too late; submit it again"
        )


def audit_of(sets: ArgumentSets, tally: AuditTally, ranks: bool) -> Auditor:
    """The auditor of a case's rounds; inputs are deferred only where times rank."""
    watch = CallOrderWatch.over(sets)
    if watch is None:
        too_large = (
            "a round's arguments are too large for the judge to watch, so it never will rank"
        )
        return Auditor(too_large if sets.device == "cuda" and ranks else None)
    deferred = DeferredInputs.over(sets) if ranks else None
    return CopyEngineAudit(sets, watch, deferred, tally, ranks)


def watch_only(block: SharedBlock) -> Auditor:
    """An auditor for rounds of the judge's own calls, which calibrate the clock."""
    watch = CallOrderWatch.over(block)
    return Auditor() if watch is None else CopyEngineAudit(block, watch, None, AuditTally(), False)


def _broken(what: str) -> Fault:
    return Fault(Verdict.REJECTED, what, Rule.WORK_OUTSIDE_CALL)
