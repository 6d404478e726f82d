"""What the judge lends for one case, and the private image of what it lent.

The arena is written only from the image and read only into a snapshot. Every judgement is made on
the image and the snapshot, which no runner can reach.
"""

from __future__ import annotations

from typing import Any

import torch

from grader.arena import Layout, Slot, arrange, view
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
        self.layout: Layout = arrange([_wanted(problem, case, template)] * count)
        self.image = torch.full((self.layout.nbytes,), GUARD, dtype=torch.uint8, device=device)
        self.scalars: list[Values] = [{} for _ in range(count)]
        for index in range(count):
            self.fill(index, template)
        self.arena = new_arena(device, self.layout.nbytes)
        writable_bytes = self.layout.nbytes - self.layout.writable_at
        self._snapshot = torch.empty(writable_bytes, dtype=torch.uint8, device=device)
        self._gaps = self._gap_positions()

    def fill(self, index: int, values: Values) -> None:
        """Write the inputs of one set, and poison its outputs, in the image."""
        for argument, place in zip(self.problem.spec.args, self.layout.sets[index], strict=True):
            if argument.kind == "scalar":
                self.scalars[index][argument.name] = values[argument.name]
            elif argument.role == "out":
                assert isinstance(place, Slot)
                poison(view(self.image, place))
            elif isinstance(place, list):
                torch._foreach_copy_([view(self.image, s) for s in place], values[argument.name])
            else:
                assert isinstance(place, Slot)
                view(self.image, place).copy_(values[argument.name])

    def publish(self) -> None:
        """Copy the whole image into the arena, and wait until it is there."""
        self.arena.buffer.copy_(self.image)
        self._wait()

    def collect(self) -> torch.Tensor:
        """A private copy of everything a call may write; returns when it is complete.

        The same buffer every time, since allocating one would cost more than the copy.
        """
        self._snapshot.copy_(self.arena.buffer[self.layout.writable_at :])
        self._wait()
        return self._snapshot

    def inputs(self, index: int) -> Values:
        """The `in`, `inout` and scalar arguments of a set, as views of the image."""
        values: Values = {}
        for argument, place in zip(self.problem.spec.args, self.layout.sets[index], strict=True):
            if argument.kind == "scalar":
                values[argument.name] = self.scalars[index][argument.name]
            elif argument.role != "out":
                values[argument.name] = _views(self.image, place)
        return values

    def outputs(self, index: int, snapshot: torch.Tensor) -> Values:
        """The `out` and `inout` arguments of a set, as views of a snapshot."""
        return {
            argument.name: _views(snapshot, place, self.layout.writable_at)
            for argument, place in zip(self.problem.spec.args, self.layout.sets[index], strict=True)
            if argument.role != "in" and argument.kind != "scalar"
        }

    def tampered(self, snapshot: torch.Tensor) -> str | None:
        """What was written that is no output, in words; None when nothing was."""
        head = self.layout.writable_at
        now, before = self.arena.buffer[:head].clone(), self.image[:head]
        if not torch.equal(now.view(torch.int64), before.view(torch.int64)):
            return self._which(now)
        if not bool((snapshot[self._gaps] == GUARD).all()):
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
                slots = place if isinstance(place, list) else [place]
                for slot in slots:
                    assert isinstance(slot, Slot)
                    part = slice(slot.offset, slot.offset + slot.nbytes)
                    if not torch.equal(now[part], self.image[part]):
                        return f"the input '{argument.name}' of set {index} was written"
        return "memory beside an input was written"

    def _gap_positions(self) -> torch.Tensor:
        """Positions in a snapshot of the guard bytes behind every writable tensor."""
        ends = [
            slot.offset + slot.nbytes - self.layout.writable_at
            for values in self.layout.sets
            for argument, place in zip(self.problem.spec.args, values, strict=True)
            if argument.role != "in" and argument.kind != "scalar"
            for slot in (place if isinstance(place, list) else [place])
            if isinstance(slot, Slot)
        ]
        starts = torch.tensor(ends, dtype=torch.int64, device=self.device)
        offsets = torch.arange(GUARD_BYTES, device=self.device)
        return (starts[:, None] + offsets[None, :]).reshape(-1)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def set_bytes(problem: Problem, case: Case, template: Values) -> int:
    """Bytes that one argument set takes in a block."""
    return arrange([_wanted(problem, case, template)]).nbytes


def new_arena(device: str, nbytes: int) -> Any:
    """A block to lend, in the device's memory."""
    if device == "cuda":
        from grader.arena.cuda import CudaArena

        return CudaArena.create(nbytes)
    return HostArena.create(nbytes)


def _wanted(problem: Problem, case: Case, values: Values) -> list[tuple[bool, Any]]:
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


def _views(buffer: torch.Tensor, place: Any, base: int = 0) -> Any:
    if isinstance(place, list):
        return [_view(buffer, slot, base) for slot in place]
    return _view(buffer, place, base)


def _view(buffer: torch.Tensor, slot: Slot, base: int) -> torch.Tensor:
    moved = Slot(slot.offset - base, slot.dtype, slot.shape, slot.strides)
    return view(buffer, moved)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
