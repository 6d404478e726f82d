"""One round of calls: announced to the runner, started, watched and measured.

A round calls each of its sets once, on inputs that no call has had before. A captured round is
started by the GPU itself: it waits at the block's gate, which opens when the inputs are there. Both
ends of the measured interval are events of the GPU's clock: when the last input is there, and when
the judge finds all outputs in memory.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass

from grader.judge.gpu.state import sm_clock_mhz
from grader.judge.integrity.auditor import Auditor
from grader.judge.memory.shared_block import SharedBlock
from grader.judge.session import Session
from grader.judge.timing.plan import POLICY
from grader.wire import Flag, sealed_memfd


@dataclass(frozen=True)
class MeasuredRound:
    """What the clocks saw of one round of `calls` calls, microseconds."""

    calls: int
    reported_us: float
    """Time of all calls, as the runner reports it."""
    measured_us: float
    """From the arrival of the inputs until a probe found all outputs, by the judge."""
    publish_us: float
    """Duration of the copy of the inputs before that."""
    sm_mhz: float | None = None
    """The SM clock that NVML gives after the round."""

    @property
    def rest_us(self) -> float:
        """The measured time that is not reported as calls."""
        return self.measured_us - self.reported_us


@dataclass(frozen=True)
class RoundStart:
    """How rounds start."""

    graph: bool = False
    """Whether they replay the captured CUDA graph."""
    gate: bool = False
    """Whether the GPU starts them at the block's gate; otherwise a message does."""


def lend(
    session: Session,
    block: SharedBlock,
    case: dict[str, object],
    limit_s: float,
    again: bool = False,
) -> None:
    """Hand a block and its layout to the runner. `case` describes the case to the runner;
    with `again` the block lies in the arena that the runner has."""
    text = block.layout.to_json()
    layout_fd = sealed_memfd("layout", text)
    try:
        request = {"layout_bytes": len(text), "arena_bytes": block.arena.nbytes, **case}
        fds = (layout_fd,) if again else (layout_fd, block.arena.fd)
        session.ask("lend", request, limit_s, "taking the lent memory", fds=fds)
    finally:
        os.close(layout_fd)


def run_round(
    session: Session,
    block: SharedBlock,
    order: list[int],
    start: RoundStart,
    limit_s: float,
    auditor: Auditor,
) -> MeasuredRound:
    """Run one armed round and take the snapshot of its outputs.

    A round that waits at the gate is told to go before its inputs are published, so that no
    processor has a part in its start: the runner's stream reaches the gate while outputs are
    poisoned. Others are told when the inputs are there; pings until then keep both processors
    awake."""
    what = f"a round of {len(order)} calls"
    session.ask("ready", {"order": order, "graph": start.graph}, limit_s, what)
    if start.gate:
        go = session.prepare("go", {"gate": block.round})
        sequence = session.send_prepared(go, what)
        publish(block, order, auditor)
    else:
        turns = itertools.count(1)

        def meanwhile() -> None:
            session.ask("ping", {}, limit_s, what)
            if next(turns) % POLICY.pings_per_sample == 0:
                auditor.sample_early(lambda: True)

        block.prepare(order)
        for _ in range(POLICY.pings):
            session.ask("ping", {}, limit_s, what)
        go = session.prepare("go", {})
        block.publish(order, meanwhile)
        auditor.sample_early(lambda: True)
        sequence = session.send_prepared(go, what)
    end_s = time.monotonic() + limit_s
    auditor.watch(lambda: not session.has_reply() and time.monotonic() < end_s)
    reply = session.receive(sequence, limit_s, what)
    block.probe()
    sm_mhz = sm_clock_mhz() if block.device == "cuda" else None
    block.take_snapshot()
    auditor.disarm()
    reported_us = reply.reported_ns / 1e3
    return MeasuredRound(len(order), reported_us, block.measured_us(), block.publish_us(), sm_mhz)


def publish(block: SharedBlock, order: list[int], auditor: Auditor) -> None:
    """Poison the outputs and publish the inputs, sampling meanwhile."""
    block.prepare(order)
    # A sample that ends after the copy proves nothing.
    block.publish(order, lambda: auditor.sample_early(lambda: not block.is_published()))


def capture(session: Session, order: list[int], limit_s: float) -> bool:
    """Whether the runner captured a round into a CUDA graph."""
    reply = session.ask("capture", {"order": order}, limit_s, "capturing a CUDA graph")
    return bool(reply.flags & Flag.GRAPH)
