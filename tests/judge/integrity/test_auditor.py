"""The audit of a round: how it is watched, and what is concluded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.verdict_latency import ROOT
from grader.arena import TensorSpec, arrange
from grader.judge.benchmark import Benchmark
from grader.judge.correctness.round_check import RoundCheck
from grader.judge.gpu.dma import CopyEngine
from grader.judge.grading import Grading
from grader.judge.integrity.auditor import (
    Auditor,
    AuditTally,
    CopyEngineAudit,
    Evidence,
    audit_of,
    watch_only,
)
from grader.judge.integrity.call_order import CallOrderWatch, rotated, words_needed
from grader.judge.integrity.deferred_inputs import DeferralCounts, DeferredInputs
from grader.judge.integrity.policy import CALL_ORDER, DEFERRED
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import SharedBlock, poison
from grader.judge.record import Record
from grader.judge.session import Session, greet
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Tolerance
from grader.report import Rule, Verdict
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits
from grader.submission import Submission
from tests.judge.host_copies import HostCopyEngine, HostPairReader, host_watch
from tests.judge.simulated_round import (
    SimulatedRound,
    SimulatedRunner,
    first_of,
    new_block,
    wrong,
)
from tests.waiting import PATIENCE_S

COUNT = 6
ORDER = list(range(COUNT))
EARLY, CONCURRENT, OVERLAP, PREMATURE = (
    "outputs were written before the calls were asked for",
    "calls of a round ran side by side",
    "a call began before the one before it had ended",
    "inputs were read before their call began",
)


def broken(reason: str) -> Fault:
    return Fault(Verdict.REJECTED, reason, Rule.WORK_OUTSIDE_CALL)


# --- the watch loop


@pytest.fixture
def block() -> Iterator[Any]:
    words = TensorSpec(0, "int64", (4096,), (1,))
    made: Any = SharedBlock(arrange([[(False, words), (True, words)]] * COUNT), 8, "cpu")
    made.probes = []

    def probe_continuously() -> None:
        made.probes.append(int((outputs(made)[:, -1] == 7).sum()))

    made.probe_continuously = probe_continuously
    yield made
    made.close()


def outputs(block: SharedBlock) -> torch.Tensor:
    tail: torch.Tensor = block.lent[block.head_bytes :]
    return tail.view(torch.int64).view(COUNT, -1)


class ScriptedDeferral:
    """Notes what it is asked for, and says that it wrote before some samples."""

    def __init__(self, writes: Collection[int] = ()) -> None:
        self.writes = writes
        self.calls: list[tuple[Any, ...]] = []
        self.written: dict[int, Any] = {}
        self.counts = DeferralCounts()

    def arm(self, order: list[int], call_us: float, rng: Any, other_inputs: Any) -> None:
        self.calls.append(("arm", order, call_us, other_inputs))

    def begin(self) -> None:
        self.calls.append(("begin",))

    def write_due(self, copies: CopyEngine, sample: int) -> bool:
        self.calls.append(("write_due", sample))
        return sample in self.writes

    def saw(self, furthest: int, is_closing: bool) -> None:
        self.calls.append(("saw", furthest, is_closing))

    def write_rest(self, copies: CopyEngine, is_over: bool) -> None:
        self.calls.append(("write_rest", is_over))

    def restore(self) -> None:
        self.calls.append(("restore",))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """What followed a name, for each call."""
        return [call[1:] for call in self.calls if call[0] == name]


def other_inputs(index: int) -> dict[str, Any]:
    return {"of": index}


def watched(
    block: Any, deferred: Any = None, order: list[int] = ORDER, idle: int = 0
) -> HostPairReader:
    """Watch a round in which one set after the other is written, with a sample behind each and
    `idle` ones before the first; the reader of its pairs."""
    reader = HostPairReader(CALL_ORDER.pairs, COUNT - 1)
    audit = CopyEngineAudit(block, host_watch(block, reader=reader), deferred, AuditTally(), True)
    audit.learn(100.0)
    audit.arm(order, other_inputs)
    block.prepare(order)
    block.publish(order)
    left = [None] * idle + order

    def going_on() -> bool:
        if not left:
            return False
        if (index := left.pop(0)) is not None:
            outputs(block)[index] = 7
        return True

    audit.watch(going_on)
    return reader


@pytest.mark.parametrize("order", [ORDER, rotated(COUNT, 2), [3, 1, 4, 0, 5, 2]])
def test_the_block_is_probed_when_the_last_calls_begin(block: Any, order: list[int]) -> None:
    watched(block, order=order)
    begun = COUNT - CALL_ORDER.closing_calls + 1
    assert block.probes == list(range(begun, COUNT + 1))


def test_samples_between_the_last_probes_have_no_pairs(block: Any) -> None:
    """The sample that shows the begin of the last calls still has."""
    reader = watched(block)
    assert reader.reads == COUNT - CALL_ORDER.closing_calls + 1


def test_the_sample_behind_a_write_has_no_pairs(block: Any) -> None:
    deferred = ScriptedDeferral(writes=(0, 3))
    reader = watched(block, deferred, idle=5)
    assert deferred.named("write_due") == [(sample,) for sample in range(5 + COUNT)]
    assert reader.reads == 5 + COUNT - CALL_ORDER.closing_calls + 1 - 2


def test_the_deferral_follows_what_samples_show(block: Any) -> None:
    deferred = ScriptedDeferral()
    watched(block, deferred, idle=2)
    closing = COUNT - CALL_ORDER.closing_calls
    shown = [-1, -1, *range(COUNT)]
    # Only samples behind a probe are closing: the one that begins it is not.
    assert deferred.named("saw") == [(position, position > closing) for position in shown]
    names = [call[0] for call in deferred.calls]
    assert names[:3] == ["arm", "begin", "write_due"]
    assert names[-1] == "write_rest"
    assert deferred.named("write_rest") == [(True,)]


def test_a_round_is_watched_until_no_more_samples_can_be_kept(
    block: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(CALL_ORDER, most_samples=4)
    monkeypatch.setattr("grader.judge.integrity.call_order.POLICY", policy)
    deferred = ScriptedDeferral()
    watched(block, deferred)
    assert len(deferred.named("saw")) == 4
    assert deferred.named("write_rest") == [(False,)]


def test_inputs_are_deferred_once_a_round_has_shown_the_pace(block: Any) -> None:
    deferred: Any = ScriptedDeferral()
    audit = CopyEngineAudit(block, host_watch(block), deferred, AuditTally(), True)
    audit.arm(ORDER, other_inputs)
    audit.watch(iter([True, False]).__next__)
    audit.disarm()
    untouched: Any = SimpleNamespace(doubtful=lambda: pytest.fail("nothing was deferred"))
    assert audit.conclude(0, untouched) == Evidence()
    assert deferred.calls == []
    for call_us in (100.0, 50.0, 70.0):
        audit.learn(call_us)
    audit.arm(ORDER, other_inputs)
    assert deferred.named("arm") == [(ORDER, 50.0 * DEFERRED.pace_share, other_inputs)]
    audit.watch(iter([True, False]).__next__)
    assert deferred.named("restore") == []
    audit.disarm()
    assert deferred.named("restore") == [()]


def test_early_samples_are_passed_on(block: Any) -> None:
    audit = CopyEngineAudit(block, host_watch(block), None, AuditTally(), True)
    block.prepare(ORDER)
    audit.arm(ORDER, other_inputs)
    audit.sample_early(lambda: False)
    assert audit.conclude(0, NO_OUTPUTS).discard == "the judge could not watch"
    outputs(block)[0] = 7
    audit.sample_early(lambda: True)
    assert audit.conclude(0, NO_OUTPUTS) == Evidence((broken(EARLY),))


# --- what is concluded of the order of calls


NO_OUTPUTS: Any = SimpleNamespace()


class ScriptedWatch:
    """What a watch has found in a round."""

    def __init__(self, **found: Any) -> None:
        self.found = found

    def arm(self, order: list[int]) -> None: ...

    def wrote_early(self) -> bool:
        return bool(self.found.get("wrote_early", False))

    def ran_concurrently(self) -> bool:
        return bool(self.found.get("ran_concurrently", False))

    def overlaps(self) -> int:
        return int(self.found.get("overlaps", 0))

    def first_unfinished(self) -> list[int]:
        return list(self.found.get("first_unfinished", []))

    def was_blind(self, round_us: float) -> bool:
        return bool(round_us > self.found.get("blind_us", 1e9))


def audit_with(
    watch: ScriptedWatch, deferred: Any = None, log: AuditTally | None = None, ranks: bool = True
) -> CopyEngineAudit:
    """An audit of a round with deferred inputs, if there are any."""
    block: Any = SimpleNamespace(outputs_in_shadow=False)
    stand_in: Any = watch
    audit = CopyEngineAudit(block, stand_in, deferred, log or AuditTally(), ranks)
    audit.learn(100.0)
    audit.arm(ORDER, other_inputs)
    return audit


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({}, None),
        ({"wrote_early": True}, broken(EARLY)),
        ({"ran_concurrently": True}, broken(CONCURRENT)),
        ({"overlaps": 1}, None),
        ({"overlaps": 2}, broken(OVERLAP)),
        ({"wrote_early": True, "ran_concurrently": True, "overlaps": 9}, broken(EARLY)),
        ({"ran_concurrently": True, "overlaps": 9}, broken(CONCURRENT)),
    ],
)
def test_calls_out_of_order_are_a_broken_rule(found: dict[str, Any], fault: Fault | None) -> None:
    for ranks in (True, False):
        audit = audit_with(ScriptedWatch(**found), ranks=ranks)
        evidence = audit.conclude(0, NO_OUTPUTS)
        assert evidence == Evidence(evidence.faults)
        assert evidence.fault == fault
        assert len(evidence.faults) == (0 if fault is None else len(found)), "all of them"


def test_one_overlap_of_a_grading_may_be_chance_and_two_are_a_broken_rule() -> None:
    """They are counted over all cases, and a case with one of them does not rank."""
    log, watches = AuditTally(), [ScriptedWatch(overlaps=n) for n in (0, 1, 0, 1)]
    audits = [audit_with(watch, log=log) for watch in watches]
    found = [audit.conclude(0, NO_OUTPUTS).fault for audit in audits]
    assert found == [None, None, None, broken(OVERLAP)]
    assert log.overlaps == 2
    reasons = [audit.unranked_reason() for audit in audits]
    assert [reason is None for reason in reasons] == [True, False, True, False]
    assert "began before the one before it had ended" in str(reasons[1])


def test_overlaps_of_one_case_add_up() -> None:
    watch = ScriptedWatch(overlaps=1)
    audit = audit_with(watch)
    assert audit.conclude(0, NO_OUTPUTS).fault is None
    watch.found = {}
    assert audit.conclude(0, NO_OUTPUTS).fault is None
    assert audit.unranked_reason() is not None
    watch.found = {"overlaps": 1}
    assert audit.conclude(0, NO_OUTPUTS).fault == broken(OVERLAP)


def test_a_blind_round_does_not_count_where_times_rank() -> None:
    for ranks, discard in ((True, "the judge could not watch"), (False, None)):
        audit = audit_with(ScriptedWatch(blind_us=100), ranks=ranks)
        assert audit.conclude(101, NO_OUTPUTS) == Evidence(discard=discard)
        assert audit.conclude(100, NO_OUTPUTS) == Evidence()


@pytest.mark.parametrize(
    ("counts", "has_deferral", "in_shadow", "ranks", "is_ranked"),
    [
        (DeferralCounts(12, 0), True, False, True, False),
        (DeferralCounts(12, 1), True, False, True, True),
        (DeferralCounts(12, 0), False, False, True, True),
        # A call may leave most of its state as it is, so its end cannot be seen.
        (DeferralCounts(12, 0), True, True, True, True),
        (DeferralCounts(12, 0), True, False, False, True),
    ],
)
def test_a_case_ranks_where_enough_inputs_were_in_time(
    counts: DeferralCounts, has_deferral: bool, in_shadow: bool, ranks: bool, is_ranked: bool
) -> None:
    deferred: Any = ScriptedDeferral()
    deferred.counts = counts
    block: Any = SimpleNamespace(outputs_in_shadow=in_shadow)
    watch: Any = ScriptedWatch()
    audit = CopyEngineAudit(block, watch, deferred if has_deferral else None, AuditTally(), ranks)
    reason = audit.unranked_reason()
    assert (reason is None) == is_ranked
    assert is_ranked or "came too late; submit it again" in str(reason)


def test_an_overlap_where_times_do_not_rank_is_no_reason() -> None:
    audit = audit_with(ScriptedWatch(overlaps=1), ranks=False)
    audit.conclude(0, NO_OUTPUTS)
    assert audit.unranked_reason() is None


# --- what is concluded of deferred inputs


class ScriptedOutputs:
    """Outputs of which some sets are wrong, and others for their stale inputs. Of the sets in
    `unexplained_by` as many elements have no explanation."""

    def __init__(self, wrong: set[int], stale_wrong: set[int]) -> None:
        self.wrong = [wrong]
        self.stale_wrong = stale_wrong
        self.right_but_doubtful: set[int] = set()
        self.unexplained_by: dict[int, int] = {}
        self.asked: list[int] = []
        self.checked: set[int] = set()

    def doubtful(self) -> Collection[int]:
        return self.wrong[-1] | self.right_but_doubtful

    def is_right(self, index: int) -> bool:
        self.checked.add(index)
        return index not in self.wrong[-1]

    def unexplained(self, index: int, stale: AbstractContextManager[None]) -> tuple[str, int]:
        self.asked.append(index)
        with stale:
            assert self.wrong[-1] == self.stale_wrong
        return "out", self.unexplained_by.get(index, 0)

    @contextlib.contextmanager
    def stale(self, index: int) -> Iterator[None]:
        self.wrong.append(self.stale_wrong)
        yield
        self.wrong.pop()


IN_TIME, TOO_LATE = {1, 2}, {0, 3}


def concluded(scripted: ScriptedOutputs, log: AuditTally | None = None) -> Evidence:
    """The evidence of a round in which sets 0 to 3 had deferred inputs, 1 and 2 in time."""
    deferred: Any = ScriptedDeferral()
    deferred.written = dict.fromkeys(IN_TIME | TOO_LATE)
    deferred.stale = scripted.stale

    def in_time(first_unfinished: list[int]) -> set[int]:
        assert first_unfinished == [4, 5]
        return set(IN_TIME)

    deferred.in_time = in_time
    watch = ScriptedWatch(first_unfinished=[4, 5])
    evidence = audit_with(watch, deferred, log).conclude(0, scripted)
    assert len(scripted.wrong) == 1
    return evidence


@pytest.mark.parametrize(
    ("wrong", "stale_wrong", "is_premature"),
    [
        (set(), set(), False),
        ({0}, set(), False),  # right for stale inputs, which were true too late
        ({1}, {1}, False),  # wrong in any case, as the check will find
        ({0, 2}, {0, 2}, False),
        ({2}, set(), True),
        ({1, 2}, {2}, True),
        ({1, 5}, set(), True),  # set 5 remains for the check, which finds a wrong answer
    ],
)
def test_outputs_that_match_stale_inputs_prove_that_they_were_read_too_soon(
    wrong: set[int], stale_wrong: set[int], is_premature: bool
) -> None:
    evidence = concluded(ScriptedOutputs(wrong, stale_wrong))
    assert evidence.fault == (broken(PREMATURE) if is_premature else None)
    assert evidence.deferred == IN_TIME | TOO_LATE
    # Where one was read too soon, others may be wrong because they were read during their write.
    assert evidence.unchecked == (IN_TIME | TOO_LATE if is_premature else TOO_LATE)
    assert evidence.discard is None


def test_a_doubtful_set_that_is_right_proves_nothing() -> None:
    scripted, log = ScriptedOutputs(set(), set()), AuditTally()
    scripted.right_but_doubtful = {0, 1, 5}
    assert concluded(scripted, log) == Evidence(
        unchecked=frozenset(TOO_LATE), deferred=frozenset(IN_TIME | TOO_LATE)
    )
    assert scripted.asked == log.explained == []
    assert scripted.checked == {0, 1}, "only doubtful sets with deferred inputs"


def test_only_wrong_sets_that_are_undecidable_need_an_explanation() -> None:
    scripted, log = ScriptedOutputs({0, 1, 3, 5}, {1, 5}), AuditTally()
    scripted.unexplained_by = {3: 17}
    assert concluded(scripted, log).fault is None
    assert scripted.asked == [0, 3]
    assert log.explained == [True, False]


@pytest.mark.parametrize("explained", [0, 7, 8, 20])
def test_most_wrong_sets_without_explanation_are_a_wrong_answer(explained: int) -> None:
    """At least `least_unexplained` of them, and more than half of all that are wrong."""
    log = AuditTally(explained=[True] * explained)
    scripted = ScriptedOutputs({0}, set())
    scripted.unexplained_by = {0: 17}
    for _ in range(max(DEFERRED.least_unexplained, explained + 1) - 1):
        assert concluded(scripted, log).fault is None
    fault = concluded(scripted, log).fault
    what = "17 elements of 'out' are wrong or were never written, whenever its inputs were read"
    assert fault == Fault(Verdict.WRONG_ANSWER, what)


def test_a_wrong_answer_beats_a_broken_rule() -> None:
    log = AuditTally(explained=[False] * DEFERRED.least_unexplained)
    scripted = ScriptedOutputs({0, 2}, set())
    scripted.unexplained_by = {0: 1}
    fault = concluded(scripted, log).fault
    assert fault is not None
    assert fault.verdict is Verdict.WRONG_ANSWER


class SnapshotOutputs:
    """The outputs of a simulated round."""

    def __init__(self, block: Any) -> None:
        self._block = block

    def doubtful(self) -> Collection[int]:
        return wrong(self._block)

    def is_right(self, index: int) -> bool:
        return index not in wrong(self._block)

    def unexplained(self, index: int, stale: AbstractContextManager[None]) -> tuple[str, int]:
        with stale:
            return "out", 0 if self.is_right(index) else 1


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize("item_bytes", [8, 0], ids=["outputs", "state"])
def test_simulated_rounds_are_told_apart(item_bytes: int, at_end: bool) -> None:
    """Those of honest calls, and those of calls that read their inputs too soon."""
    block, call_us = new_block(item_bytes), 40.0
    faults: dict[float, list[Fault | None]] = {0.0: [], 4.0: []}
    undecided = 0
    for seed in range(12):
        for too_soon, found in faults.items():
            runner = SimulatedRunner(block, call_us, too_soon, at_end, first_of(seed))
            one = SimulatedRound(block, runner, call_us, seed)
            evidence = one.audit.conclude(one.round_us, SnapshotOutputs(block))
            assert evidence.discard is None
            assert evidence.deferred == one.deferred.written.keys()
            assert one.wrong <= evidence.unchecked <= evidence.deferred
            undecided += len(evidence.unchecked)
            assert one.audit.conclude(10 * one.round_us, SnapshotOutputs(block)).discard
            found.append(evidence.fault)
    block.close()
    assert faults[0.0] == [None] * 12
    assert set(faults[4.0]) <= {None, broken(PREMATURE)}
    assert faults[4.0].count(None) < 9
    assert undecided > 0


def copying(
    monkeypatch: pytest.MonkeyPatch,
    output: Callable[[torch.Tensor], torch.Tensor],
    plain: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
) -> tuple[CopyEngineAudit, RoundCheck, AuditTally]:
    """The audit and the check of a kernel that copies, after a round with set 3 undecidable: its
    first hundred elements were stale. `output` makes what the kernel wrote of its true inputs."""
    true = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    shadow = true.clone()

    @contextlib.contextmanager
    def stale(index: int) -> Iterator[None]:
        assert index == 3
        shadow[:100] = -true[:100]
        yield
        shadow.copy_(true)

    deferred: Any = ScriptedDeferral()
    deferred.written, deferred.stale = {3: None}, stale
    deferred.in_time = lambda first_unfinished: set()
    code: Any = SimpleNamespace(
        run_eager=lambda _, inputs: {"out": plain(inputs["x"])},
        written=[Argument(name="out", role="out", dtype="fp32")],
        has_residuals=False,
        is_local=True,
    )
    sets: Any = SimpleNamespace(
        layout=SimpleNamespace(sets=[None] * COUNT),
        count=COUNT,
        device="cpu",
        inputs=lambda _: {"x": shadow},
        outputs=lambda index: {"out": output(true) if index == 3 else true},
    )
    bounds = Tolerance(atol=0, rtol=1e-6, rel_l2=1e-6)
    monkeypatch.setattr("grader.judge.correctness.round_check.tolerance_of", lambda *_: bounds)
    case = Case(name="any", params={})
    problem: Any = None
    check = RoundCheck(problem, code, case, sets, compare=pytest.fail)
    check.begin(ORDER, is_ordinary=True)
    log = AuditTally()
    return audit_with(ScriptedWatch(), deferred, log), check, log


def poisoned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    poison(out)
    return out


@pytest.mark.parametrize("count", [1, 50, 100])
def test_inputs_that_were_written_while_they_were_read_explain_an_output(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    audit, check, log = copying(monkeypatch, lambda x: torch.cat([-x[:count], x[count:]]))
    for _ in range(2 * DEFERRED.least_unexplained):
        evidence = audit.conclude(0, check)
        assert evidence == Evidence(unchecked=frozenset({3}), deferred=frozenset({3}))
    assert log.explained == [True] * 2 * DEFERRED.least_unexplained


@pytest.mark.parametrize("undone", [torch.zeros_like, poisoned])
def test_undecidable_sets_that_are_left_undone_are_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, undone: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    audit, check, log = copying(monkeypatch, undone)
    for _ in range(DEFERRED.least_unexplained - 1):
        assert audit.conclude(0, check).fault is None
    fault = audit.conclude(0, check).fault
    assert fault is not None
    assert fault.verdict is Verdict.WRONG_ANSWER
    count, what = fault.reason.split(" ", 1)
    assert 3900 < int(count) <= 4096
    assert what == (
        "elements of 'out' are wrong or were never written, whenever its inputs were read"
    )
    assert log.explained == [False] * DEFERRED.least_unexplained


def test_an_answer_that_is_a_view_of_the_inputs_is_taken_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audit, check, log = copying(
        monkeypatch, lambda x: torch.cat([-x[:50], x[50:]]), plain=lambda x: x
    )
    assert audit.conclude(0, check).fault is None
    assert log.explained == [True]


def test_right_outputs_of_an_undecidable_set_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audit, check, log = copying(monkeypatch, torch.clone)
    assert set(check.doubtful()) == set(ORDER), "nothing was compared before"
    assert audit.conclude(0, check).fault is None
    assert log.explained == []


# --- which auditor a case has


def test_no_audit_finds_nothing() -> None:
    audit = Auditor()
    audit.arm(ORDER, other_inputs)
    audit.sample_early(lambda: True)
    audit.watch(lambda: pytest.fail("there is nothing to wait for"))
    audit.disarm()
    audit.learn(1.0)
    assert audit.conclude(1e9, NO_OUTPUTS) == Evidence()
    assert audit.unranked_reason() is None


@pytest.mark.parametrize(
    ("device", "ranks", "is_told"),
    [("cpu", False, False), ("cuda", True, True), ("cuda", False, False)],
)
def test_sets_that_are_too_large_to_watch_never_rank(
    monkeypatch: pytest.MonkeyPatch, device: str, ranks: bool, is_told: bool
) -> None:
    monkeypatch.setattr(CallOrderWatch, "over", lambda sets: None)
    sets: Any = SimpleNamespace(device=device)
    audit = audit_of(sets, AuditTally(), ranks)
    assert type(audit) is Auditor
    reason = audit.unranked_reason()
    assert (reason is not None) == is_told
    assert not is_told or "too large" in str(reason)
    assert type(watch_only(sets)) is Auditor


@pytest.mark.parametrize("ranks", [True, False])
def test_inputs_are_deferred_only_where_times_rank(
    block: Any, monkeypatch: pytest.MonkeyPatch, ranks: bool
) -> None:
    deferred, log = ScriptedDeferral(), AuditTally()
    monkeypatch.setattr(CallOrderWatch, "over", host_watch)
    monkeypatch.setattr(DeferredInputs, "over", lambda sets: deferred)
    for audit, defers in ((audit_of(block, log, ranks), ranks), (watch_only(block), False)):
        deferred.calls.clear()
        audit.learn(100.0)
        audit.arm(ORDER, other_inputs)
        assert bool(deferred.calls) == defers
        assert audit.unranked_reason() is None


# --- in a benchmark


class Scripted(Auditor):
    """Gives evidence, and notes what it learns."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self.evidence = evidence
        self.learnt: list[float] = []

    def conclude(self, round_us: float, outputs: Any) -> Evidence:
        return self.evidence

    def learn(self, call_us: float) -> None:
        self.learnt.append(call_us)


