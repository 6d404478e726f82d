"""Do inputs that come late tell that the calls of a round help each other?

    python -m benchmarks.late_inputs [--sandbox process] [--rounds 8] [--late 6]
        [--case NAME]... FILE...

Needs a GPU. FILE is a submission below `submissions/<problem>/` whose calls can be captured, honest
or not. The inputs of a call must be there when it begins, that is when the call before it has
ended, and not sooner. So of some sets of a round, which nobody knows, a chunk of an input is
published stale: the words that another set has there. While the round goes on, the copy engine
writes the true words, and then reads words of the outputs of the call before. Is one of them still
to change, that call had not ended when all was written, and an honest one began with true inputs:
the write was in time. Outputs that are wrong all the same were computed from inputs that were read
too soon, and no clock was asked. Else the write is doubtful, and the set says nothing.

What is assumed: a kernel sees what the copy engine wrote before it began, since both go through the
L2 cache, and the L1 caches are emptied when a kernel begins. Calls are kernels of their own, one
after the other, as the runner captures them; nobody but a call writes its set's outputs. And stale
words change the outputs by more than the check allows. That is likely for small inputs, such as
activations, which half of the chunks lie in, and not for 4 KiB of a large weight; so PyTorch
answers the stale inputs too, and the table has how many chunks could tell anything.

What it cannot see: reading ahead into the L2 cache, where the true words arrive too; and whoever
compares its inputs again when the call begins.

Ordinary rounds, which the judge checks as it does in a grading, and rounds with late inputs take
turns, so that their times can be compared.
"""

from __future__ import annotations

import random
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.lone_calls import LATER
from benchmarks.steps import chosen, prepared
from grader.arena import Layout, Slot
from grader.judge.bench import Bench, opened
from grader.judge.block import Block
from grader.judge.check import check, worst
from grader.judge.lookout import NEAR, PLACES, Lookout
from grader.judge.peek import Peek
from grader.judge.rounds import run_round
from grader.judge.verdict import SubmissionFault
from grader.problem import Problem
from grader.sandbox.base import SandboxError
from grader.stats import median

MOST_LATE = 64
CHUNK_BYTES, ALIGN_BYTES = 4096, 16
TRIES = 16
"""So many chunks are drawn for a set until one differs from the same place of another set."""
WORDS = 32
"""Words of the call before that are read after a write: so many near the end of its last output,
and so many spread evenly over one of its outputs."""
AHEAD = (0.1, 0.9)
"""By so many calls, drawn evenly, a write is to be over before its call begins."""
TRIP_US = 30.0
"""What a write and the reads after it take, until one was timed."""
READ_US = 15.0
"""What a read of the lookout's takes: whatever is due sooner is waited for."""
RECENT = 4
"""A round's pace is reckoned from so many calls that were seen to have begun."""
FEW, MOST = 0.5, 0.9
"""If fewer of a round's writes than this share were in time, the next ones come earlier; if more
than that one, later."""
EARLIER, BACK = 0.5, 0.1
"""By so many calls."""
HEAD = """\
| case | calls | writes | in time | could tell | right | **wrong** | doubtful | wrong | other sets \
wrong | ordinary µs | these µs | a write takes µs | ended by |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""
READING = """
`In time` are writes after which the call before was still to write some output: of these an honest
file has none wrong, and a file that reads inputs before a call may begin has some, of those that
could tell. What is wrong among the doubtful proves nothing; other sets should never be wrong."""

Place = tuple[int, int]
"""Offset of a tensor in a block, and its size in bytes."""


@dataclass(frozen=True, eq=False)
class Late:
    """A chunk that is withheld in one round."""

    position: int
    """Of its set in the round's order."""
    index: int
    """Of its set."""
    part: slice
    """Of the block, in bytes."""
    ahead: float
    """By how many calls before its own the write is to be over."""
    true: torch.Tensor
    """What the chunk should hold, uint8, in memory that the copy engine reads."""
    after: list[range]
    """Indices of words of the writable part, which belong to the set that is called before: what is
    read after the write."""


