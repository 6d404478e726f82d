"""A benchmark case: warm-up, rounds, what the auditor is asked, and which times count."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.judge import benchmark as module
from grader.judge import benchmark_case, grade
from grader.judge.benchmark import Benchmark, open_benchmark
from grader.judge.benchmark_case import benchmark
from grader.judge.correctness.check import CheckResult
from grader.judge.grading import Grading
from grader.judge.integrity.auditor import Auditor, Evidence
from grader.judge.integrity.call_order import rotated
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.record import Effort, Record
from grader.judge.round_inputs import VARIANTS
from grader.judge.timing.measure import Sample, measure
from grader.judge.timing.plan import PLANS, POLICY
from grader.judge.timing.round import MeasuredRound
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem.spec import Case
from grader.report import Rule, Verdict
from grader.sandbox.process import ProcessSandbox
from grader.submission import Submission
from grader.wire import Flag, Reply, Status, pack_request
from tests.judge.auditors import ScriptedAudit
from tests.judge.conftest import HONEST, INPUTS, SPEC, WriteProblem
from tests.judge.timing.test_measure import CALLS, PLAN, honest

COUNT = 4
WITH_VARIANTS = SPEC.replace("{n: 4096, dtype: fp32}", "{n: 256, dtype: fp32, far: 0}")
WITH_VARIANTS += "variants: {far: [1, 2, 3, 4, 5]}"
FAR_INPUTS = INPUTS.replace("n, dtype)", "n, dtype, far=0)").replace(
    "    return", "    x += 1000 * far\n    return"
)
EARLY = Fault(Verdict.REJECTED, "inputs were read before their call began", Rule.WORK_OUTSIDE_CALL)
REUSED: Any = SimpleNamespace()
"""Stands for the arena that benchmarks share."""
BLIND = Evidence(discard="the judge could not watch")


class HostRunner:
    """A session with a runner in this process, which calls the tiny problem's kernel in order."""

    stopped = contextlib.nullcontext

    def __init__(self) -> None:
        self.sets: Any = None
        self.captures = True
        self.spoil: Callable[[int], bool] = lambda _: False
        """Whether the outputs of a set get a wrong element."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.first: list[bool] = []
        """Of each step that calls the entry, whether it is the first and may compile."""
        self._round: dict[str, Any] = {}

    @property
    def orders(self) -> list[list[int]]:
        """The order of each round."""
        return [request["order"] for kind, request in self.asked if kind == "ready"]

    def ask(self, kind: str, request: dict[str, Any], limit_s: float, what: str, **_: Any) -> Reply:
        self.asked.append((kind, request))
        if kind == "ready":
            self._round = request
        is_graph = kind == "capture" and self.captures
        return Reply(0, Status.OK, Flag.GRAPH if is_graph else 0)

    @contextlib.contextmanager
    def calling(self, is_first: bool) -> Iterator[None]:
        self.first.append(is_first)
        yield

    def prepare(self, kind: str, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return kind, request

    def send_prepared(self, prepared: tuple[str, dict[str, Any]], what: str) -> int:
        self.asked.append(prepared)
        return 1

    def has_reply(self) -> bool:
        return True

    def receive(self, sequence: int, limit_s: float, what: str) -> Reply:
        for index in self._round["order"]:
            self.call(index)
        return Reply(sequence, Status.OK, reported_ns=1)

    def call(self, index: int) -> None:
        lent = self.sets._views(index, self.sets.lent, 0)
        lent["total"] += lent["x"]
        lent["out"].copy_(lent["x"] * self.sets.scalars["factor"])
        if self.spoil(index):
            lent["out"][7] = 1e9


class Rounds(Benchmark):
    """Rounds of a runner in this process that are measured as the test wants, per call."""

    runner: HostRunner
    reported_us = measured_us = 100.0
    publish_us = 0.0
    sm_mhz: float | None = None

    def round(self, number: int, order: list[int] | None = None) -> Sample:
        self.numbers.append(number)
        return super().round(number, order)

    def _run(self, order: list[int], auditor: Auditor) -> MeasuredRound:
        super()._run(order, auditor)
        calls = len(order)
        reported_us, measured_us = self.reported_us * calls, self.measured_us * calls
        return MeasuredRound(calls, reported_us, measured_us, self.publish_us, self.sm_mhz)

    def __init__(self, *arguments: Any) -> None:
        self.numbers: list[int] = []
        super().__init__(*arguments)


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedAudit]:
    """The auditors of the test's benchmarks, in the order in which they were made."""
    made: list[ScriptedAudit] = []

    def audit_of(*_: Any) -> ScriptedAudit:
        made.append(ScriptedAudit())
        return made[-1]

    monkeypatch.setattr(module, "audit_of", audit_of)
    return made


Open = Callable[..., Rounds]


@pytest.fixture
def rounds(write_problem: WriteProblem, audits: list[ScriptedAudit]) -> Iterator[Open]:
    """Benchmarks of the tiny problem as on a GPU, but that everything runs on the processor."""
    with contextlib.ExitStack() as stack:

        def make(
            gate: bool = True,
            captures: bool = True,
            effort: Effort = "full",
            spec: str = WITH_VARIANTS,
            count: int = COUNT,
            **costs: Any,
        ) -> Rounds:
            problem = write_problem(spec=spec, inputs=FAR_INPUTS)
            runner: Any = HostRunner()
            grading = Grading(problem, runner, "cpu", 1, Record(), effort)
            grading.device = "cuda"
            for name, value in costs.items():
                setattr(grading, name, value)
            case = problem.cases("benchmark", "cpu")[0]
            sets = ArgumentSets(problem, case, grading.code.inputs(case, 1), count, "cpu")
            stack.callback(sets.close)
            runner.sets, runner.captures = sets, captures
            made = Rounds(grading, case, sets, gate, True)
            made.runner = runner
            return made

        yield make