def test_what_a_discarded_graph_showed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds did not count, and calls that are timed eagerly may be sequential."""
    log = AuditTally(overlaps=1, explained=[True])
    bench: Any = Benchmark.__new__(Benchmark)
    bench.grading = SimpleNamespace(
        device="cpu", ranks=True, audit_tally=log, record=SimpleNamespace(notes=[])
    )
    bench.case, bench.sets = Case(name="any", params={}), SimpleNamespace(device="cpu")
    bench.graph, bench.gate, bench._holds_up, bench._delay_us = True, False, False, 0.0
    numbers: list[int] = []

    def one_round(number: int) -> None:
        numbers.append(number)
        if bench.graph:
            bench.grading.audit_tally.overlaps += 5
            bench.grading.audit_tally.explained.append(False)
            raise SubmissionFault(Fault(Verdict.WRONG_ANSWER, "off"))

    bench.round = one_round
    made: list[AuditTally] = []
    monkeypatch.setattr(
        "grader.judge.benchmark.audit_of", lambda sets, log, ranks: made.append(log)
    )
    bench.warm_up()
    assert numbers == [0, -14]
    assert bench.grading.audit_tally == AuditTally(overlaps=1, explained=[True])
    assert made == [bench.grading.audit_tally]
    assert made[0] is bench.grading.audit_tally


# --- with a runner of its own, in real time

CALLS, CALL_S = 8, 0.1  # far longer than a busy machine holds a process up
SEQUENTIAL = """
import time
import torch