@dataclass(frozen=True, eq=False)
class Written:
    """A late chunk that was written, and what was read then of the outputs of the call before."""

    late: Late
    took_us: float
    """The write and the reads, as the processor saw it."""
    words: list[int]
    """Indices of what was read, in a snapshot's words of 8 bytes."""
    seen: list[int]

    def is_in_time(self, snapshot: torch.Tensor) -> bool:
        """Whether one of the words became another one by the end of the round."""
        last = snapshot.view(torch.int64)[torch.tensor(self.words, device=snapshot.device)]
        return last.tolist() != self.seen


class Pace:
    """When calls begin, by the judge's clock, as far as seeing their outputs appear tells."""

    def __init__(self, call_us: float, begin_us: float) -> None:
        self._call_us = call_us
        self._furthest = -1
        self._begins: deque[float] = deque([begin_us], RECENT)
        self.first_us: float | None = None
        """When the first call began, by the first that was seen of this round."""

    def saw(self, furthest: int, at_us: float) -> None:
        """That the call at this position had begun, and none behind it was seen to have."""
        if furthest <= self._furthest:
            return
        begin_us = at_us - furthest * self._call_us
        if self.first_us is None:
            self.first_us = begin_us
            self._begins.clear()
        self._furthest = furthest
        self._begins.append(begin_us)

    def begins_us(self, position: float) -> float:
        """When the call at this position begins. Seeing it may take long, and is never early: the
        earliest of the recent begins counts, not of all, since calls may take longer than told."""
        return min(self._begins) + position * self._call_us


@dataclass
class Tally:
    """What late writes came to, of one case."""

    writes: int = 0
    in_time: int = 0
    telling: int = 0
    """Of those in time: PyTorch's answer to their stale inputs is wrong."""
    wrong: int = 0
    """Of those in time."""
    doubtful_wrong: int = 0
    others_wrong: int = 0
    """Sets of these rounds that had no late inputs, and are wrong."""
    usual_us: list[float] = field(default_factory=list)
    late_us: list[float] = field(default_factory=list)
    took_us: list[float] = field(default_factory=list)

    def add(self, is_in_time: bool, is_wrong: bool, is_telling: bool) -> None:
        """One more late set."""
        self.writes += 1
        self.in_time += is_in_time
        self.telling += is_in_time and is_telling
        self.wrong += is_in_time and is_wrong
        self.doubtful_wrong += is_wrong and not is_in_time

    def row(self, case: str, calls: int, ended_by: str = "") -> str:
        """A row of the Markdown table."""
        cells = [
            case,
            str(calls),
            str(self.writes),
            str(self.in_time),
            str(self.telling),
            str(self.in_time - self.wrong),
            f"**{self.wrong}**",
            str(self.writes - self.in_time),
            str(self.doubtful_wrong),
            str(self.others_wrong),
            *(_middle(values) for values in (self.usual_us, self.late_us, self.took_us)),
            ended_by,
        ]
        return "| " + " | ".join(cells) + " |"


def _middle(values: list[float]) -> str:
    return f"{median(values):.2f}" if values else "–"


class Quill(Peek):
    """Has the copy engine write, too. What is read after that is read when all was written: both
    are in order on a stream of their own, which waits for no kernel."""

    def write(self, source: int, address: int, nbytes: int) -> None:
        """Begin to write so many bytes from an address in pinned memory to one in device memory.
        Raises RuntimeError when CUDA refuses."""
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        stream = self._stream.cuda_stream
        (code,) = runtime.cudaMemcpyAsync(address, source, nbytes, kind, stream)
        if code != runtime.cudaError_t.cudaSuccess:
            raise RuntimeError(f"the CUDA runtime says {code.name}")


