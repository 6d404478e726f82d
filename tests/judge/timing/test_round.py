"""How a round starts: by the GPU, or by a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from grader.arena import TensorSpec, arrange
from grader.arena.layout import GATE_BYTES
from grader.judge.memory.shared_block import Block
from grader.judge.timing.round import PINGS, Starts, run_round
from grader.wire import Reply, Status


class Wire:
    """Stands for a session whose runner does nothing; notes what is asked, and the gate then."""

    def __init__(self, block: Block) -> None:
        self.gate = block.lent[:GATE_BYTES].view(torch.int32)
        self.asked: list[tuple[str, dict[str, Any], int]] = []

    def ask(self, kind: str, request: dict[str, Any], limit_s: float, what: str) -> None:
        self.asked.append((kind, request, int(self.gate)))

    def prepare(self, kind: str, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return kind, request

    def send_prepared(self, prepared: tuple[str, dict[str, Any]], what: str) -> int:
        self.asked.append((*prepared, int(self.gate)))
        return 1

    def receive(self, sequence: int, limit_s: float, what: str) -> Reply:
        return Reply(sequence, Status.OK, reported_ns=7000)


@pytest.mark.parametrize("graph", [False, True])
def test_a_graph_is_told_to_go_before_its_inputs_are_there_and_others_after(graph: bool) -> None:
    words = TensorSpec(0, "int64", (64,), (1,))
    block = Block(arrange([[(False, words), (True, words)]] * 3), 8, "cpu")
    try:
        for number in (1, 2):
            wire: Any = Wire(block)
            bracket = run_round(wire, block, [2, 0, 1], Starts(graph, graph), 1)
            assert (bracket.calls, bracket.claim_us) == (3, 7)
            assert int(wire.gate) == number
            kinds = [kind for kind, _, _ in wire.asked]
            assert (kinds[0], kinds[-1]) == ("ready", "go")
            assert wire.asked[0][1] == {"order": [2, 0, 1], "graph": graph}
            _, request, gate = wire.asked[-1]
            assert request == ({"gate": number} if graph else {})
            assert gate == (number - 1 if graph else number)
            # Where a message starts the round, both sides are woken first.
            assert kinds.count("ping") == (0 if graph else PINGS)
    finally:
        block.close()


def test_the_chips_clock_is_counted_before_a_round_and_when_its_end_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the last probe, which ends the judge's own time, and before the snapshot."""
    steps: list[str] = []
    readings = iter([1980.0, 1970.0])

    def noted(name: str) -> Callable[[Block], None]:
        plain = getattr(Block, name)

        def step(block: Block) -> None:
            steps.append(name)
            plain(block)

        return step

    def clock(block: Block) -> float:
        steps.append("clock")
        return next(readings)

    monkeypatch.setattr("grader.judge.timing.round._clock_mhz", clock)
    for name in ("probe", "collect"):
        monkeypatch.setattr(Block, name, noted(name))
    words = TensorSpec(0, "int64", (64,), (1,))
    block = Block(arrange([[(False, words), (True, words)]]), 8, "cpu")
    try:
        wire: Any = Wire(block)
        assert run_round(wire, block, [0], Starts(True, True), 1).sm_mhz == 1975
        assert steps[0] == "clock"
        assert steps[-3:] == ["probe", "clock", "collect"]
    finally:
        block.close()


def test_without_a_gpu_there_is_no_clock_to_count() -> None:
    words = TensorSpec(0, "int64", (64,), (1,))
    block = Block(arrange([[(False, words), (True, words)]]), 8, "cpu")
    try:
        wire: Any = Wire(block)
        assert run_round(wire, block, [0], Starts(True, True), 1).sm_mhz is None
    finally:
        block.close()