def softmax(x, out):
    write(out, torch.softmax(x, dim=-1))

def write(out, answer):
    half = len(out) // 2
    out[:half] = answer[:half]
    time.sleep(0.1)
    out[half:] = answer[half:]
"""
ONE_AHEAD = (
    SEQUENTIAL
    + """
places, answers, inputs = [], {}, {}

def softmax(x, out):
    place = x.data_ptr()
    if place not in places:
        places.append(place)
        inputs[place] = x
    following = (places + [None])[places.index(place) + 1]
    answer = answers.pop(place) if place in answers else torch.softmax(x, dim=-1)
    if following is not None:
        answers[following] = torch.softmax(inputs[following], dim=-1)
    write(out, answer)
"""
)


class SlowCopies(HostCopyEngine):
    """Leaves the processor to the runner between two samples."""

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        time.sleep(1e-3)
        super().read(address, pitch_bytes, count, at)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "is_honest"), [(SEQUENTIAL, True), (ONE_AHEAD, False)])
def test_a_real_runner_is_told_from_one_that_reads_ahead(
    tmp_path: Path, source: str, is_honest: bool
) -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    case = next(c for c in problem.cases("benchmark", "cpu") if c.name == "practice")
    file = tmp_path / "softmax.py"
    file.write_text(source)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    with make_sandbox("process").start(RunnerLimits.of(problem.spec.limits), "cpu") as runner:
        session = Session(runner, 500)
        greeting = greet(session, submission, "cpu")
        grading = Grading(problem, session, "cpu", 1, Record())
        grading.meet(greeting)
        grading.load(submission)
        sets = ArgumentSets(problem, case, grading.code.inputs(case, 1), CALLS, "cpu")
        sets.probe_continuously = sets.probe  # type: ignore[method-assign]
        grading.lend(sets)
        bench = Benchmark(grading, case, sets, gate=True, captures=True)
        watch = host_watch(sets, SlowCopies(words_needed(sets)))
        deferred = DeferredInputs(sets)
        bench.auditor = CopyEngineAudit(sets, watch, deferred, grading.audit_tally, ranks=False)
        bench.auditor.learn(CALL_S * 1e6)
        premature = f"benchmark 'practice': {PREMATURE}"
        reasons: set[str] = set()
        rounds = 0
        is_found = False
        give_up_s = time.monotonic() + PATIENCE_S
        # By chance none of ten deferred sets may prove anything, and on a busy machine none may be
        # in time, so rounds go on until one does.
        while rounds < 10 or not (is_found or time.monotonic() > give_up_s):
            rounds += 1
            try:
                bench.round(rounds, list(range(CALLS)))  # a known order, as that of a graph is
            except SubmissionFault as stop:
                reasons.add(stop.fault.reason)
            is_found = deferred.counts.in_time > 1 and (is_honest or premature in reasons)
        sets.close()
    assert deferred.counts.deferred == rounds
    assert deferred.counts.in_time > 1
    assert (premature in reasons) != is_honest
    # Inputs that are read ahead while they are written give outputs of a mixture.
    mixture = "on inputs with a part written just before the call"
    assert all(mixture in reason and not is_honest for reason in reasons - {premature})
