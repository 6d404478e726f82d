"""What the judge lends for one case, and the private image of what it lent.

The arena is written only from the image and read only into a snapshot. Every judgement is made on
the image and the snapshot, which no runner can reach.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from grader.arena import Layout, Slot, Value, arrange, view
from grader.arena.host import HostArena
from grader.arena.layout import GUARD_BYTES, slot_of
from grader.judge.cases import Values
from grader.problem import Problem
from grader.problem.spec import Argument, Case

POISON = {1: 0xA5, 2: 0xFFE5, 4: 0xFFE5A5A5, 8: 0xFFFDE5A5A5A5A5A5}
"""Bits of every element of an output before a call, by its size in bytes. As a float of that size
it is a quiet NaN whose payload no arithmetic makes: hardware's own NaN is 0x7FFF… or 0xFFC0…, and
vector compare masks, seen in PyTorch's softmax, are all ones."""
GUARD = 0xA5


class Loan:
    """An arena with `count` argument sets of one case, each shaped as `template` (a set's inputs).

    Close it when the case is over.
    """

    def __init__(
        self, problem: Problem, case: Case, template: Values, count: int, device: str
    ) -> None:
        self.problem = problem
        self.case = case
        self.device = device
        self.layout: Layout = arrange([wanted(problem, case, template)] * count)
        self.image = torch.full((self.layout.nbytes,), GUARD, dtype=torch.uint8, device=device)
        writable_bytes = self.layout.nbytes - self.layout.writable_at
        self._snapshot = torch.empty(writable_bytes, dtype=torch.uint8, device=device)
        # Views are made once: a list of a thousand tensors costs more to view than to copy.
        self._image_views = [self._views(index, self.image, 0) for index in range(count)]
        self._snapshot_views = [
            self._views(index, self._snapshot, self.layout.writable_at, only_written=True)
            for index in range(count)
        ]
        self._gaps = self._gap_positions()
        for index in range(count):
            self.fill(index, template)
        # Last, so that a loan for which memory is short leaves no block behind.
        self.arena = new_arena(device, self.layout.nbytes)

    def fill(self, index: int, values: Values) -> None:
        """Write the inputs of one set, and poison its outputs, in the image."""
        views = self._image_views[index]
        for argument in self.problem.spec.args:
            if argument.kind == "scalar":
                views[argument.name] = values[argument.name]
            elif argument.role == "out":
                poison(views[argument.name])
            elif argument.kind == "tensors":
                torch._foreach_copy_(views[argument.name], values[argument.name])
            else:
                views[argument.name].copy_(values[argument.name])

    def publish(self) -> None:
        """Copy the whole image into the arena, and wait until it is there."""
        self.arena.buffer.copy_(self.image)
        self.settle()

    def collect(self) -> None:
        """Take the snapshot: a private copy of everything a call may write. Waits for it.

        It goes to the same buffer every time; allocating one would cost more than the copy.
        """
        self._snapshot.copy_(self.arena.buffer[self.layout.writable_at :])
        self.settle()

    def collect_again(self) -> bool:
        """Take another snapshot; whether anything has changed since the last."""
        before = self._snapshot.clone()
        self.collect()
        return not torch.equal(before, self._snapshot)

    def inputs(self, index: int) -> Values:
        """The `in`, `inout` and scalar arguments of a set, as views of the image."""
        names = [a.name for a in self.problem.spec.args if a.role != "out"]
        return {name: self._image_views[index][name] for name in names}

    def outputs(self, index: int) -> Values:
        """The `out` and `inout` arguments of a set, as views of the last snapshot."""
        return self._snapshot_views[index]

    def tampered(self) -> str | None:
        """What was written that is no output, in words; None when nothing was."""
        head = self.layout.writable_at
        now, before = self.arena.buffer[:head].clone(), self.image[:head]
        if not torch.equal(now.view(torch.int64), before.view(torch.int64)):
            return self._which(now)
        if not bool((self._snapshot[self._gaps] == GUARD).all()):
            return "memory beside an output was written"
        return None

    def close(self) -> None:
        """Take the arena back."""
        self.arena.close()

    def _which(self, now: torch.Tensor) -> str:
        for index, values in enumerate(self.layout.sets):
            for argument, place in zip(self.problem.spec.args, values, strict=True):
                if argument.role != "in" or argument.kind == "scalar":
                    continue
                for slot in _slots_of(place):
                    part = slice(slot.offset, slot.offset + slot.nbytes)
                    if not torch.equal(now[part], self.image[part]):
                        return f"the input '{argument.name}' of set {index} was written"
        return "memory beside an input was written"

    def _views(
        self, index: int, buffer: torch.Tensor, base: int, only_written: bool = False
    ) -> Values:
        """Tensors of one set over a buffer that starts at offset `base` of the block."""
        views: Values = {}
        for argument, place in zip(self.problem.spec.args, self.layout.sets[index], strict=True):
            if argument.kind == "scalar" or (only_written and argument.role == "in"):
                continue
            slots = [replace(s, offset=s.offset - base) for s in _slots_of(place)]
            tensors = [view(buffer, slot) for slot in slots]
            views[argument.name] = tensors if isinstance(place, list) else tensors[0]
        return views

    def _gap_positions(self) -> torch.Tensor:
        """Positions in a snapshot of the guard bytes behind every writable tensor."""
        ends = [
            slot.offset + slot.nbytes - self.layout.writable_at
            for values in self.layout.sets
            for argument, place in zip(self.problem.spec.args, values, strict=True)
            if argument.role != "in" and argument.kind != "scalar"
            for slot in _slots_of(place)
        ]
        starts = torch.tensor(ends, dtype=torch.int64, device=self.device)
        offsets = torch.arange(GUARD_BYTES, device=self.device)
        return (starts[:, None] + offsets[None, :]).reshape(-1)

    def settle(self) -> None:
        """Wait until everything asked of the device so far is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def set_bytes(problem: Problem, case: Case, template: Values) -> int:
    """Bytes that one argument set takes in a block."""
    return arrange([wanted(problem, case, template)]).nbytes


def new_arena(device: str, nbytes: int) -> Any:
    """A block to lend, in the device's memory."""
    if device == "cuda":
        from grader.arena.cuda import CudaArena

        # The block does not come from PyTorch's allocator, which would keep what it does not use.
        torch.cuda.empty_cache()
        return CudaArena.create(nbytes)
    return HostArena.create(nbytes)


