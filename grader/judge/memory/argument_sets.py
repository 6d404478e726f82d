"""What the judge lends for one case: argument sets over a block, by name, on both sides of it."""

from __future__ import annotations

from typing import Any

import torch

from grader.arena import Layout, Slot, Value, arrange, views
from grader.arena.layout import GUARD_BYTES, ITEM_BYTES, slot_of
from grader.judge.memory.shared_block import GUARD, Block, Ground, fill_with_poison, poison
from grader.judge.problem_code import Values
from grader.problem import Problem
from grader.problem.spec import Argument, Case


class Loan(Block):
    """A block with `count` argument sets of a case, each shaped as `template` (a set's inputs)."""

    def __init__(
        self,
        problem: Problem,
        case: Case,
        template: Values,
        count: int,
        device: str,
        kept: int = 1,
        ground: Ground | None = None,
    ) -> None:
        self.problem = problem
        self.case = case
        layout = arrange([wanted(problem, case, template)] * count)
        super().__init__(layout, item_bytes(problem, case), device, kept, ground)
        written = [(offset - self.head_bytes, n) for offset, n in outputs_of(problem, layout) if n]
        self.written = written or self.written
        try:
            self._lay_out(template)
        except BaseException:
            self.close()
            raise

    def _lay_out(self, template: Values) -> None:
        # Views are made once: a list of a thousand tensors costs more to view than to copy.
        self._image_views = [self._views(i, self.image, 0) for i in range(self.count)]
        self._snapshot_views = [
            self._views(i, self.snapshot, self.head_bytes) for i in range(self.count)
        ]
        if self.poisons_image:
            self._poison_image()
        self._gaps = self._gap_positions()
        self._clean_gaps = self._clean_region()[self._gaps]
        args = self.problem.spec.args
        self.scalars = {a.name: template[a.name] for a in args if a.kind == "scalar"}
        """What the runner is told of every set by value."""
        for index in range(self.count):
            self.fill(index, template)
        self.publish(list(range(self.count)))

    def fill(self, index: int, values: Values) -> None:
        """Write the inputs of one set into the image."""
        views = self._image_views[index]
        for argument in self.problem.spec.args:
            if argument.role == "out":
                continue
            if argument.kind == "scalar":
                views[argument.name] = values[argument.name]
            elif argument.kind == "tensors":
                torch._foreach_copy_(views[argument.name], values[argument.name])
            else:
                views[argument.name].copy_(values[argument.name])

    def close(self) -> None:
        self._image_views = self._snapshot_views = []
        super().close()

    def collect_again(self) -> bool:
        """Take another snapshot; whether anything has changed since the last."""
        before = self.snapshot.clone()
        self.collect()
        return not torch.equal(before, self.snapshot)

    def inputs(self, index: int) -> Values:
        """The `in`, `inout` and scalar arguments of a set, as views of the image."""
        names = [a.name for a in self.problem.spec.args if a.role != "out"]
        return {name: self._image_views[index][name] for name in names}

    def outputs(self, index: int) -> Values:
        """The `out` and `inout` arguments of a set, as views of the last snapshot."""
        return self._snapshot_views[index]

    def tampered(self) -> str | None:
        """What was written that is no output, in words; None when nothing was."""
        now, before = self.lent[: self.head_bytes], self.image[: self.head_bytes]
        if not torch.equal(now.view(torch.int64), before.view(torch.int64)):
            return self._which()
        if not torch.equal(self.snapshot[self._gaps], self._clean_gaps):
            return "memory beside an output was written"
        if bool((self.behind != GUARD).any()):
            return "memory behind the last output was written"
        return None

    def _which(self) -> str:
        now = self.lent[: self.head_bytes].clone()
        for index, values in enumerate(self.layout.sets):
            for argument, place in zip(self.problem.spec.args, values, strict=True):
                if argument.role != "in" or argument.kind == "scalar":
                    continue
                for slot in _slots_of(place):
                    part = slice(slot.offset, slot.offset + slot.nbytes)
                    if not torch.equal(now[part], self.image[part]):
                        return f"the input '{argument.name}' of set {index} was written"
        return "memory beside an input was written"

    def _views(self, index: int, buffer: torch.Tensor, base: int) -> Values:
        """Tensors of one set, those that lie in a buffer which starts at offset `base`."""
        found: Values = {}
        for argument, place in zip(self.problem.spec.args, self.layout.sets[index], strict=True):
            if argument.kind == "scalar":
                continue
            slots = [Slot(s.offset - base, s.dtype, s.shape, s.strides) for s in _slots_of(place)]
            first, last = slots[0], slots[-1]
            if first.offset >= 0 and last.offset + last.nbytes <= buffer.numel():
                tensors = views(buffer, slots)
                found[argument.name] = tensors if isinstance(place, list) else tensors[0]
        return found

    def _poison_image(self) -> None:
        for values in self._image_views:
            for argument in self.problem.spec.args:
                if argument.role == "out":
                    value = values[argument.name]
                    for tensor in value if isinstance(value, list) else [value]:
                        poison(tensor)

    def _clean_region(self) -> torch.Tensor:
        """The writable part of the block as it is before any call."""
        if self.poisons_image:
            return self.image[self.head_bytes :]
        fill_with_poison(self.snapshot, self.item_bytes)
        return self.snapshot

    def _gap_positions(self) -> torch.Tensor:
        """Positions in a snapshot of the guard bytes behind every writable tensor."""
        ends = [
            slot.offset + slot.nbytes - self.head_bytes
            for values in self.layout.sets
            for argument, place in zip(self.problem.spec.args, values, strict=True)
            if argument.role != "in"
            for slot in _slots_of(place)
        ]
        starts = torch.tensor(ends, dtype=torch.int64, device=self.device)
        offsets = torch.arange(GUARD_BYTES, device=self.device)
        return (starts[:, None] + offsets[None, :]).reshape(-1)


def set_bytes(problem: Problem, case: Case, template: Values) -> int:
    """Bytes that one argument set takes in a block."""
    return arrange([wanted(problem, case, template)]).nbytes


def outputs_of(problem: Problem, layout: Layout) -> list[tuple[int, int]]:
    """Offset in the block and size in bytes of each tensor of a layout's first set that a call
    writes."""
    return [
        (slot.offset, slot.nbytes)
        for argument, place in zip(problem.spec.args, layout.sets[0], strict=True)
        if argument.role != "in"
        for slot in _slots_of(place)
    ]


def item_bytes(problem: Problem, case: Case) -> int:
    """Size of an element of the outputs; 0 where they differ in size, or where state is updated
    and so goes into the block with the inputs."""
    written = [a for a in problem.spec.args if a.role != "in"]
    sizes = {ITEM_BYTES[problem.dtype(argument, case)] for argument in written}
    return 0 if any(a.role == "inout" for a in written) or len(sizes) > 1 else sizes.pop()


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
