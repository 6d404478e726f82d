"""The block of memory that judge and runner share, and the judge's private copies of it.

The judge writes the block only from the *shadow*, its private copy of all inputs, and reads outputs
only into the probe and the *snapshot*. Outputs are checked in the snapshot, which no runner
reaches."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from grader.arena import Layout
from grader.arena.host_arena import HostArena
from grader.arena.layout import GATE_BYTES, GUARD_BYTES
from grader.judge.gpu.device_memory import release_cached_memory
from grader.judge.gpu.dma import MOST_PITCH_BYTES, CopyEngine

POISON = {1: 0xA5, 2: 0xFFE5, 4: 0xFFE5A5A5, 8: 0xFFFDE5A5A5A5A5A5}
"""Bits of every output element before a call, by element size in bytes. As a float it is a quiet
NaN whose payload no arithmetic produces: hardware makes 0x7FFF… or 0xFFC0…, and vector compare
masks are all ones."""
GUARD = 0xA5
"""The byte between two tensors."""


@dataclass(frozen=True)
class BlockPolicy:
    """Sizes and times of shared blocks."""

    probe_words: int = 512
    """Words of each strided sample of a probe. With 2,048 a probe of large outputs takes 0.1 ms
    more (`benchmarks/measured_interval.py`)."""
    stride_jitter: int = 64
    """A sample's stride is shortened by up to 1/64, so that its places are secret."""
    kept_probes: int = 64
    """Probes of a timed round that are kept, to find the first one that saw all outputs."""
    quiet_us: float = 100.0
    """Before a copy usually ends, the judge samples no more, so that the copy engine is idle when
    the round begins."""
    behind_bytes: int = 1 << 20
    """Bytes behind a block in a reused arena that are checked for writes."""
    reused_bytes: int = 2 << 20
    """Least size of a reused arena: what a GPU maps at once."""


