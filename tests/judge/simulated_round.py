"""Rounds of sequential calls in host memory and simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grader.arena import TensorSpec, arrange
from grader.judge.integrity.auditor import AuditTally, CopyEngineAudit
from grader.judge.integrity.call_order import rotated, words_needed
from grader.judge.integrity.deferred_inputs import DeferredInputs
from grader.judge.integrity.policy import DEFERRED
from grader.judge.memory.shared_block import SharedBlock
from grader.problem.spec import Argument
from tests.judge.host_copies import Clock, HostCopyEngine, host_watch

COUNT = 64
ORDER = list(range(COUNT))
ELEMENTS = 1024
BEGIN_US = 100.0
"""From when the gate opens until the first call begins."""
PARTS = 4
"""Pieces in which a call writes its outputs."""
WAIT_US, READ_CLOCK_US = 1.0, 0.5
ARGS = [
    Argument(name="x", role="in", dtype="fp64"),
    Argument(name="out", role="out", dtype="fp64"),
]


class SimulatedRunner:
    """Calls the sets of a round one after the other. A call reads its inputs when it begins, or
    `too_soon` calls before, and writes three times them and one: piece by piece, or all at its
    end."""

    def __init__(
        self,
        block: SharedBlock,
        call_us: float,
        too_soon: float = 0.0,
        at_end: bool = False,
        first: int = 0,
        engine: float = 1.0,
    ) -> None:
        self.order = rotated(COUNT, first)
        self.engine = engine
        """How much longer the copy engine takes than on a fast host."""
        self.now_us = 0.0
        self.is_started = False
        """Whether the gate is open, and time passes."""
        self._block = block
        self._todo: list[tuple[float, Callable[[], None]]] = []
        self._read: dict[int, torch.Tensor] = {}
        for position, index in enumerate(self.order):
            begin_us = BEGIN_US + position * call_us
            self._at(max(0.0, begin_us - too_soon * call_us), self._reader(index))
            for part in range(PARTS):
                share = 1.0 if at_end else (part + 1) / PARTS
                self._at(begin_us + share * call_us, self._writer(index, part))
        # The sort is stable: a call's last piece is written before the next call's inputs are read.
        self._todo.sort(key=lambda one: one[0])

    def pass_us(self, us: float) -> None:
        """Let time pass."""
        self.now_us += us if self.is_started else 0.0
        while self.is_started and self._todo and self._todo[0][0] <= self.now_us:
            self._todo.pop(0)[1]()

    def goes_on(self) -> bool:
        return bool(self._todo)

    def _at(self, us: float, what: Callable[[], None]) -> None:
        self._todo.append((us, what))

    def _reader(self, index: int) -> Callable[[], None]:
        def read() -> None:
            self._read[index] = input_of(self._block, self._block.lent, index) * 3 + 1

        return read

    def _writer(self, index: int, part: int) -> Callable[[], None]:
        piece = slice(part * ELEMENTS // PARTS, (part + 1) * ELEMENTS // PARTS)

        def write() -> None:
            tail = self._block.lent[self._block.head_bytes :].view(torch.int64).view(COUNT, -1)
            tail[index, piece] = self._read[index][piece]

        return write


class TimedCopies(HostCopyEngine):
    """Takes a runner's time for its copies."""

    def __init__(self, capacity: int, runner: SimulatedRunner) -> None:
        super().__init__(capacity)
        self.runner = runner
        self.write_us = 4.0 * runner.engine
        """From when a write is queued until it is done."""

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        self.runner.pass_us(8 * self.runner.engine)
        super().read(address, pitch_bytes, count, at)
        self.runner.pass_us(7 * self.runner.engine - WAIT_US)

    def write(self, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        self.runner.pass_us(self.write_us)
        super().write(rows, address, pitch_bytes)
        self.runner.pass_us(self.runner.engine)

    def wait(self) -> None:
        self.runner.pass_us(WAIT_US)


class RunnerClock(Clock):
    """A runner's time; reading it takes some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runner: SimulatedRunner) -> None:
        super().__init__(monkeypatch, "call_order", "deferred_inputs")
        self._runner = runner

    def read_us(self) -> float:
        self._runner.pass_us(READ_CLOCK_US)
        return self._runner.now_us


class SimulatedRound:
    """One round with deferred inputs, audited as on a GPU. The judge expects calls of `call_us`."""

    def __init__(
        self,
        block: Any,
        runner: SimulatedRunner,
        call_us: float,
        seed: int = 1,
        deferred: DeferredInputs | None = None,
        write_us: float | None = None,
        log: AuditTally | None = None,
    ) -> None:
        block.shadow.random_()
        copies = TimedCopies(words_needed(block), runner)
        copies.write_us = copies.write_us if write_us is None else write_us
        self.block = block
        self.watch = host_watch(block, copies)
        self.deferred = deferred or DeferredInputs(block)
        self.audit = CopyEngineAudit(block, self.watch, self.deferred, log or AuditTally(), True)
        self.audit.learn(call_us / DEFERRED.pace_share)
        with pytest.MonkeyPatch.context() as patch:
            RunnerClock(patch, runner)
            lot = SimpleNamespace(SystemRandom=lambda: random.Random(seed))
            patch.setattr("grader.judge.integrity.auditor.secrets", lot)
            self.audit.arm(runner.order, other_inputs)
            block.prepare(runner.order)
            self.audit.sample_early(lambda: True)
            block.publish(runner.order)
            runner.is_started = True
            self.audit.watch(runner.goes_on)
        self.round_us = runner.now_us
        runner.pass_us(1e9)  # what is not watched goes on
        block.probe()
        block.take_snapshot()
        self.audit.disarm()
        self.wrong = wrong(block)


def other_inputs(index: int) -> dict[str, Any]:
    """Inputs that no runner has seen."""
    return {"x": torch.randn(ELEMENTS, dtype=torch.float64)}


def input_of(block: SharedBlock, buffer: torch.Tensor, index: int) -> torch.Tensor:
    """The input of a set in a buffer, int64."""
    slot: Any = block.layout.sets[index][0]
    return buffer[slot.offset : slot.offset + slot.nbytes].view(torch.int64)


def inputs_of(block: SharedBlock, buffer: torch.Tensor) -> list[torch.Tensor]:
    return [input_of(block, buffer, index) for index in range(block.count)]


def new_block(item_bytes: int) -> Any:
    """A block in host memory that stands for argument sets with one input and one output."""
    words = TensorSpec(0, "fp64", (ELEMENTS,), (1,))
    made: Any = SharedBlock(arrange([[(False, words), (True, words)]] * COUNT), item_bytes, "cpu")
    made.probe_continuously = made.probe
    made.written = [(0, 8 * ELEMENTS)]
    made.problem = SimpleNamespace(spec=SimpleNamespace(args=ARGS))
    return made


def first_of(seed: int) -> int:
    """The set that a round begins with; every other round begins like a captured one."""
    return random.Random(seed).randrange(COUNT) if seed % 2 else 0


def wrong(block: Any) -> set[int]:
    """The sets whose outputs are wrong for the inputs in the shadow."""
    outputs = block.snapshot.view(torch.int64).view(COUNT, -1)[:, :ELEMENTS]
    expected = [values * 3 + 1 for values in inputs_of(block, block.shadow)]
    return {i for i in range(COUNT) if not torch.equal(outputs[i], expected[i])}
