"""A lent block and the judge's private side of it: what goes in, and what came out.

The arena is written only from the image, and outputs are read only into the probe and the snapshot:
they are judged in private memory, which no runner can reach.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from grader.arena import Layout
from grader.arena.host import HostArena
from grader.arena.layout import GATE_BYTES, GUARD_BYTES
from grader.judge.gpu.dma import MOST_PITCH_BYTES, Peek

POISON = {1: 0xA5, 2: 0xFFE5, 4: 0xFFE5A5A5, 8: 0xFFFDE5A5A5A5A5A5}
"""Bits of every element of an output before a call, by its size in bytes. As a float of that size
it is a quiet NaN whose payload no arithmetic makes: hardware's own NaN is 0x7FFF… or 0xFFC0…, and
vector compare masks, seen in PyTorch's softmax, are all ones."""
GUARD = 0xA5
LATTICES, MOST_PROBES = 2, 512
"""A probe takes a word of each set's outputs, and the words of two lattices, each of at most so
many words: one evenly spread over all that the chosen sets may write, and one over what the last of
them may. Four times as many take 0.1 ms more where outputs are large, and not where they are
small."""
QUIET_US = 100.0
"""So long before a copy usually ends, nothing is done but to wait for its end: a look that began
sooner is over by then, and the copy engine free when the round begins."""
JITTER = 64
"""A lattice's pitch is up to one part in so many shorter than it could be."""
KEPT = 64
"""So many of the last probes of a round that is timed are kept, to tell from which on all outputs
were there."""
BEHIND_BYTES = 1 << 20
"""So much of a ground behind a block may not be written."""
LEAST_GROUND_BYTES = 2 << 20
"""What a GPU maps at once; most tests fit."""
CHECK_BYTES, CHECK_SHARE = 4 << 30, 1 / 16
"""What the checks of large tests take; and the share of the device's memory that is held for them
at most."""
MOST_UNUSED_BYTES, FREE_BYTES = 2 << 30, 18 << 30
"""What PyTorch may hold for later besides, of device memory that the runner needs too; and more,
while so much is free: what a problem lets a submission have as a rule, and two contexts."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Block:
    """An arena of a layout whose sets are all alike, with its image and its snapshot.

    A round goes: fill the image, `ready`, `publish`, let the runner work, `probe`, `collect`; then
    look at the snapshot. `item_bytes` is the size of an element of the outputs, by which they are
    poisoned; 0 where what may be written is part of the image. Close it when the case is over.

    The first word of the block is a gate: publishing ends with the number of the round in it, and a
    stream of the runner's may wait for that. Of the probes of a round the last `kept` are kept.
    On a `ground` it lies in memory that others lay in before it; else in memory of its own.
    """

    def __init__(
        self,
        layout: Layout,
        item_bytes: int,
        device: str,
        kept: int = 1,
        ground: Ground | None = None,
    ) -> None:
        self.layout = layout
        self.device = device
        self.count = len(layout.sets)
        self.item_bytes = item_bytes
        self.poisons_image = item_bytes == 0
        """Whether outputs lie in the image too, and are poisoned there."""
        self.head_bytes = layout.writable_at
        self.tail_bytes = layout.nbytes - layout.writable_at
        image_bytes = self.head_bytes if item_bytes else layout.nbytes
        self.image = torch.full((image_bytes,), GUARD, dtype=torch.uint8, device=device)
        self._gate = self.image[:GATE_BYTES].view(torch.int32)
        self._gate.zero_()
        self.round = 1
        """The number of the round that is published next."""
        self.snapshot = torch.empty(self.tail_bytes, dtype=torch.uint8, device=device)
        self.written = [(0, self.tail_bytes // self.count)]
        """Offset and size in bytes of what a call writes, in what it may write of the first set."""
        self._lattices: list[range] = []
        self._probes = 0
        """How many were taken in this round."""
        self._probed = torch.empty(0, dtype=torch.int64)
        """What the last of them found."""
        self._begun_ns = self._ended_ns = 0
        self._usual_us = math.inf
        """The least that copying the whole image has taken."""
        if device == "cuda":
            self._start, self._end, *self._taken = [
                torch.cuda.Event(enable_timing=True) for _ in range(2 + kept)
            ]
            self._peek = Peek(kept * (LATTICES * MOST_PROBES + self.count))
            self._kept = self._peek.words.view(kept, -1)
        # Last, so that a block for which memory is short leaves nothing behind.
        self._ground = ground
        self.arena = ground.arena(layout.nbytes) if ground else new_arena(device, layout.nbytes)
        self.lent = self.arena.buffer[: layout.nbytes]
        """The block as the runner sees it, bytes."""
        self.behind = self.arena.buffer[layout.nbytes :][:BEHIND_BYTES].fill_(GUARD)
        """What of a ground follows it, as far as that is looked after."""
        self.lent[:GATE_BYTES].zero_()

    def ready(self, chosen: list[int]) -> None:
        """Poison the outputs in the arena, or clear them where they are part of the image, and aim
        the probe at the sets that will be called."""
        self._gate.fill_(self.round)
        outputs = self.lent[self.head_bytes :]
        if self.item_bytes:
            fill_with_poison(outputs, self.item_bytes)
        else:
            outputs.fill_(GUARD)  # so that whoever looks meanwhile knows what lies there
        self._aim(chosen)
        self.probe()  # for nothing but to have its code at hand when the clock runs
        self._probes = 0
        self.settle()  # else the clock would start while the poison is still being written

    def publish(self, chosen: list[int], meanwhile: Callable[[], None] | None = None) -> None:
        """Copy the image, or of it the only chosen set, into the arena, and open the gate; wait
        until the copy is there, on a GPU doing `meanwhile` again and again until shortly before."""
        gate = slice(0, GUARD_BYTES)
        self.round += 1
        if self.device == "cpu":
            for part in [*self._parts(chosen), gate]:
                self.lent[part].copy_(self.image[part])
            self._begun_ns = time.perf_counter_ns()
            return
        self._start.record()
        quiet_ns = time.perf_counter_ns() + (self._usual_us - QUIET_US) * 1e3
        for part in self._parts(chosen):
            self._copy_in(part)
        self._end.record()
        self._copy_in(gate)
        while not self.is_published():
            if meanwhile is not None and time.perf_counter_ns() < quiet_ns:
                meanwhile()
        if len(chosen) == self.count:
            self._usual_us = min(self._usual_us, self.publish_us())

    def is_published(self) -> bool:
        """Whether the last copy has ended."""
        return self.device == "cpu" or bool(self._end.query())

    def publish_us(self) -> float:
        """How long the last copy took, microseconds; on a CPU it is not timed apart, and is 0."""
        return 0.0 if self.device == "cpu" else _between_us(self._start, self._end)

    def probe(self) -> None:
        """Take a few words of every output, at places nobody could know, and wait for them.

        Work that is still going on afterwards is seen: `collect` then finds other words there.
        """
        if self.device == "cpu":
            self._ended_ns = time.perf_counter_ns()
            self._probed = self._words()[self._aims()]
            return
        row = self._begin_probe()
        self._peek.wait()
        self._probed = self._kept[row, : sum(map(len, self._lattices))]

    def keep_probing(self) -> None:
        """Begin another probe and wait for the one before it, so that they follow each other
        without a pause: a round that ends just after one has begun is found by the next."""
        row = self._begin_probe()
        if self._probes > 1:
            self._taken[row - 1].synchronize()

    def outside_us(self) -> float:
        """Microseconds from when the inputs were all there until a probe found all outputs there,
        as they are in the snapshot; what no probe found counts until the last.

        On a GPU both ends are marked by its own clock, so that a processor that is slow to notice
        them is not timed. Whoever leaves a part for later has it in a probe, or has saved only that
        part: a share p of the outputs is in none of n words with a chance of (1 - p) to the n.
        """
        if self.device == "cpu":
            return (self._ended_ns - self._begun_ns) / 1e3
        kept = len(self._taken)
        oldest, first = max(0, self._probes - kept), self._probes - 1
        # Not by PyTorch, which would wake a thread on every processor for it.
        found = self._kept[:, : len(self._probed)].numpy()
        there = (found == self._found().cpu().numpy()).all(axis=1)
        while first > oldest and there[(first - 1) % kept]:
            first -= 1
        return _between_us(self._end, self._taken[first % kept])

    def collect(self) -> None:
        """Take the snapshot: a private copy of everything a call may write. Waits for it.

        It goes to the same buffer every time; allocating one would cost more than the copy.
        """
        self.snapshot.copy_(self.lent[self.head_bytes :])
        self.settle()

    def was_late(self) -> bool:
        """Whether the snapshot holds other words than the probe took before it."""
        return not torch.equal(self._found(), self._probed.to(self.device))

    def close(self) -> None:
        """Take the arena back, unless it is on a ground, and let the private memory go."""
        self.image = self.snapshot = self.lent = self.behind = torch.empty(0)
        if self._ground is None:
            self.arena.close()

    def settle(self) -> None:
        """Wait until everything asked of the device so far is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _aim(self, chosen: list[int]) -> None:
        """Choose where the probe looks: secret places in what the chosen sets may write."""
        each = self.tail_bytes // self.count // 8
        first, sets = (chosen[0], 1) if len(chosen) == 1 else (0, self.count)
        self._lattices = [
            _lattice(first * each, sets * each),
            _lattice(chosen[-1] * each, each),  # where the round's end is seen
        ]
        if 8 * each < MOST_PITCH_BYTES:  # between small outputs, most words are guards
            offset, nbytes = secrets.choice(self.written)
            word = first * each + offset // 8 + secrets.randbelow(-(-nbytes // 8))
            self._lattices.append(range(word, word + sets * each, each))

    def _found(self) -> torch.Tensor:
        """What the snapshot holds where the probe looks."""
        return self.snapshot.view(torch.int64)[self._aims()]

    def _aims(self) -> torch.Tensor:
        """Where the probe looks: indices of words of the writable part."""
        every = [torch.arange(a.start, a.stop, a.step, device=self.device) for a in self._lattices]
        return torch.cat(every)

    def _begin_probe(self) -> int:
        """Have a probe read; the row of `_kept` where it will be."""
        row = self._probes % len(self._taken)
        base, at = self.lent.data_ptr() + self.head_bytes, row * self._kept.shape[1]
        for lattice in self._lattices:
            self._peek.read(base + 8 * lattice.start, 8 * lattice.step, len(lattice), at)
            at += len(lattice)
        self._peek.mark(self._taken[row])
        self._probes += 1
        return row

    def _copy_in(self, part: slice) -> None:
        # By a kernel: a copy engine would leave the multiprocessors to work ahead meanwhile.
        source, target = self.image[part], self.lent[part]
        torch.bitwise_or(source.view(torch.int64), 0, out=target.view(torch.int64))

    def _words(self) -> torch.Tensor:
        words: torch.Tensor = self.lent[self.head_bytes :].view(torch.int64)
        return words

    def _parts(self, chosen: list[int]) -> list[slice]:
        """The bytes of the image that the chosen sets need: all behind the guard with the gate,
        unless it is one set."""
        if len(chosen) != 1 or self.count == 1:
            return [slice(GUARD_BYTES, self.image.numel())]
        # A block starts with a guard; behind it the sets follow each other evenly.
        head, tail = (self.head_bytes - GUARD_BYTES) // self.count, self.tail_bytes // self.count
        first, at = GUARD_BYTES + chosen[0] * head, self.head_bytes + chosen[0] * tail
        parts = [slice(first, first + head)]
        return parts if self.item_bytes else [*parts, slice(at, at + tail)]


