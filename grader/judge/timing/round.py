"""One round of calls: told to the runner, started, watched, and bracketed.

A round calls each of N independent argument sets once, on inputs that nobody had before. One that
was captured is started by the GPU: it waits for a word behind the inputs. Both ends of the bracket
are marked by the GPU's own clock: when the last input is there, and when the outputs are, as the
judge sees them in memory.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass

from grader.judge.integrity.call_order import Lookout
from grader.judge.integrity.deferred_inputs import LateInputs
from grader.judge.memory.shared_block import Block
from grader.judge.session import Session
from grader.wire import Flag, sealed_memory

PINGS, PINGS_A_LOOK = 20, 4
"""Exchanges before a round that starts by message, which wake both processors: cold ones make its
cost vary by 0.3 ms. They go on while inputs are published, with a look after every so many."""


@dataclass(frozen=True)
class Bracket:
    """What the clocks saw of one round of `calls` calls, in microseconds."""

    calls: int
    claim_us: float
    """What the runner says of its calls together."""
    outside_us: float
    """By the outside clock, from when the inputs were there until a probe found all outputs."""
    publish_us: float
    """The copy of the inputs before that, by the judge's own events."""
    sm_mhz: float | None = None
    """The multiprocessors' clock around it: the mean of before the copy and after the end."""

    @property
    def rest_us(self) -> float:
        """What of the outside time is not, as claimed, calls."""
        return self.outside_us - self.claim_us


def lend(session: Session, block: Block, case: dict[str, object], again: bool = False) -> None:
    """Hand a block and its layout to the runner; `case` has the place of its shape in what was told
    with the load, if it was, and what a `.cu` entry is told besides. It lies where the last one lay
    if it is lent `again`: the runner has that memory."""
    text = block.layout.to_json()
    layout_fd = sealed_memory("layout", text)
    try:
        request = {"layout_bytes": len(text), "arena_bytes": block.arena.nbytes, **case}
        fds = (layout_fd,) if again else (layout_fd, block.arena.fd)
        session.ask("lend", request, 60, "taking the lent memory", fds=fds)
    finally:
        os.close(layout_fd)


@dataclass(frozen=True)
class Starts:
    """How a round starts."""

    graph: bool
    """Whether it is a replay of the graph that was captured."""
    gate: bool
    """Whether it waits at the block's gate; else for a message."""


def run_round(
    session: Session,
    block: Block,
    order: list[int],
    starts: Starts,
    limit_s: float,
    lookout: Lookout | None = None,
    late: LateInputs | None = None,
) -> Bracket:
    """One bracketed round; leaves the snapshot of all outputs in the block.

    What waits at the block's gate is told to go before its inputs are published: so no processor
    has a part in when it starts. Other rounds are told when the inputs are there.

    A `lookout` looks while inputs are being published, and watches until the round is over; it has
    inputs written that come `late`.
    """
    what = f"a round of {len(order)} calls"
    before_mhz = _clock_mhz(block)
    session.ask("ready", {"order": order, "graph": starts.graph}, limit_s, what)
    if starts.gate:
        sequence = _through_gate(session, block, order, what, lookout)
    else:
        sequence = _by_message(session, block, order, what, limit_s, lookout)
    if lookout is not None:
        end_s = time.monotonic() + limit_s
        lookout.watch(lambda: not session.has_reply() and time.monotonic() < end_s, late)
    reply = session.take(sequence, limit_s, what)
    block.probe()
    after_mhz = _clock_mhz(block)
    block.collect()
    sm_mhz = (before_mhz + after_mhz) / 2 if before_mhz and after_mhz else None
    claim_us, outside_us = reply.claim_ns / 1e3, block.outside_us()
    return Bracket(len(order), claim_us, outside_us, block.publish_us(), sm_mhz)


def _clock_mhz(block: Block) -> float | None:
    if block.device == "cpu":
        return None
    from grader.judge.gpu.sm_clock_kernel import sm_clock_mhz

    return sm_clock_mhz()


def _through_gate(
    session: Session, block: Block, order: list[int], what: str, lookout: Lookout | None
) -> int:
    """Say "go", and publish; the number of the request. While the outputs are being poisoned, a
    stream comes to wait at the gate."""
    sequence = session.fire(session.aim("go", {"gate": block.round}), what)
    publish(block, order, lookout)
    return sequence


def _by_message(
    session: Session,
    block: Block,
    order: list[int],
    what: str,
    limit_s: float,
    lookout: Lookout | None,
) -> int:
    """Publish, and say "go"; the number of the request.

    Until then both sides do what the bracket will ask of them: a processor that waited for
    milliseconds is slow to begin, and what it then takes would be timed.
    """
    turns = itertools.count(1)

    def meanwhile() -> None:
        session.ask("ping", {}, limit_s, what)
        if lookout is not None and next(turns) % PINGS_A_LOOK == 0:
            lookout.look(lambda: True)

    _prepare(block, order, lookout)
    for _ in range(PINGS):
        session.ask("ping", {}, limit_s, what)
    go = session.aim("go", {})
    block.publish(order, meanwhile)
    if lookout is not None:
        lookout.look(lambda: True)
    return session.fire(go, what)


def publish(block: Block, order: list[int], lookout: Lookout | None) -> None:
    """Make all sets ready and publish them, looking at the outputs meanwhile."""
    _prepare(block, order, lookout)

    def meanwhile() -> None:
        if lookout is not None:  # what is read when the copy has ended tells nothing
            lookout.look(lambda: not block.is_published())

    block.publish(order, meanwhile)


def _prepare(block: Block, order: list[int], lookout: Lookout | None) -> None:
    block.ready(order)
    if lookout is not None:
        lookout.aim(order)


def capture(session: Session, order: list[int], limit_s: float) -> bool:
    """Whether the runner captured a round into a CUDA graph."""
    reply = session.ask("capture", {"order": order}, limit_s, "capturing a CUDA graph")
    return bool(reply.flags & Flag.GRAPH)
