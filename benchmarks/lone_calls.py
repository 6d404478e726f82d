"""Does a call that runs alone tell that the calls of a round help each other?

    python -m benchmarks.lone_calls [--sandbox process] [--rounds 40] [--case NAME]... FILE...

FILE is a submission below `submissions/<problem>/` whose calls can be captured, honest or not. For
every benchmark case it takes ordinary rounds, as a grading does, and then rounds of a graph of one
call, on fresh inputs, started by the GPU like the others. Such a call takes what the outside clock
saw, less what that saw of one call of the same runner, idle before it had loaded anything, beyond
what this claimed.

Whether inputs lie in the L2 cache matters to a call, so there are three kinds of lone rounds:
`alone` publishes the inputs of nothing but that call, which then lie there; `read` reads other
memory after that, so that nothing does; `all` publishes a whole round with that call's inputs
first, and what came last still has to be written back to memory when the call begins.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from benchmarks.outside_clock import spread
from benchmarks.steps import chosen, prepared
from grader.arena import Slot, arrange
from grader.arena.layout import GUARD_BYTES, ITEM_BYTES
from grader.judge.bench import Bench, opened
from grader.judge.block import KEPT, Block
from grader.judge.clock import COLD_L2, IDLE_CALLS, IDLE_WORDS, measure
from grader.judge.rounds import Bracket, capture, lend
from grader.judge.session import Session
from grader.judge.verdict import SubmissionFault
from grader.sandbox.base import SandboxError
from grader.stats import median

CALLED = 0
"""The set that lone rounds call: of a whole round it is published first."""
KINDS = ("alone", "read", "all")
QUEUEING_CYCLES = 2_000_000
"""Some 1 ms of the GPU, in which the runner comes to wait at the gate, and all that publishes is
given to the GPU: one set is published faster than that."""
MOST_PAUSE_US = 50.0
"""By so much at most, by chance, the first probe comes later: probes follow each other evenly, and
would find the end of every round equally late."""
LATER = 1000
"""Lone rounds are numbered from here on, so that their inputs are none that an ordinary one had."""
HEAD = """\
| case | calls | in rounds µs | lone | call µs | quartiles | its claim | call − in rounds |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Lone:
    """What rounds of one call say of it, in microseconds."""

    call_us: float
    """The median of what the outside clock saw, less what an idle round costs besides its call."""
    quartiles_us: tuple[float, float]
    claim_us: float
    """The median of what the runner said."""


def lone_of(brackets: list[Bracket], idle: list[Bracket]) -> Lone:
    """What such rounds come to, beside idle ones of the same kind; two at least of each."""
    overhead_us = median([b.rest_us for b in idle])
    calls_us = [b.outside_us - overhead_us for b in brackets]
    low, middle, high = statistics.quantiles(calls_us, n=4, method="inclusive")
    return Lone(middle, (low, high), median([b.claim_us for b in brackets]))