POLICY = BlockPolicy()

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SharedBlock:
    """An arena with a layout of equal sets, its shadow and its snapshot.

    A round goes: fill the shadow, `prepare`, `publish`, let the runner work, `probe`,
    `take_snapshot`, check the snapshot. `item_bytes` is the element size of all outputs; 0 where
    outputs are part of the shadow (state, or mixed sizes).

    The first word of the block is the gate: `publish` ends by writing the round's number there, and
    a stream of the runner can wait for it. The last `kept` probes of a round are kept. With
    `reused`, the block lies in that arena; otherwise in one of its own.
    """

    def __init__(
        self,
        layout: Layout,
        item_bytes: int,
        device: str,
        kept: int = 1,
        reused: ReusedArena | None = None,
    ) -> None:
        self.layout = layout
        self.device = device
        self.count = len(layout.sets)
        self.item_bytes = item_bytes
        self.head_bytes = layout.writable_at
        self.tail_bytes = layout.nbytes - layout.writable_at
        shadow_bytes = self.head_bytes if item_bytes else layout.nbytes
        self.shadow = torch.full((shadow_bytes,), GUARD, dtype=torch.uint8, device=device)
        self._gate = self.shadow[:GATE_BYTES].view(torch.int32)
        self._gate.zero_()
        self.round = 1
        """Number of the round that is published next."""
        self.snapshot = torch.empty(self.tail_bytes, dtype=torch.uint8, device=device)
        self.written = [(0, self.tail_bytes // self.count)]
        """Offset and size in bytes of each output, within the writable part of the first set."""
        self._only: int | None = None  # the set of a round of one call
        self._samples: list[range] = []
        self._probes = 0
        self._probed = torch.empty(0, dtype=torch.int64)
        self._begun_ns = self._ended_ns = 0
        self._usual_us = math.inf  # the least that a copy of the whole shadow has taken
        if device == "cuda":
            self._start, self._end, *self._taken = [
                torch.cuda.Event(enable_timing=True) for _ in range(2 + kept)
            ]
            self._copies = CopyEngine(kept * (2 * POLICY.probe_words + self.count))
            self._kept = self._copies.words.view(kept, -1)
        # Last, so that a block that runs out of memory leaves nothing behind.
        self._reused = reused
        self.arena = reused.arena(layout.nbytes) if reused else new_arena(device, layout.nbytes)
        self.lent = self.arena.buffer[: layout.nbytes]
        """The block as the runner sees it, uint8 [nbytes]."""
        self.behind = self.arena.buffer[layout.nbytes :][: POLICY.behind_bytes].fill_(GUARD)
        """What follows the block in a reused arena, as far as it is checked."""
        self.lent[:GATE_BYTES].zero_()

    @property
    def outputs_in_shadow(self) -> bool:
        """Whether the shadow holds the outputs too, and poison is written there."""
        return self.item_bytes == 0

    def prepare(self, chosen: list[int]) -> None:
        """Poison the outputs in the arena (or overwrite them, where the shadow holds them), and
        choose the probe's places in the sets that will be called. Of a single chosen set, only its
        outputs are poisoned, taken into the snapshot, and looked at."""
        self._gate.fill_(self.round)
        self._only = self._single(chosen)
        outputs = self._outputs()
        if self.item_bytes:
            fill_with_poison(outputs, self.item_bytes)
        else:
            outputs.fill_(GUARD)  # so that a sample knows what lies there
        self._choose_samples(chosen)
        self.probe()  # loads the probe's code before the clock runs
        self._probes = 0
        self.settle()  # otherwise the clock starts while poison is still being written

    def publish(self, chosen: list[int], meanwhile: Callable[[], None] | None = None) -> None:
        """Copy the shadow into the arena (of a single chosen set, only that), open the gate, and
        wait for the copy. On a GPU, `meanwhile` is called repeatedly until shortly before the
        end."""
        gate = slice(0, GUARD_BYTES)
        self.round += 1
        if self.device == "cpu":
            for part in [*self._parts(chosen), gate]:
                self.lent[part].copy_(self.shadow[part])
            self._begun_ns = time.perf_counter_ns()
            return
        self._start.record()
        quiet_ns = time.perf_counter_ns() + (self._usual_us - POLICY.quiet_us) * 1e3
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
        """Duration of the last copy, microseconds; 0 on a CPU."""
        return 0.0 if self.device == "cpu" else _between_us(self._start, self._end)

    def probe(self) -> None:
        """Read some words of every output, at secret places, and wait for them.

        Work that goes on afterwards is detected: the snapshot then holds other words there.
        """
        if self.device == "cpu":
            self._ended_ns = time.perf_counter_ns()
            self._probed = self.lent[self.head_bytes :].view(torch.int64)[self._places()]
            return
        row = self._begin_probe()
        self._copies.wait()
        self._probed = self._kept[row, : sum(map(len, self._samples))]

    def probe_continuously(self) -> None:
        """Begin another probe and wait for the previous one, so that probes follow each other
        without a pause."""
        row = self._begin_probe()
        if self._probes > 1:
            self._taken[row - 1].synchronize()

    def measured_us(self) -> float:
        """Microseconds from the arrival of all inputs until the first probe that found the outputs
        as they are in the snapshot, or until the last probe.

        On a GPU both ends are events of its own clock, so a slow processor does not count. Outputs
        of which a share p is missing escape n probed words with probability (1 - p)^n.
        """
        if self.device == "cpu":
            return (self._ended_ns - self._begun_ns) / 1e3
        kept = len(self._taken)
        oldest, first = max(0, self._probes - kept), self._probes - 1
        # With numpy: PyTorch would wake a thread on every processor.
        found = self._kept[:, : len(self._probed)].numpy()
        complete = (found == self._found().cpu().numpy()).all(axis=1)
        while first > oldest and complete[(first - 1) % kept]:
            first -= 1
        return _between_us(self._end, self._taken[first % kept])

    def take_snapshot(self) -> None:
        """Copy everything the calls may write into private memory, always the same buffer; wait."""
        self.snapshot[self._writable(self._only)].copy_(self._outputs())
        self.settle()

    def changed_since_probe(self) -> bool:
        """Whether the snapshot differs from the last probe."""
        return not torch.equal(self._found(), self._probed.to(self.device))

    def close(self) -> None:
        """Free the private memory, and the arena unless it is reused."""
        self.shadow = self.snapshot = self.lent = self.behind = torch.empty(0)
        if self._reused is None:
            self.arena.close()

    def settle(self) -> None:
        """Wait for all work that this process has queued on the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _choose_samples(self, chosen: list[int]) -> None:
        each = self.tail_bytes // self.count // 8
        first, sets = (0, self.count) if self._only is None else (self._only, 1)
        self._samples = [
            _strided_sample(first * each, sets * each),
            _strided_sample(chosen[-1] * each, each),  # where the round ends
        ]
        if 8 * each < MOST_PITCH_BYTES:  # of small outputs, most words are guards
            offset, nbytes = secrets.choice(self.written)
            word = first * each + offset // 8 + secrets.randbelow(-(-nbytes // 8))
            self._samples.append(range(word, word + sets * each, each))

    def _found(self) -> torch.Tensor:
        """The snapshot's words at the probe's places."""
        return self.snapshot.view(torch.int64)[self._places()]

    def _places(self) -> torch.Tensor:
        """The probe's places: indices of words of the writable part."""
        every = [torch.arange(a.start, a.stop, a.step, device=self.device) for a in self._samples]
        return torch.cat(every)

    def _begin_probe(self) -> int:
        """Queue a probe's reads; its row of `_kept`."""
        row = self._probes % len(self._taken)
        base, at = self.lent.data_ptr() + self.head_bytes, row * self._kept.shape[1]
        for sample in self._samples:
            self._copies.read(base + 8 * sample.start, 8 * sample.step, len(sample), at)
            at += len(sample)
        self._copies.mark(self._taken[row])
        self._probes += 1
        return row

    def _copy_in(self, part: slice) -> None:
        # A kernel, since a copy engine would leave the multiprocessors free to work ahead.
        source, target = self.shadow[part], self.lent[part]
        torch.bitwise_or(source.view(torch.int64), 0, out=target.view(torch.int64))

    def _parts(self, chosen: list[int]) -> list[slice]:
        """The bytes of the shadow that the chosen sets need, without the gate's guard."""
        only = self._single(chosen)
        if only is None:
            return [slice(GUARD_BYTES, self.shadow.numel())]
        outputs = self._writable(only)
        at = slice(self.head_bytes + outputs.start, self.head_bytes + outputs.stop)
        return [self._readable(only), *([at] if self.outputs_in_shadow else [])]

    def _single(self, chosen: list[int]) -> int | None:
        """The set that is chosen alone, if there are others."""
        return chosen[0] if len(chosen) == 1 < self.count else None

    def _readable(self, only: int | None) -> slice:
        """The inputs, or those of one set: bytes of the block, which starts with a guard; the sets
        follow evenly."""
        if only is None:
            return slice(0, self.head_bytes)
        head = (self.head_bytes - GUARD_BYTES) // self.count
        return slice(GUARD_BYTES + only * head, GUARD_BYTES + (only + 1) * head)

    def _writable(self, only: int | None) -> slice:
        """The outputs, or those of one set: bytes of the writable part."""
        if only is None:
            return slice(0, self.tail_bytes)
        tail = self.tail_bytes // self.count
        return slice(only * tail, (only + 1) * tail)

    def _outputs(self) -> torch.Tensor:
        """What the calls of this round may write, in the arena."""
        own = self._writable(self._only)
        outputs: torch.Tensor = self.lent[self.head_bytes + own.start : self.head_bytes + own.stop]
        return outputs


class ReusedArena:
    """An arena in which the blocks of all tests lie in turn, since mapping memory anew takes longer
    than a small test. It grows where a block needs more."""

    def __init__(self, device: str, least_bytes: int = 0) -> None:
        self._device = device
        self._least_bytes = max(least_bytes, POLICY.reused_bytes)
        self._arena: Any = None

    def arena(self, nbytes: int) -> Any:
        """An arena of at least `nbytes`. No other block may still use it."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self.close()
            try:
                self._arena = new_arena(self._device, max(nbytes, self._least_bytes))
            except (RuntimeError, OSError):  # this block alone may still fit
                self._least_bytes = POLICY.reused_bytes
                self._arena = new_arena(self._device, max(nbytes, POLICY.reused_bytes))
        release_cached_memory(self._device)
        return self._arena

    def close(self) -> None:
        """Free the arena; no block may still use it."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None


def block_bytes(layout: Layout, item_bytes: int) -> int:
    """Bytes of a block with this layout, its shadow and its snapshot."""
    tail_bytes = layout.nbytes - layout.writable_at
    return layout.nbytes + (layout.writable_at if item_bytes else layout.nbytes) + tail_bytes


def new_arena(device: str, nbytes: int) -> Any:
    """An arena in the device's memory. Raises RuntimeError or OSError when memory is short."""
    if device == "cuda":
        from grader.arena.cuda_arena import CudaArena

        release_cached_memory(device, nbytes)
        return CudaArena.create(nbytes)
    return HostArena.create(nbytes)


def _between_us(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) * 1e3


def _strided_sample(first: int, words: int) -> range:
    """Indices of some of `words` words from `first` on, evenly spaced at secret places, from the
    first few to the last few: work that is late most often misses the last ones."""
    stride = -(-words // POLICY.probe_words)
    count = words // stride
    stride -= secrets.randbelow(stride // POLICY.stride_jitter + 1)
    start = first + secrets.randbelow(words - (count - 1) * stride)
    return range(start, start + count * stride, stride)


def fill_with_poison(region: torch.Tensor, item_bytes: int) -> None:
    """Fill bytes with the `POISON` of elements of `item_bytes`."""
    region.view(_BITS[item_bytes]).fill_(_signed(item_bytes))


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with `POISON`."""
    bits(tensor).fill_(poison_of(tensor))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as signed integers of the same size."""
    return tensor.view(_BITS[tensor.element_size()])


def poison_of(tensor: torch.Tensor) -> int:
    """`POISON` for this tensor's elements, as the signed integer that `bits` shows."""
    return _signed(tensor.element_size())


def blank_word(item_bytes: int) -> int:
    """Eight bytes of what `SharedBlock.prepare` leaves in outputs: `POISON` of elements of
    `item_bytes`, or guards where it is 0. As a signed integer."""
    word = bytes([GUARD])
    if item_bytes:
        word = POISON[item_bytes].to_bytes(item_bytes, "little")
    return int.from_bytes(word * (8 // len(word)), "little", signed=True)


def _signed(item_bytes: int) -> int:
    return int.from_bytes(POISON[item_bytes].to_bytes(item_bytes, "little"), "little", signed=True)
