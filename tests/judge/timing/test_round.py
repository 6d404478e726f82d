"""One round of calls: how it starts, what the auditor is asked, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from grader.arena import TensorSpec, arrange
from grader.arena.layout import GATE_BYTES
from grader.judge.integrity.auditor import Auditor
from grader.judge.memory.shared_block import SharedBlock
from grader.judge.timing import round as timed_round
from grader.judge.timing.plan import POLICY
from grader.judge.timing.round import (
    MeasuredRound,
    RoundStart,
    lend,
    publish,
    run_round,
)
from grader.wire import Reply, Status
from tests.judge.auditors import ScriptedAudit

GATED, EAGER = RoundStart(graph=True, gate=True), RoundStart()
ORDER = [2, 0, 1]


class SilentSession:
    """A session whose runner does nothing. It records each request, and the gate at that time."""

    def __init__(self, block: SharedBlock, steps: list[str] | None = None) -> None:
        self.gate = block.lent[:GATE_BYTES].view(torch.int32)
        self.asked: list[tuple[str, dict[str, Any], int]] = []
        self.steps = [] if steps is None else steps
        self.has_replied = True

    def ask(self, kind: str, request: dict[str, Any], limit_s: float, what: str, **_: Any) -> None:
        self._note(kind, request)

    def prepare(self, kind: str, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return kind, request

    def send_prepared(self, prepared: tuple[str, dict[str, Any]], what: str) -> int:
        self._note(*prepared)
        return 1

    def has_reply(self) -> bool:
        return self.has_replied

    def receive(self, sequence: int, limit_s: float, what: str) -> Reply:
        self.steps.append("take")
        return Reply(sequence, Status.OK, reported_ns=7000)

    def _note(self, kind: str, request: dict[str, Any]) -> None:
        self.steps.append(kind)
        self.asked.append((kind, request, int(self.gate)))


@pytest.fixture
def block() -> Iterator[SharedBlock]:
    words = TensorSpec(0, "int64", (64,), (1,))
    made = SharedBlock(arrange([[(False, words), (True, words)]] * 3), 8, "cpu")
    yield made
    made.close()


def note_steps(block: SharedBlock, steps: list[str], *names: str) -> None:
    """Record each call of these methods of a block."""

    def noted(name: str) -> Callable[..., Any]:
        plain = getattr(block, name)

        def step(*arguments: Any) -> Any:
            steps.append(name)
            return plain(*arguments)

        return step

    for name in names:
        setattr(block, name, noted(name))


@pytest.mark.parametrize("graph", [False, True])
def test_a_gated_graph_goes_before_its_inputs_are_published_and_other_rounds_after(
    block: SharedBlock, graph: bool
) -> None:
    for number in (1, 2):
        session: Any = SilentSession(block)
        measured = run_round(session, block, ORDER, RoundStart(graph, graph), 1, Auditor())
        assert (measured.calls, measured.reported_us) == (3, 7)
        assert int(session.gate) == number
        kinds = [kind for kind, _, _ in session.asked]
        assert (kinds[0], kinds[-1]) == ("ready", "go")
        assert session.asked[0][1] == {"order": ORDER, "graph": graph}
        _, request, gate = session.asked[-1]
        assert request == ({"gate": number} if graph else {})
        assert gate == (number - 1 if graph else number)
        # Where a message starts the round, both processors are woken first.
        assert kinds.count("ping") == (0 if graph else POLICY.pings)


def test_a_graph_that_does_not_wait_at_the_gate_is_started_by_a_message(
    block: SharedBlock,
) -> None:
    session: Any = SilentSession(block)
    run_round(session, block, ORDER, RoundStart(graph=True, gate=False), 1, Auditor())
    assert session.asked[0][1] == {"order": ORDER, "graph": True}
    assert session.asked[-1] == ("go", {}, 1)


@pytest.mark.parametrize("start", [GATED, EAGER])
def test_outputs_are_poisoned_before_inputs_are_published(
    block: SharedBlock, start: RoundStart
) -> None:
    steps: list[str] = []
    session: Any = SilentSession(block, steps)
    note_steps(block, steps, "prepare", "publish")
    run_round(session, block, ORDER, start, 1, Auditor())
    assert steps.count("prepare") == steps.count("publish") == 1
    assert steps.index("ready") < steps.index("prepare") < steps.index("publish")


@pytest.mark.parametrize("start", [GATED, EAGER])
def test_a_round_is_watched_until_its_reply_and_the_shadow_restored_after_its_snapshot(
    block: SharedBlock, start: RoundStart
) -> None:
    """Deferred inputs lie in the shadow as stale until then."""
    steps: list[str] = []
    session: Any = SilentSession(block, steps)
    auditor = ScriptedAudit(steps=steps)
    note_steps(block, steps, "probe", "take_snapshot")
    run_round(session, block, ORDER, start, 1, auditor)
    assert steps[-5:] == ["watch", "take", "probe", "take_snapshot", "disarm"]
    assert "go" in steps[:-5]
    assert steps.count("watch") == steps.count("disarm") == 1
    assert "arm" not in steps
    assert "conclude" not in steps


def test_watching_ends_with_the_reply_or_at_the_time_limit(block: SharedBlock) -> None:
    class Endless(ScriptedAudit):
        looks = 0

        def watch(self, going_on: Callable[[], bool]) -> None:
            while going_on():
                self.looks += 1
                if self.looks == 3:
                    session.has_replied = True

    session: Any = SilentSession(block)
    session.has_replied = False
    answered = Endless()
    run_round(session, block, ORDER, GATED, 1000, answered)
    assert answered.looks == 3
    session.has_replied, unanswered = False, Endless()
    unanswered.looks = 3  # this one gets no reply
    run_round(session, block, ORDER, GATED, 0.05, unanswered)
    assert unanswered.looks > 3


class PublishingBlock(SharedBlock):
    """Publishes as on a GPU: `meanwhile` is called, and the copy ends during the last call."""

    calls = 2 * POLICY.pings_per_sample
    has_ended = False

    def publish(self, chosen: list[int], meanwhile: Callable[[], None] | None = None) -> None:
        assert meanwhile is not None
        self.has_ended = False
        for call in range(self.calls):
            self.has_ended = call == self.calls - 1
            meanwhile()
        super().publish(chosen)

    def is_published(self) -> bool:
        return self.has_ended


@pytest.fixture
def publishing() -> Iterator[PublishingBlock]:
    words = TensorSpec(0, "int64", (64,), (1,))
    made = PublishingBlock(arrange([[(False, words), (True, words)]] * 3), 8, "cpu")
    yield made
    made.close()


def test_a_sample_that_ends_after_the_copy_does_not_count_as_early(
    publishing: PublishingBlock,
) -> None:
    """A gated graph may have begun by then."""
    auditor = ScriptedAudit()
    publish(publishing, ORDER, auditor)
    assert auditor.early == [True] * (publishing.calls - 1) + [False]


def test_before_a_message_says_go_every_sample_is_early(publishing: PublishingBlock) -> None:
    """Pings go on meanwhile, with a sample after every few, and one when all is there."""
    steps: list[str] = []
    session: Any = SilentSession(publishing, steps)
    auditor = ScriptedAudit(steps=steps)
    run_round(session, publishing, ORDER, EAGER, 1, auditor)
    assert auditor.early == [True] * 3
    some = ["ping"] * POLICY.pings_per_sample + ["sample_early"]
    assert steps[steps.index("ready") + 1 : steps.index("go")] == (
        ["ping"] * POLICY.pings + some * 2 + ["sample_early"]
    )


def test_the_sm_clock_is_read_when_the_end_was_seen_and_before_the_snapshot(
    block: SharedBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later the chip would be idle; sooner it would delay the judge's clock."""
    steps: list[str] = []

    def clock() -> float:
        steps.append("clock")
        return 1975.0

    class OnGpu(SilentSession):
        """The round is on a GPU from its reply on, as far as the clock is concerned."""

        def receive(self, sequence: int, limit_s: float, what: str) -> Reply:
            block.device = "cuda"
            return super().receive(sequence, limit_s, what)

    def probe() -> None:
        steps.append("probe")

    def take_snapshot() -> None:
        steps.append("take_snapshot")
        block.device = "cpu"

    monkeypatch.setattr(timed_round, "sm_clock_mhz", clock)
    session: Any = OnGpu(block, steps)
    block.probe, block.take_snapshot = probe, take_snapshot  # type: ignore[method-assign]
    assert run_round(session, block, [0], GATED, 1, Auditor()).sm_mhz == 1975
    assert steps[-3:] == ["probe", "clock", "take_snapshot"]