# --- rounds


def test_an_honest_round_gives_its_times_per_call(rounds: Open) -> None:
    bench = rounds()
    bench.reported_us, bench.measured_us, bench.sm_mhz = 90.0, 100.0, 1979.5
    assert bench.round(1) == Sample(90.0, 100.0, None, 1979.5)


@pytest.mark.parametrize(
    ("count", "fit"), [(1, "1 argument set fits"), (POLICY.least_calls - 1, "argument sets fit")]
)
def test_a_case_of_few_sets_is_checked_and_timed_and_never_ranks(
    rounds: Open, audits: list[ScriptedAudit], count: int, fit: str
) -> None:
    bench = rounds(count=count)
    assert not audits
    reason = bench.auditor.unranked_reason()
    assert reason is not None
    assert f"only {count}" in reason
    assert fit in reason
    assert bench.round(1) == Sample(100.0, 100.0)
    assert sorted(bench.runner.orders[-1]) == list(range(count))
    bench.runner.spoil = lambda index: index == count - 1
    with pytest.raises(SubmissionFault) as caught:
        bench.round(2)
    assert caught.value.fault.verdict is Verdict.WRONG_ANSWER


def test_a_measured_time_is_less_its_rounds_cost_and_more_by_delays(rounds: Open) -> None:
    """Publishing is calibrated per set, and each round of four publishes four."""
    bench = rounds(round_cost_us=40.0, publish_us_per_set={"small": 50.0})
    bench.publish_us = 200 + POLICY.delay_us - 1
    assert bench.round(1).measured_us == 100 - 40 / COUNT
    bench.publish_us = 200 + POLICY.delay_us
    assert bench.round(2).measured_us == 100 + (POLICY.delay_us - 40) / COUNT
    unknown = rounds(round_cost_us=40.0)
    unknown.publish_us = 1e6
    assert unknown.round(1).measured_us == 100 - 40 / COUNT


def test_every_round_has_fresh_inputs_in_every_set(rounds: Open) -> None:
    bench = rounds()
    seen = []
    for number in (1, 2):
        bench.round(number)
        seen += [bench.sets.inputs(i)["x"].clone() for i in range(COUNT)]
    assert len({tuple(x.tolist()) for x in seen}) == 2 * COUNT


def test_rounds_that_are_no_replays_begin_with_any_set_and_go_around(rounds: Open) -> None:
    bench = rounds()
    for number in range(40):
        bench.round(number)
    assert {order[0] for order in bench.runner.orders} == set(range(COUNT))
    assert all(order == rotated(COUNT, order[0]) for order in bench.runner.orders)
    bench.runner.asked.clear()
    bench.graph = True
    for number in range(40, 50):
        bench.round(number)
    assert bench.runner.orders == [list(range(COUNT))] * 10


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_only_a_graph_waits_at_the_gate(rounds: Open, graph: bool, gate: bool) -> None:
    bench = rounds(gate=gate)
    bench.graph = graph
    bench.round(1)
    asked = dict(bench.runner.asked)
    assert asked["ready"]["graph"] is graph
    assert ("gate" in asked["go"]) is (graph and gate)


# --- the auditor