def row(case: str, calls: int, usual_us: float, kind: str, lone: Lone) -> str:
    """A row of the Markdown table."""
    low, high = lone.quartiles_us
    cells = [
        case,
        str(calls),
        f"{usual_us:.2f}",
        kind,
        f"{lone.call_us:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{lone.claim_us:.1f}",
        f"{lone.call_us - usual_us:+.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def lone_rounds(
    session: Session, block: Block, kind: str, rounds: int, refill: Callable[[int], None]
) -> list[Bracket]:
    """So many rounds of one captured call; a first, which warms up, is left out. `refill` is told
    the round, from 0 on, that it puts inputs into the image for."""
    if not capture(session, [CALLED], 10):
        raise SandboxError("one call could not be captured into a CUDA graph")
    properties = torch.cuda.get_device_properties()
    flush = torch.zeros(COLD_L2 * properties.L2_cache_size // 8, dtype=torch.int64, device="cuda")
    found = []
    for number in range(rounds + 1):
        refill(number)
        found.append(_lone_round(session, block, kind, flush))
    return found[1:]


def _lone_round(session: Session, block: Block, kind: str, flush: torch.Tensor) -> Bracket:
    """One such round. Probes look for its end from the beginning: nobody watches a single call."""
    what, limit_s = "a lone call", 10.0
    session.ask("ready", {"order": [CALLED], "graph": True}, limit_s, what)
    sequence = session.fire(session.aim("go", {"gate": block.round}), what)
    block.ready([CALLED])
    published = list(range(block.count)) if kind == "all" else [CALLED]
    _publish(block, block._parts(published), flush if kind == "read" else None)
    probing_s = time.perf_counter() + random.uniform(0, MOST_PAUSE_US) / 1e6
    while time.perf_counter() < probing_s:
        pass
    end_s = time.monotonic() + limit_s
    while not session.has_reply() and time.monotonic() < end_s:
        block.keep_probing()
    reply = session.take(sequence, limit_s, what)
    block.probe()
    block.collect()
    return Bracket(1, reply.claim_ns / 1e3, block.outside_us(), block.publish_us())


def _publish(block: Block, parts: list[slice], flush: torch.Tensor | None) -> None:
    """As `Block.publish` does, but given to the GPU at once, and with something to read before the
    gate opens."""
    block.round += 1
    torch.cuda._sleep(QUEUEING_CYCLES)
    block._start.record()
    for part in parts:
        block._copy_in(part)
    if flush is not None:
        flush.sum()
    block._end.record()
    block._copy_in(slice(0, GUARD_BYTES))
    while not block.is_published():
        pass


def idle_rounds(session: Session, rounds: int) -> dict[str, list[Bracket]]:
    """Lone rounds, by kind, of a runner that has loaded nothing."""
    words = Slot(0, "int64", (IDLE_WORDS,), (1,))
    layout = arrange([[(False, words), (True, words)]] * IDLE_CALLS)
    block = Block(layout, ITEM_BYTES[words.dtype], "cuda", KEPT)
    try:
        session.ask("idle", {}, 10, "calibration")
        lend(session, block, {"shape": None, "dims": [], "symbol": ""})
        return {kind: lone_rounds(session, block, kind, rounds, lambda _: None) for kind in KINDS}
    finally:
        block.close()


def compare(bench: Bench, idle: dict[str, list[Bracket]], rounds: int) -> None:
    """Print the rows of one case."""
    grading = bench.grading
    usual = measure(bench.next, bench.plan, bench.calls, bench.graph, grading.ranks)

    def refill(number: int) -> None:
        bench.cool_down()
        bench.loan.fill(CALLED, bench.inputs(LATER + number, CALLED))

    for kind in KINDS:
        brackets = lone_rounds(grading.session, bench.loan, kind, rounds, refill)
        bench._expect_right([CALLED], True)  # in the last round: to know that it is called
        lone = lone_of(brackets, idle[kind])
        print(row(bench.case.name, bench.calls, usual.time_us, kind, lone), flush=True)


def lone_calls(sandbox: str, path: Path, rounds: int, names: tuple[str, ...]) -> None:
    """Print the table of one file."""
    with prepared(sandbox, path) as (grading, load):
        idle = idle_rounds(grading.session, rounds)
        costs = ", ".join(f"{kind} {spread([b.rest_us for b in idle[kind]])}" for kind in KINDS)
        print(f"\n{path}; idle lone rounds cost besides their call, µs: {costs}\n\n{HEAD}")
        load()
        for case in chosen(grading.problem, names):
            try:
                with opened(grading, case) as bench:
                    compare(bench, idle, rounds)
            except (SubmissionFault, SandboxError) as stop:
                print(f"| {case.name} | {stop} |" + " |" * 6, flush=True)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(min=2))
@click.option("--case", "cases", multiple=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, cases: tuple[str, ...], files: tuple[Path, ...]) -> None:
    """Hold lone calls against the calls of ordinary rounds."""
    for path in files:
        lone_calls(sandbox, path, rounds, cases)


if __name__ == "__main__":
    main()