def test_without_a_gpu_there_is_no_sm_clock(
    block: SharedBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_round, "sm_clock_mhz", lambda: 1975.0)
    session: Any = SilentSession(block)
    assert run_round(session, block, [0], GATED, 1, Auditor()).sm_mhz is None


def test_a_rounds_cost_is_what_was_measured_and_not_reported() -> None:
    assert MeasuredRound(10, reported_us=500, measured_us=600, publish_us=200).rest_us == 100


@pytest.mark.parametrize("again", [False, True])
def test_a_block_in_the_arena_that_the_runner_has_is_lent_without_it(
    block: SharedBlock, again: bool
) -> None:
    fds: list[int] = []

    class Taking(SilentSession):
        def ask(
            self, kind: str, request: dict[str, Any], limit_s: float, what: str, **more: Any
        ) -> None:
            fds.extend(more["fds"])
            super().ask(kind, request, limit_s, what)

    session: Any = Taking(block)
    lend(session, block, {"shape": 3}, limit_s=60, again=again)
    ((kind, request, _),) = session.asked
    assert (kind, request["shape"]) == ("lend", 3)
    assert request["arena_bytes"] == block.arena.nbytes
    assert request["layout_bytes"] == len(block.layout.to_json())
    assert len(fds) == (1 if again else 2)
    assert (block.arena.fd in fds) is not again