class LateLookout(Lookout):
    """A lookout that, between two looks, writes what was withheld when the round began.

    What is withheld is stale in the image when that is published, and is put back when the round
    is over: until then nothing of the judge's reads inputs there, and a kernel of its own would
    have to wait for the runner's, and hold them up.
    """

    def __init__(self, block: Block, inputs: list[list[list[Place]]]) -> None:
        super().__init__(block)
        self.prepare(inputs, Quill(2 * WORDS))

    def prepare(self, inputs: list[list[list[Place]]], quill: Quill) -> None:
        """For a block whose sets have these inputs: per set, argument and tensor."""
        self._inputs = inputs
        self._quill = quill
        pinned = self._block.device == "cuda"
        self._true = torch.empty((MOST_LATE, CHUNK_BYTES), dtype=torch.uint8, pin_memory=pinned)
        self._left: list[Late] = []
        self._chosen = np.empty(0, dtype=np.int64)
        """The sets in the order of the round."""
        self._blanks = np.empty((0, 0), dtype=np.int64)
        """What lies at each place of each of them before it is called: [places, positions]."""
        self._start_ns = 0
        self.written: list[Written] = []
        """Of the last round."""
        self.call_us = self.begin_us = 0.0
        """What a call takes, and when the first one begins after the gate has opened: to be told
        before a round."""
        self.lead = 0.0
        """By so many calls more all writes are over sooner."""
        self.trip_us = TRIP_US
        self.pace = Pace(0.0, 0.0)

    def withhold(self, order: list[int], late: int, rng: random.Random) -> None:
        """Make chunks of the image stale, for the next round, which is in this order."""
        swaps: list[tuple[Late, torch.Tensor]] = []
        for position in positions(len(order), late, rng):
            if (drawn := self._draw(order[position], rng)) is None:
                continue
            part, stale = drawn
            true = self._true[len(swaps), : part.stop - part.start]
            true.copy_(self._block.image[part])
            after = self._after(order[position - 1])
            ahead = rng.uniform(*AHEAD)
            swaps.append((Late(position, order[position], part, ahead, true, after), stale))
        for one, stale in swaps:  # not sooner: another set's words may be withheld too
            self._block.image[one.part] = stale
        self._left = [one for one, _ in swaps]

    def _draw(self, index: int, rng: random.Random) -> tuple[slice, torch.Tensor] | None:
        """A chunk of a set, and what another set has there; None where all sets have the same."""
        image = self._block.image
        for _ in range(TRIES):
            argument, tensor, start, nbytes = chunk(self._inputs[index], rng)
            other = rng.choice([i for i in range(self._block.count) if i != index])
            parts = [
                slice(at + start, at + start + nbytes)
                for at, _ in (self._inputs[i][argument][tensor] for i in (index, other))
            ]
            if not torch.equal(image[parts[0]], image[parts[1]]):
                return parts[0], image[parts[1]].clone()
        return None

    def put_back(self, late: Late) -> None:
        """Make a chunk of the image true again."""
        self._block.image[late.part].copy_(late.true)

    def aim(self, order: list[int]) -> None:
        super().aim(order)
        self._chosen = np.array(order)
        self._blanks = self._untouched(self._places).cpu().numpy()[:, order]
        self.pace = Pace(self.call_us, self.begin_us)
        self.written = []

    def watch(self, going_on: Callable[[], bool]) -> None:
        self._start_ns = self._now_ns()

        def going_on_beside_writes() -> bool:
            self._notice()
            self._write_what_is_due()
            return going_on()

        super().watch(going_on_beside_writes)
        while self._left:  # whoever compares inputs at the end must find them true
            self._write(self._left.pop(0))

    def _notice(self) -> None:
        """Which call had begun, by the last look."""
        if not self._reads:
            return
        row, turn = self._reads - 1, (self._reads - 1) % PLACES
        seen = self._seen[row].numpy()[self._chosen]
        begun = (seen != self._blanks[turn]).nonzero()[0]
        if len(begun):
            self.pace.saw(int(begun[-1]), self._passed_us())

    def _write_what_is_due(self) -> None:
        while self._left:
            late = self._left[0]
            ahead_us = (late.ahead + self.lead) * self.call_us + self.trip_us
            due_us = self.pace.begins_us(late.position) - ahead_us
            if due_us - self._passed_us() > READ_US:
                return
            while self._passed_us() < due_us:
                pass
            self._write(self._left.pop(0))

    def _write(self, late: Late) -> None:
        """Write a chunk, and then read words of the outputs of the call before."""
        base, began_us = self._block.lent.data_ptr(), self._passed_us()
        nbytes = late.part.stop - late.part.start
        self._quill.write(late.true.data_ptr(), base + late.part.start, nbytes)
        words: list[int] = []
        at = 0
        for some in late.after:
            address = base + self._block.head_bytes + 8 * some.start
            self._quill.read(address, 8 * some.step, len(some), at)
            words += some
            at += len(some)
        self._quill.wait()
        seen = self._quill.words[:at].tolist()
        self.written.append(Written(late, self._passed_us() - began_us, words, seen))

    def _after(self, index: int) -> list[range]:
        """Words of the writable part: of a set's last output near its end, and of any output."""
        whole = index * (self._set_bytes // 8)
        outputs = [(whole + (at - self._block.head_bytes) // 8, n) for at, n in self._outputs]
        (last, words), (first, count) = max(outputs), secrets.choice(outputs)
        near = max(1, words // NEAR)
        return [spread(last + words - near, near), spread(first, count)]

    def _passed_us(self) -> float:
        return (self._now_ns() - self._start_ns) / 1e3

    def _now_ns(self) -> int:
        return time.perf_counter_ns()


def positions(calls: int, late: int, rng: random.Random) -> list[int]:
    """Positions of late sets, ascending, never the first: one in each of so many equal stretches of
    a round, since a write takes longer than a short call."""
    stretches = min(late, calls - 1, MOST_LATE)
    cuts = [1 + k * (calls - 1) // stretches for k in range(stretches + 1)] if stretches else []
    return [rng.randrange(a, b) for a, b in pairwise(cuts)]


def chunk(arguments: list[list[Place]], rng: random.Random) -> tuple[int, int, int, int]:
    """Argument, tensor, offset in that tensor and size in bytes of a chunk of a set's inputs: half
    of the time of the smallest argument, else of any."""
    sizes = [sum(nbytes for _, nbytes in tensors) for tensors in arguments]
    is_small = rng.random() < 0.5
    argument = sizes.index(min(sizes)) if is_small else rng.randrange(len(sizes))
    tensors = arguments[argument]
    (tensor,) = rng.choices(range(len(tensors)), [nbytes for _, nbytes in tensors])
    room = tensors[tensor][1]
    nbytes = min(CHUNK_BYTES, room)
    start = ALIGN_BYTES * rng.randrange((room - nbytes) // ALIGN_BYTES + 1)
    return argument, tensor, start, nbytes


def spread(first: int, words: int) -> range:
    """Indices of some of so many words from `first` on, evenly apart; nobody knows which."""
    pitch = -(-words // WORDS)
    count = words // pitch
    start = first + secrets.randbelow(words - (count - 1) * pitch)
    return range(start, start + count * pitch, pitch)


def next_lead(lead: float, in_time: int, writes: int) -> float:
    """By how many calls more writes are to come sooner in the next round. Outputs that are all
    written at the end of a call make it look later than it is, and a short call ends while its
    outputs are read; too soon tells little of calls that only begin a little too early."""
    if in_time < FEW * writes:
        return lead + EARLIER
    return max(0.0, lead - BACK) if in_time > MOST * writes else lead


def input_places(problem: Problem, layout: Layout) -> list[list[list[Place]]]:
    """Where the `in` tensors of each set lie, per argument; none that is empty."""
    found = []
    for values in layout.sets:
        arguments = []
        for argument, value in zip(problem.spec.args, values, strict=True):
            slots = value if isinstance(value, list) else [value]
            places = [(s.offset, s.nbytes) for s in slots if isinstance(s, Slot) and s.nbytes]
            if argument.role == "in" and places:
                arguments.append(places)
        found.append(arguments)
    return found


def late_round(bench: Bench, lookout: LateLookout, number: int, late: int, tally: Tally) -> None:
    """One round with late inputs. Raises `SubmissionFault` for what other gates find."""
    bench.cool_down()
    loan, grading, order = bench.loan, bench.grading, bench._order()
    for i in order:
        loan.fill(i, bench.inputs(number, i))
    lookout.withhold(order, late, random.SystemRandom())
    limit_s = grading.problem.spec.limits.call_s * len(order)
    bracket = run_round(grading.session, loan, order, bench.graph, limit_s, lookout)
    bench._last_us = bracket.claim_us
    tally.late_us.append(bracket.claim_us / bracket.calls)
    telling = {w.late.index for w in lookout.written if _would_tell(bench, lookout, w.late)}
    bench.answers.compute()
    wrong = _wrong(bench, order)
    in_time = 0
    for one in lookout.written:
        index, is_in_time = one.late.index, one.is_in_time(loan.snapshot)
        tally.add(is_in_time, index in wrong, index in telling)
        in_time += is_in_time
        wrong.discard(index)
    tally.others_wrong += len(wrong)
    tally.took_us += [one.took_us for one in lookout.written]
    lookout.lead = next_lead(lookout.lead, in_time, len(lookout.written))
    lookout.trip_us = median(tally.took_us) if tally.took_us else TRIP_US
    if (tampered := loan.tampered()) is not None:
        raise SandboxError(f"after late inputs, {tampered}")
    bench._expect_order(lookout, order)


def _would_tell(bench: Bench, lookout: LateLookout, late: Late) -> bool:
    """Whether the check tells PyTorch's answer to stale inputs from that to true ones. The image
    has the true ones after that."""
    code, inputs = bench.grading.code, bench.loan.inputs(late.index)
    stale = code.plain(bench.case, inputs)
    lookout.put_back(late)
    true = code.plain(bench.case, inputs)
    findings = []
    for argument in code.written:
        name, bounds = argument.name, bench.spot_bounds(argument)
        initial = inputs[name] if argument.role == "inout" else None
        findings.append(check(name, stale[name], true[name], None, bounds, initial))
    return worst(findings).failure is not None


def _wrong(bench: Bench, order: list[int]) -> set[int]:
    """Sets whose outputs are wrong, as the judge looks at each of every round."""
    doubtful = set(order) if bench.quick is None else bench.quick.doubtful()[0]
    return {i for i in doubtful if bench.look(i, False).failure is not None}


def compare(bench: Bench, rounds: int, late: int) -> None:
    """Print the row of one case."""
    tally, calls = Tally(), bench.calls
    inputs = input_places(bench.grading.problem, bench.loan.layout)
    reason = ""
    if not bench.graph:
        reason = "not captured"
    elif bench.lookout is None:
        reason = "cannot be watched"
    elif not inputs[0]:
        reason = "no inputs that stay as they are"
    if reason:
        print(tally.row(bench.case.name, calls, reason), flush=True)
        return
    bench.lookout = lookout = LateLookout(bench.loan, inputs)
    begins_us: list[float] = []
    try:
        for number in range(LATER, LATER + 2 * rounds, 2):
            tally.usual_us.append(bench.round(number).claim_us)
            if lookout.pace.first_us is not None:
                # With the pace of none told, that is when something was first seen at all.
                begins_us.append(lookout.pace.first_us)
            lookout.call_us = median(tally.usual_us)
            lookout.begin_us = statistics.median(begins_us or [0.0])
            late_round(bench, lookout, number + 1, late, tally)
    except (SubmissionFault, SandboxError) as stop:
        reason = str(stop)
    print(tally.row(bench.case.name, calls, reason), flush=True)


def late_inputs(sandbox: str, path: Path, rounds: int, late: int, names: tuple[str, ...]) -> None:
    """Print the table of one file."""
    with prepared(sandbox, path) as (grading, load):
        print(f"\n{path}\n\n{HEAD}")
        load()
        for case in chosen(grading.problem, names):
            try:
                with opened(grading, case) as bench:
                    compare(bench, rounds, late)
            except (SubmissionFault, SandboxError) as stop:
                print(f"| {case.name} |" + " |" * 12 + f" {stop} |", flush=True)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--late", default=6, show_default=True, type=click.IntRange(1, MOST_LATE))
@click.option("--case", "cases", multiple=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(
    sandbox: str, rounds: int, late: int, cases: tuple[str, ...], files: tuple[Path, ...]
) -> None:
    """Publish some inputs of rounds late, and see who reads them too soon."""
    for path in files:
        late_inputs(sandbox, path, rounds, late, cases)
    print(READING)


if __name__ == "__main__":
    main()