class Ground:
    """Memory in which blocks lie one after the other: the tests of a grading do. To make, map and
    unmap some for each of them is most of what small tests would take, while other processes ask
    the driver for things too. It has at least so many bytes, if there are as many. Of what is there
    behind a block, only the first `BEHIND_BYTES` are looked after."""

    def __init__(self, device: str, least_bytes: int = 0) -> None:
        self._device = device
        self._least_bytes = max(least_bytes, LEAST_GROUND_BYTES)
        self._arena: Any = None

    def arena(self, nbytes: int) -> Any:
        """At least so much: the same as before, unless that is too small. No block may lie there
        any more."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self.close()
            try:
                self._arena = new_arena(self._device, max(nbytes, self._least_bytes))
            except (RuntimeError, OSError):  # what is asked for now may do with less
                self._least_bytes = LEAST_GROUND_BYTES
                self._arena = new_arena(self._device, max(nbytes, LEAST_GROUND_BYTES))
        _make_room(self._device)
        return self._arena

    def close(self) -> None:
        """Give it back; no block may lie on it any more."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None


def new_arena(device: str, nbytes: int) -> Any:
    """A block to lend, in the device's memory."""
    if device == "cuda":
        from grader.arena.cuda import CudaArena

        _make_room(device, nbytes)
        return CudaArena.create(nbytes)
    return HostArena.create(nbytes)