def wanted(problem: Problem, case: Case, values: Values) -> list[tuple[bool, Any]]:
    """One argument set as `grader.arena.arrange` takes it."""
    return [(a.role != "in", _slots(problem, case, a, values)) for a in problem.spec.args]


def _slots(problem: Problem, case: Case, argument: Argument, values: Values) -> Any:
    if argument.kind == "scalar":
        return values[argument.name]
    if argument.role == "out":
        shape = problem.shape(argument, case)
        return Slot(0, problem.dtype(argument, case), shape, _contiguous(shape))
    value = values[argument.name]
    return [slot_of(tensor) for tensor in value] if isinstance(value, list) else slot_of(value)


def poison(tensor: torch.Tensor) -> None:
    """Fill a contiguous tensor with `POISON`."""
    bits(tensor).fill_(poison_of(tensor))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's elements as signed integers of the same size."""
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])


def poison_of(tensor: torch.Tensor) -> int:
    """`POISON` for this tensor's elements, as the signed integer that `bits` shows."""
    size = tensor.element_size()
    return int.from_bytes(POISON[size].to_bytes(size, "little"), "little", signed=True)


def _slots_of(place: Value) -> list[Slot]:
    if isinstance(place, list):
        return place
    return [place] if isinstance(place, Slot) else []


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