def test_a_round_is_armed_with_its_order_and_concluded_with_its_measured_time(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    bench = rounds()
    bench.reported_us, bench.measured_us = 3.0, 120.0
    bench.round(1)
    (audit,) = audits
    assert audit.orders == bench.runner.orders
    assert audit.round_us == [120.0 * COUNT]
    kept = [step for step in audit.steps if step != "sample_early"]
    assert kept == ["arm", "watch", "disarm", "conclude", "learn"]


def test_other_inputs_are_like_those_of_the_set_and_no_others(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    """They are what lies in a set until the true part is written."""
    bench = rounds()
    for number in (1, 2):
        bench.round(number)
    drawn = [other(i)["x"] for other in audits[0].other_inputs for i in range(COUNT)]
    drawn += [bench.sets.inputs(i)["x"] for i in range(COUNT)]
    assert len({tuple(x.tolist()) for x in drawn}) == 3 * COUNT
    assert {x.shape for x in drawn} == {drawn[0].shape}


def test_a_single_call_is_not_audited(rounds: Open, audits: list[ScriptedAudit]) -> None:
    bench = rounds()
    assert bench.round(-10, [2]).discard is None
    assert bench.runner.orders == [[2]]
    assert audits[0].steps == []


def test_an_auditor_learns_the_measured_time_and_never_the_reported_one(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    bench = rounds(round_cost_us=40.0)
    for number, (measured_us, reported_us) in enumerate([(100, 0.0), (120, 1e6), (95, 5.0)]):
        bench.measured_us, bench.reported_us = measured_us, reported_us
        assert bench.round(number).discard is None
    assert audits[0].learned_us == [90, 110, 85]


def test_an_auditor_learns_nothing_of_variants(rounds: Open, audits: list[ScriptedAudit]) -> None:
    """Their calls may take less time."""
    bench = rounds()
    bench.round(VARIANTS)
    bench.round(VARIANTS + 1)
    assert audits[0].learned_us == []
    assert audits[0].steps.count("conclude") == 2, "but they are audited"


def test_a_discarded_round_is_not_learned(rounds: Open, audits: list[ScriptedAudit]) -> None:
    bench = rounds()
    audits[0].evidence = [BLIND, Evidence()]
    assert bench.round(1).discard == BLIND.discard
    assert audits[0].learned_us == []
    assert bench.round(2).discard is None
    assert audits[0].learned_us == [100]


def pretend_gpu(bench: Rounds, calls_us: float) -> None:
    """Rounds that are as on a GPU, and do nothing."""
    substitute: Any = bench
    substitute.check = ScriptedCheck()
    substitute.sets.device = "cuda"
    substitute._run = lambda order, _: MeasuredRound(len(order), calls_us, calls_us, 0)
    substitute._inputs = SimpleNamespace(fill=lambda *_: None)
    substitute.grading.faults_of = lambda *_: []


@pytest.mark.parametrize(
    ("evidence", "throttled", "discard"),
    [
        (Evidence(), None, None),
        (Evidence(), "thermal limit", "thermal limit"),
        (BLIND, None, BLIND.discard),
        (BLIND, "thermal limit", BLIND.discard),
    ],
)
def test_a_round_of_a_throttled_gpu_does_not_count(
    rounds: Open,
    audits: list[ScriptedAudit],
    monkeypatch: pytest.MonkeyPatch,
    evidence: Evidence,
    throttled: str | None,
    discard: str | None,
) -> None:
    bench = rounds()
    audits[0].evidence = [evidence]
    monkeypatch.setattr(module, "throttle_reason", lambda: throttled)
    assert bench.round(1).discard == evidence.discard, "no GPU, nothing to ask"
    pretend_gpu(bench, 400)
    assert bench.round(2).discard == discard


def test_a_throttled_round_is_learned_all_the_same(
    rounds: Open, audits: list[ScriptedAudit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls were right and took no less than others; the least counts."""
    bench = rounds()
    pretend_gpu(bench, 400)
    monkeypatch.setattr(module, "throttle_reason", lambda: "thermal limit")
    assert bench.round(1).discard == "thermal limit"
    assert audits[0].learned_us == [100]


def test_a_fault_of_the_auditor_ends_the_grading_and_names_the_case(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    bench = rounds()
    audits[0].evidence = [Evidence((EARLY,))]
    with pytest.raises(SubmissionFault) as stop:
        bench.round(1)
    assert stop.value.fault == replace(EARLY, reason=f"benchmark 'small': {EARLY.reason}")
    assert audits[0].learned_us == []


# --- the outputs


def test_a_wrong_output_is_a_wrong_answer_whatever_the_auditor_says(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    bench = rounds()
    audits[0].evidence = [Evidence((EARLY,))]
    bench.runner.spoil = lambda index: index == 2
    with pytest.raises(SubmissionFault, match=r"^benchmark 'small': [^b]") as stop:
        bench.round(1)
    assert stop.value.fault.verdict is Verdict.WRONG_ANSWER
    assert [fault.rule for fault in stop.value.faults] == [None, EARLY.rule]
    assert bench.grading.record.faults == [], "it is raised, not recorded"
    assert audits[0].learned_us == []


def test_every_set_is_checked_but_the_unchecked(rounds: Open, audits: list[ScriptedAudit]) -> None:
    bench = rounds()
    for wrong in range(COUNT):
        bench.runner.spoil = lambda index, wrong=wrong: index == wrong  # type: ignore[misc]
        others = frozenset(range(COUNT)) - {wrong}
        audits[0].evidence = [Evidence(unchecked=others)]
        with pytest.raises(SubmissionFault):
            bench.round(1)
        audits[0].evidence = [Evidence(unchecked=frozenset({wrong}))]
        bench.round(2)
    bench.runner.spoil = lambda _: True
    audits[0].evidence = [Evidence(unchecked=frozenset(range(COUNT)))]
    assert bench.round(3).discard is None


@pytest.mark.parametrize(
    ("number", "deferred", "words"),
    [
        (1, set(), ""),
        (1, {0, 3}, ""),  # the wrong one is set 2
        (1, {2}, ", on inputs with a part written just before the call"),
        (VARIANTS, set(), ", on inputs with far=[1-5]"),
        (VARIANTS, {2}, ", on inputs with far=[1-5] and a part written just before the call"),
    ],
)
def test_a_wrong_answer_says_what_is_particular_about_its_inputs(
    rounds: Open, audits: list[ScriptedAudit], number: int, deferred: set[int], words: str
) -> None:
    bench = rounds()
    audits[0].evidence = [Evidence(deferred=frozenset(deferred))]
    bench.runner.spoil = lambda index: index == 2
    with pytest.raises(SubmissionFault, match=rf"^benchmark 'small': [^,]*{words}$"):
        bench.round(number)


def test_outputs_that_become_right_after_done_are_work_outside_the_call(
    rounds: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = rounds()
    bench.runner.spoil = lambda index: index == 2

    def finish(_: float) -> None:
        bench.runner.spoil = lambda _: False
        lent = bench.sets._views(2, bench.sets.lent, 0)
        lent["out"].copy_(lent["x"] * bench.sets.scalars["factor"])

    monkeypatch.setattr("grader.judge.grading.time.sleep", finish)
    with pytest.raises(SubmissionFault) as stop:
        bench.round(1)
    assert stop.value.fault.rule is Rule.WORK_OUTSIDE_CALL
    bench.runner.spoil = lambda index: index == 2
    monkeypatch.setattr("grader.judge.grading.time.sleep", lambda _: None)
    with pytest.raises(SubmissionFault) as stop:
        bench.round(2)
    assert stop.value.fault.verdict is Verdict.WRONG_ANSWER


def test_a_written_input_is_tampered_memory(rounds: Open) -> None:
    bench = rounds()

    def tamper(index: int) -> bool:
        bench.sets._views(index, bench.sets.lent, 0)["x"].zero_()
        return False

    bench.runner.spoil = tamper
    with pytest.raises(SubmissionFault) as stop:
        bench.round(1)
    assert stop.value.fault.rule is Rule.MEMORY_TAMPERED


class ScriptedCheck:
    """A `RoundCheck` that finds `failure`, and records which rounds were checked thoroughly."""

    def __init__(self, failure: str | None = None) -> None:
        self.failure = failure
        self.thorough: list[bool] = []
        self.begun: list[tuple[list[int], bool]] = []
        self.eager_us: list[float] = []

    def begin(self, order: list[int], is_ordinary: bool) -> None:
        self.begun.append((order, is_ordinary))

    def refresh(self) -> None: ...

    def worst(self, unchecked: Any, thorough: bool, named: Any) -> CheckResult:
        self.thorough.append(thorough)
        return CheckResult(failure=self.failure)


@pytest.mark.parametrize("lot", range(POLICY.thorough_one_in))
def test_one_round_in_some_and_the_first_ones_are_checked_thoroughly(
    rounds: Open, monkeypatch: pytest.MonkeyPatch, lot: int
) -> None:
    """A right answer that is less exact may be faster."""
    bench = rounds()
    bench.graph = True  # no other lots are drawn
    check: Any = ScriptedCheck()
    bench.check = check
    bounds: list[int] = []

    def randbelow(bound: int) -> int:
        bounds.append(bound)
        return lot

    monkeypatch.setattr(module, "secrets", SimpleNamespace(randbelow=randbelow))
    numbers = [0, 1, 2, 3, 17, -10, VARIANTS]
    for number in numbers:
        bench.round(number)
    assert check.thorough == [lot == 0 or number in (0, 1) for number in numbers]
    assert set(bounds) == {POLICY.thorough_one_in}


def test_the_check_begins_with_the_order_and_whether_inputs_are_ordinary(rounds: Open) -> None:
    bench = rounds()
    check: Any = ScriptedCheck()
    bench.check, bench.graph = check, True
    for number, order in (1, None), (VARIANTS, None), (-10, [3]):
        bench.round(number, order)
    every = list(range(COUNT))
    assert check.begun == [(every, True), (every, False), ([3], True)]


# --- rest


@pytest.mark.parametrize(
    ("last_us", "rest_s"), [(0.0, 0.0), (400.0, 30 * 400e-6), (1e6, POLICY.most_rest_s)]
)
def test_a_tensor_bound_chip_rests_in_proportion_to_its_last_round(
    rounds: Open, monkeypatch: pytest.MonkeyPatch, last_us: float, rest_s: float
) -> None:
    monkeypatch.setattr(module, "is_tensor_bound", lambda *_: True)
    slept: list[float] = []
    bench = rounds()
    monkeypatch.setattr("grader.judge.benchmark.time.sleep", slept.append)
    bench.reported_us = last_us / COUNT
    bench.round(1)
    bench.round(2)
    assert slept == [0, pytest.approx(rest_s)]


@pytest.mark.parametrize(("effort", "is_bound"), [("full", False), ("quick", True)])
def test_other_rounds_do_not_rest(
    rounds: Open, monkeypatch: pytest.MonkeyPatch, effort: Effort, is_bound: bool
) -> None:
    monkeypatch.setattr(module, "is_tensor_bound", lambda *_: is_bound)
    slept: list[float] = []
    bench = rounds(effort=effort)
    monkeypatch.setattr("grader.judge.benchmark.time.sleep", slept.append)
    for number in (1, 2):
        bench.round(number)
    assert slept == []


# --- warm-up


def test_a_warm_up_calls_one_set_twice_and_keeps_a_graph_that_is_right(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    bench = rounds(round_cost_us=10.0)
    bench.measured_us = 110.0
    bench.warm_up()
    assert bench.numbers == [-10, -11, 0]
    first, second, replay = bench.runner.orders
    assert first == second
    assert len(first) == 1
    assert replay == list(range(COUNT))
    assert ("capture", {"order": replay}) in bench.runner.asked
    assert bench.graph
    assert bench.cold_us == 100, "launch included, so the cost of a round is subtracted once"
    assert bench.first == Sample(100, 110 - 10 / COUNT)
    assert audits[0].learned_us == [110 - 10 / COUNT], "single calls are not learned"
    assert bench.runner.first == [True, False, False, False], "only the first call may compile"


def test_a_cold_time_is_of_the_second_call(rounds: Open) -> None:
    class Compiling(Rounds):
        def _run(self, order: list[int], auditor: Auditor) -> MeasuredRound:
            self.measured_us = {-10: 5e6, -11: 300.0}.get(self.numbers[-1], 100.0)
            return super()._run(order, auditor)

    bench = rounds()
    bench.__class__ = Compiling
    bench.warm_up()
    assert bench.cold_us == 300


def test_calls_that_cannot_be_captured_have_one_more_round_before_the_first(rounds: Open) -> None:
    """What is planned once per set is planned there."""
    bench = rounds(gate=False, captures=False)
    bench.warm_up()
    assert bench.numbers == [-10, -11, -12, 0]
    assert not bench.graph


def test_a_case_is_not_captured_again_without_being_asked(rounds: Open) -> None:
    bench = rounds(gate=False)
    bench.captures = False
    bench.warm_up()
    assert not bench.graph
    assert "capture" not in dict(bench.runner.asked)


def test_the_warm_ups_last_round_counts_and_no_number_comes_again(rounds: Open) -> None:
    bench = rounds()
    bench.warm_up()
    first = bench.first
    assert bench.next(0) is first
    bench.next(1)
    assert bench.numbers[-1] == 2


def test_until_a_round_was_watched_none_counts(rounds: Open, audits: list[ScriptedAudit]) -> None:
    """There is no pace for deferred inputs before, so the first that was watched has none."""
    bench = rounds()
    bench._variants_before = 5
    audits[0].evidence = [BLIND, BLIND, Evidence()]
    bench.warm_up()
    samples = [bench.next(number) for number in range(4)]
    assert [sample.discard for sample in samples] == [BLIND.discard] * 2 + [None] * 2
    assert audits[0].learned_us == [100] * 2


def test_after_a_wrong_replay_no_inputs_come_again(rounds: Open) -> None:
    bench = rounds(gate=False)
    bench.runner.spoil = lambda _: bench.graph
    bench.warm_up()
    assert not bench.graph
    assert bench.first is None
    (note,) = bench.grading.record.notes
    assert note.startswith("'small': a replayed CUDA graph gave wrong outputs (benchmark 'small':")
    assert note.endswith("); timed eagerly")
    assert bench.grading.record.faults == []
    bench.runner.asked.clear()
    measure(bench.next, PLAN, CALLS, bench.graph, True)
    assert len(bench.numbers) > PLAN.least_rounds + 1
    assert len(set(bench.numbers)) == len(bench.numbers)
    assert bench.numbers.count(VARIANTS) == 1
    assert all(not request["graph"] for kind, request in bench.runner.asked if kind == "ready")


def test_what_was_learned_of_a_wrong_replay_is_forgotten(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    """A replay that does nothing is fast, and so may those before it have been."""
    bench = rounds(gate=False)
    bench.measured_us = 1.0

    def spoil(_: int) -> bool:
        if bench.graph and bench.numbers[-1] in wrong:
            bench.measured_us = 100.0  # what is timed eagerly takes longer
            return True
        return False

    wrong = {0}
    bench.runner.spoil = spoil
    bench.warm_up()
    assert not bench.graph
    assert bench.numbers == [-10, -11, 0, -14]
    assert audits[0].learned_us == []
    assert bench.auditor is audits[1]
    assert audits[1].learned_us == [100]


def test_a_replay_that_was_right_once_and_then_wrong_is_forgotten_too(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    """Round 0 was right and its inputs were delayed, so that another one follows at once."""
    bench = rounds(gate=False, publish_us_per_set={"small": 0.0})
    bench.publish_us = 2 * POLICY.held_up_us
    bench.runner.spoil = lambda _: bench.graph and bench.numbers[-1] == -13
    bench.warm_up()
    assert not bench.graph
    assert bench.first is None
    assert bench.numbers == [-10, -11, 0, -13, -14]
    delayed_us = 100 + 2 * POLICY.held_up_us / COUNT
    assert audits[0].learned_us == [delayed_us]
    assert bench.auditor is audits[1]
    assert audits[1].learned_us == [delayed_us]


def test_a_wrong_replay_at_the_gate_needs_a_longer_round_before_anything_is_learned(
    rounds: Open, audits: list[ScriptedAudit]
) -> None:
    bench = rounds(gate=True)
    bench.runner.spoil = lambda _: bench.graph
    bench.warm_up()
    assert bench.numbers == [-10, -11, 0]
    assert bench.needs_messages
    assert [audit.learned_us for audit in audits] == [[], []]


def test_the_overlaps_of_a_wrong_replay_do_not_count(rounds: Open) -> None:
    """A wrong answer is no broken rule; calls that are timed eagerly start anew."""
    bench = rounds(gate=False)
    log = bench.grading.audit_tally

    def spoil(_: int) -> bool:
        if bench.graph:
            bench.grading.audit_tally.overlaps += 1
            bench.grading.audit_tally.explained.append(False)
        return bench.graph

    log.overlaps, log.explained = 1, [True]  # of another case
    bench.runner.spoil = spoil
    bench.warm_up()
    assert not bench.graph
    assert (bench.grading.audit_tally.overlaps, bench.grading.audit_tally.explained) == (1, [True])


@pytest.mark.parametrize("fault", [EARLY, Fault(Verdict.RUNTIME_ERROR, "ended by itself")])
def test_a_replay_with_another_fault_ends_the_grading(
    rounds: Open, audits: list[ScriptedAudit], fault: Fault
) -> None:
    bench = rounds()
    audits[0].evidence = [Evidence((fault,))]
    with pytest.raises(SubmissionFault, match=fault.reason):
        bench.warm_up()


@pytest.mark.parametrize("number", [-10, -12, 0])
def test_calls_that_are_wrong_without_a_graph_end_the_grading(rounds: Open, number: int) -> None:
    bench = rounds(gate=False, captures=False)
    bench.runner.spoil = lambda _: bench.numbers[-1] == number
    with pytest.raises(SubmissionFault) as stop:
        bench.warm_up()
    assert stop.value.fault.verdict is Verdict.WRONG_ANSWER
    assert bench.grading.record.notes == []


@pytest.mark.parametrize(
    ("delays_us", "needs_messages"),
    [([0], False), ([1900, 1900], True), ([1900, 20], False), ([500], False)],
)
def test_a_graph_that_holds_up_its_inputs_does_not_wait_at_the_gate(
    rounds: Open, delays_us: list[float], needs_messages: bool
) -> None:
    """A graph with branches does, and an honest one must not pay for it. Once may be chance."""
    left = list(delays_us)

    class Delayed(Rounds):
        def _run(self, order: list[int], auditor: Auditor) -> MeasuredRound:
            self.publish_us = 300 + (left.pop(0) if len(order) == COUNT else 0)
            return super()._run(order, auditor)

    bench = rounds(publish_us_per_set={"small": 300 / COUNT})
    bench.__class__ = Delayed
    bench.warm_up()
    assert not left
    assert bench.needs_messages is needs_messages


@pytest.mark.parametrize(
    ("gate", "captures", "effort", "needs_messages"),
    [
        (True, True, "full", False),
        (True, False, "full", True),
        (False, False, "full", False),
        (True, False, "quick", False),
    ],
)
def test_rounds_that_cannot_wait_at_the_gate_need_messages_where_times_rank(
    rounds: Open, gate: bool, captures: bool, effort: Effort, needs_messages: bool
) -> None:
    bench = rounds(gate=gate, captures=captures, effort=effort)
    bench.warm_up()
    assert bench.needs_messages is needs_messages
    assert (0 in bench.numbers) is not needs_messages


# --- variants


def test_rounds_of_variants_come_once_at_a_secret_point_and_do_not_count(rounds: Open) -> None:
    """They come before a round that every measurement has; which one is a secret."""
    plan, points = PLANS["cuda", "full"], set()
    for _ in range(60):
        done: list[int] = []

        class Scripted(Benchmark):
            def __init__(self) -> None:
                self.first = None
                self._inputs: Any = SimpleNamespace(variant_rounds=2)
                self._variants_before = 1 + secrets.randbelow(plan.least_rounds - 1)

            def round(self, number: int, order: list[int] | None = None) -> Sample:
                done.append(number)  # noqa: B023
                return Sample(5000, 5000) if number >= VARIANTS else honest()

        timing = measure(Scripted().next, plan, CALLS, True, False)
        assert timing.rounds == len(done) - 2
        assert max(timing.round_us) < 5000
        points.add(done.index(VARIANTS))
        assert done.count(VARIANTS + 1) == 1
    assert len(points) == plan.least_rounds - 1


def test_the_point_of_variants_is_drawn_among_the_rounds_that_every_measurement_has(
    rounds: Open,
) -> None:
    one = rounds()
    again = (one.grading, one.case, one.sets, True, True)
    found = {Rounds(*again)._variants_before for _ in range(100)}
    assert found == set(range(1, PLANS["cuda", "full"].least_rounds))


def test_every_variant_has_its_round(rounds: Open) -> None:
    bench = rounds()
    bench._variants_before = 1
    bench.warm_up()
    bench.next(0)
    bench.next(1)
    assert bench.numbers[-3:] == [VARIANTS, VARIANTS + 1, 2], "five variants, of four sets each"


# --- a whole case


@pytest.mark.parametrize("unranked", [None, "the inputs came too late"])
@pytest.mark.parametrize(
    ("captured", "ranks", "attempts"),
    [
        (True, True, [(True, True)]),
        (False, True, [(True, True), (False, False)]),
        (False, False, [(True, True)]),
    ],
)
def test_a_case_that_cannot_wait_at_the_gate_is_measured_in_longer_rounds(
    monkeypatch: pytest.MonkeyPatch,
    captured: bool,
    ranks: bool,
    attempts: list[tuple[bool, bool]],
    unranked: str | None,
) -> None:
    opened: list[tuple[bool, bool]] = []

    @contextlib.contextmanager
    def open_like(
        grading: Any, case: Any, gate: bool, captures: bool, reused: Any
    ) -> Iterator[Any]:
        assert reused is REUSED
        opened.append((gate, captures))
        yield SimpleNamespace(
            grading=grading,
            case=case,
            next=lambda _: honest(),
            plan=PLAN,
            sets=SimpleNamespace(count=CALLS if gate else 2 * CALLS),
            graph=captured and gate,
            needs_messages=gate and not captured and ranks,
            auditor=ScriptedAudit(unranked=unranked),
            cold_us=7.0,
            check=SimpleNamespace(eager_us=[3.0]),
        )

    monkeypatch.setattr(benchmark_case, "open_benchmark", open_like)
    monkeypatch.setattr(benchmark_case, "benchmark_result", lambda *given: given)
    grading: Any = SimpleNamespace(ranks=ranks, record=Record(), device="cuda", returns=False)
    case = Case(name="any", params={})
    result: Any = benchmark(grading, REUSED, case)
    timing = result[2]
    assert result == (grading, case, timing, 7.0, [3.0], None)
    assert opened == attempts
    assert timing.calls_per_round == (2 * CALLS if len(attempts) == 2 else CALLS)
    assert (timing.time_us, timing.graph) == (50, captured)
    assert timing.converged is (unranked is None), "without an audit it does not rank"
    notes = [] if unranked is None else [f"not ranked: of 'any' {unranked}"]
    assert grading.record.notes == notes
    assert grading.record.unranked_cases == ([] if unranked is None else ["any"])


@pytest.mark.parametrize(
    ("returns", "roles", "copied"),
    [
        (True, ["in", "inout", "out"], [["c"]]),
        (True, ["in", "inout", "inout"], []),
        (False, ["in", "inout", "out"], []),
    ],
)
def test_only_outputs_that_are_returned_are_copied(
    monkeypatch: pytest.MonkeyPatch, returns: bool, roles: list[str], copied: list[list[str]]
) -> None:
    """State is written in place."""
    found: list[list[str]] = []

    def returned_copy_us(outputs: dict[str, object], device: str) -> float:
        found.append(list(outputs))
        return 2.5

    monkeypatch.setattr(benchmark_case, "returned_copy_us", returned_copy_us)
    args = [SimpleNamespace(name=n, role=r) for n, r in zip("abc", roles, strict=True)]
    outputs = {a.name: object() for a in args if a.role != "in"}
    bench: Any = SimpleNamespace(
        grading=SimpleNamespace(
            returns=returns,
            device="cuda",
            record=Record(),
            problem=SimpleNamespace(spec=SimpleNamespace(args=args)),
        ),
        case=Case(name="any", params={}),
        sets=SimpleNamespace(outputs=lambda _: outputs),
    )
    assert benchmark_case._copy_us(bench) == (2.5 if copied else None)
    assert found == copied
    assert len(bench.grading.record.notes) == len(copied)


@pytest.mark.parametrize("ranks", [False, True])
def test_a_reported_time_that_is_forged_ends_the_grading(
    monkeypatch: pytest.MonkeyPatch, ranks: bool
) -> None:
    samples = itertools.chain(
        [Sample(20, 1000, "thermal limit")] * 2, itertools.repeat(Sample(20, 1000))
    )

    @contextlib.contextmanager
    def open_like(grading: Any, case: Any, **_: Any) -> Iterator[Any]:
        yield SimpleNamespace(
            grading=grading,
            case=case,
            next=lambda _: next(samples),
            plan=PLAN,
            sets=SimpleNamespace(count=CALLS),
            graph=True,
            needs_messages=False,
            auditor=Auditor(),
            cold_us=7.0,
            check=SimpleNamespace(eager_us=[]),
        )

    monkeypatch.setattr(benchmark_case, "open_benchmark", open_like)
    monkeypatch.setattr(benchmark_case, "benchmark_result", lambda *given: given)
    grading: Any = SimpleNamespace(ranks=ranks, record=Record(), device="cuda", returns=False)
    if ranks:
        with pytest.raises(SubmissionFault) as stop:
            benchmark(grading, REUSED, Case(name="any", params={}))
        assert stop.value.fault.rule is Rule.TIME_CLAIM
    else:
        result: Any = benchmark(grading, REUSED, Case(name="any", params={}))
        assert result[2].time_us == 20
        assert grading.record.notes == ["'any': 2 rounds left out (thermal limit)"]


@pytest.mark.parametrize("sharing", [1, 2])
def test_compilation_ends_after_a_case_is_laid_out_and_before_it_is_lent(
    monkeypatch: pytest.MonkeyPatch, sharing: int
) -> None:
    """What the runner did then would be timed beside the compilers."""
    did: list[str] = []
    laid_out = SimpleNamespace(
        warm_up=lambda: did.append("warm up"),
        check=SimpleNamespace(release=lambda: did.append("release")),
    )
    sets = SimpleNamespace(close=lambda: did.append("close"))
    grading: Any = SimpleNamespace(
        new_sets=lambda *_: sets, expect_device_memory=lambda: did.append("memory"),
        finish_precompiling=lambda: did.append("await"), lend=lambda _: did.append("lend"),
    )  # fmt: skip

    def lay_out(*_: Any) -> Any:
        did.append("lay out")
        return laid_out

    monkeypatch.setattr(module, "Benchmark", lay_out)
    with open_benchmark(grading, Case(name="tiny", params={}), sharing):
        did.append("rounds")
    # With another benchmark on the GPU, its sets would be taken for hoarded memory.
    memory = ["memory"] if sharing == 1 else []
    assert did == [
        "lay out", "await", "lend", "warm up", "rounds", *memory, "release", "close"
    ]  # fmt: skip


def test_sets_are_closed_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    sets = SimpleNamespace(close=lambda: closed.append(True))
    grading: Any = SimpleNamespace(
        new_sets=lambda *_: sets, finish_precompiling=lambda: None, lend=lambda _: None,
    )  # fmt: skip

    def fail() -> None:
        raise SubmissionFault(EARLY)

    monkeypatch.setattr(module, "Benchmark", lambda *_: SimpleNamespace(warm_up=fail))
    with (
        pytest.raises(SubmissionFault),
        open_benchmark(grading, Case(name="tiny", params={})),
    ):
        pass
    assert closed == [True]


# --- practice times of a CPU


def on_a_cpu(bench: Rounds, reported_us: float, call_us: float, start_us: float) -> list[Sample]:
    """Has rounds cost `start_us` besides calls of `call_us`. Returns the long ones, as they run."""
    bench.grading.device = "cpu"
    bench.reported_us = reported_us
    long: list[Sample] = []
    run = bench._run

    def timed(order: list[int], auditor: Auditor) -> MeasuredRound:
        bench.measured_us = call_us + start_us / len(order)
        if len(order) > COUNT:
            long.append(Sample(reported_us, bench.measured_us))
        return run(order, auditor)

    bench._run = timed  # type: ignore[method-assign]
    return long


@pytest.mark.parametrize(
    ("reported_us", "call_us", "start_us", "is_long", "shown_us"),
    [
        (60, 60, 100, False, 60),
        (2, 2, 100, True, 2),  # an honest tiny kernel: its rounds are mostly their start
        (0.4, 0.4, 300, True, 0.4),
        (0, 60, 100, True, 60),  # a frozen clock
        (29, 60, 100, True, 60),
        (31, 60, 100, True, 31),
        (0, 30_000, 100, False, 30_025),  # rounds that are long already
        (1e6, 60, 100, False, 1e6),
    ],
)
def test_a_cpu_s_report_is_shown_unless_the_judge_measured_twice_as_much(
    rounds: Open,
    reported_us: float,
    call_us: float,
    start_us: float,
    is_long: bool,
    shown_us: float,
) -> None:
    bench = rounds()
    long = on_a_cpu(bench, reported_us, call_us, start_us)
    timing = benchmark_case._measured(bench)
    assert timing.time_us == pytest.approx(shown_us, rel=0.01)
    assert len(long) == (POLICY.long_rounds if is_long else 0)
    is_ours = shown_us != reported_us
    notes = bench.grading.record.notes
    assert [note.startswith("the time of 'small' is the judge's") for note in notes] == [
        True
    ] * is_ours
    if is_ours:
        assert f"reported {reported_us:.1f} µs" in notes[0]
        assert timing.ci_us[0] <= timing.time_us <= timing.ci_us[1]
        assert min(timing.round_us) >= call_us


def test_the_request_for_a_long_round_is_small_enough(rounds: Open) -> None:
    bench = rounds()
    on_a_cpu(bench, 0, 1e-3, 0)
    bench.long_round_us(1e-3)
    order = bench.runner.orders[-1]
    assert order == list(range(COUNT)) * (POLICY.most_repeats // COUNT)
    pack_request({"kind": "ready", "sequence": 1 << 31, "order": order, "graph": False})


# --- the real path on a CPU


def test_a_frozen_clock_shows_the_judge_s_time(write_problem: WriteProblem, tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(
        "import time\ntime.perf_counter_ns = lambda: 10**12\n"
        + HONEST.replace("    total +=", "    sleep(0.002)\n    total +=").replace(
            "def scale", "from time import sleep\ndef scale"
        )
    )
    report = grade(
        write_problem(),
        Submission.read(path, 10_000),
        sandbox=ProcessSandbox(),
        device="cpu",
        effort="quick",
    )
    assert report.verdict is Verdict.ACCEPTED, report.reason
    time_us = report.cases[-1].time_us
    assert time_us is not None
    assert time_us >= 2000
    assert any("is the judge's" in note for note in report.notes)


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_a_cpu_gives_times_and_no_rank_at_any_effort(
    write_problem: WriteProblem, tmp_path: Path, effort: Effort
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    report = grade(
        write_problem(),
        Submission.read(path, 10_000),
        sandbox=ProcessSandbox(),
        device="cpu",
        effort=effort,
    )
    assert report.verdict is Verdict.ACCEPTED, report.reason
    assert (report.ranked, report.score_us, report.score_ci_us) == (False, None, None)
    small, plan = report.cases[-1], PLANS["cpu", effort]
    assert small.calls_per_round == plan.most_calls
    assert small.rounds is not None
    assert plan.least_rounds <= small.rounds <= plan.most_rounds
    assert small.time_us is not None
    assert small.ci_us is not None
    assert small.ci_us[0] <= small.time_us <= small.ci_us[1]
    assert (small.graph, small.sol, small.cold_us) == (False, None, None)
    assert small.baseline_us == {}
    assert set(report.stages_s) >= {"baseline", "load", "test", "benchmark"}
    assert not any("left out" in note for note in report.notes)


def test_a_benchmark_that_goes_wrong_is_a_wrong_answer(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST + "    out[(x.numel() == 4096) * 7] = 1e9\n    out[0] = x[0] * factor\n")
    report = grade(
        write_problem(), Submission.read(path, 10_000), sandbox=ProcessSandbox(), device="cpu"
    )
    assert report.verdict is Verdict.WRONG_ANSWER
    assert report.reason.startswith("benchmark 'small': ")
    assert [c.status for c in report.cases] == ["passed"] * 3 + ["wrong_answer"]