def _make_room(device: str, nbytes: int = 0) -> None:
    """For so much, and for the runner: blocks do not come from PyTorch's allocator, which keeps
    what it does not use."""
    if device == "cpu":
        return
    unused_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if unused_bytes <= MOST_UNUSED_BYTES + _check_bytes():
        return
    if torch.cuda.mem_get_info()[0] - nbytes < FREE_BYTES:
        torch.cuda.empty_cache()


def hold_memory() -> None:
    """Have PyTorch hold device memory for the checks of tests: while other processes ask the driver
    for some too, it gives none for tenths of a second."""
    with suppress(torch.cuda.OutOfMemoryError):  # then whoever needs some will ask for less
        torch.empty(_check_bytes(), dtype=torch.uint8, device="cuda")


def _check_bytes() -> int:
    return min(CHECK_BYTES, int(CHECK_SHARE * torch.cuda.get_device_properties().total_memory))


def _between_us(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) * 1e3


def _lattice(first: int, words: int) -> range:
    """Indices of some of so many words from `first` on, evenly apart; nobody knows which.

    They reach from the first words to the last, since what comes late is most often the last.
    """
    pitch = -(-words // MOST_PROBES)
    count = words // pitch
    pitch -= secrets.randbelow(pitch // JITTER + 1)
    start = first + secrets.randbelow(words - (count - 1) * pitch)
    return range(start, start + count * pitch, pitch)


def fill_with_poison(region: torch.Tensor, item_bytes: int) -> None:
    """Fill bytes with the `POISON` of elements of this size."""
    region.view(_BITS[item_bytes]).fill_(_signed(item_bytes))


def poison(tensor: torch.Tensor) -> None:
    """Fill a contiguous tensor with `POISON`."""
    bits(tensor).fill_(poison_of(tensor))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's elements as signed integers of the same size."""
    return tensor.view(_BITS[tensor.element_size()])


def poison_of(tensor: torch.Tensor) -> int:
    """`POISON` for this tensor's elements, as the signed integer that `bits` shows."""
    return _signed(tensor.element_size())


def blank_word(item_bytes: int) -> int:
    """Eight bytes of what `Block.ready` leaves in outputs whose elements are of this size, or of
    none: `POISON`, or guards. As a signed integer."""
    word = bytes([GUARD])
    if item_bytes:
        word = POISON[item_bytes].to_bytes(item_bytes, "little")
    return int.from_bytes(word * (8 // len(word)), "little", signed=True)


def _signed(item_bytes: int) -> int:
    return int.from_bytes(POISON[item_bytes].to_bytes(item_bytes, "little"), "little", signed=True)
