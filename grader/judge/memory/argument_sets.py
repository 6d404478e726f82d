"""The argument sets of one case in a shared block, by argument name, on the judge's side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grader.arena import Layout, TensorSpec, Value, arrange, views
from grader.arena.layout import GUARD_BYTES, ITEM_BYTES, spec_of
from grader.judge.memory.shared_block import (
    GUARD,
    ReusedArena,
    SharedBlock,
    bits,
    fill_with_poison,
    poison,
    poison_of,
)
from grader.judge.pieces import MOST_ELEMENTS, pieces
from grader.judge.problem_code import Values, listed
from grader.problem import Problem
from grader.problem.spec import Argument, Case

OUT_OF_BOUNDS = "your kernel wrote out of bounds, {}: are all its stores masked?"


class ArgumentSets(SharedBlock):
    """A shared block with `count` argument sets of a case, each shaped as `template`."""

    def __init__(
        self,
        problem: Problem,
        case: Case,
        template: Values,
        count: int,
        device: str,
        kept: int = 1,
        reused: ReusedArena | None = None,
        weights: Sequence[Values] = (),
    ) -> None:
        """`weights` are arguments of the template that each set has of its own."""
        self.problem = problem
        self.case = case
        layout = arrange([arguments_of(problem, case, template)] * count)
        super().__init__(layout, item_bytes(problem, case), device, kept, reused)
        written = [
            (slot.offset - self.head_bytes, slot.nbytes)
            for argument, place in zip(problem.spec.args, layout.sets[0], strict=True)
            if argument.role != "in" and not argument.optional
            for slot in _specs_of(place)
            if slot.nbytes
        ]
        self.written = written or self.written
        try:
            self._lay_out(template, weights)
        except BaseException:
            self.close()
            raise

    def _lay_out(self, template: Values, weights: Sequence[Values]) -> None:
        # Views are made once: viewing a list of a thousand tensors takes longer than copying it.
        self._shadow_views = [self._views(i, self.shadow, 0) for i in range(self.count)]
        self._snapshot_views = [
            self._views(i, self.snapshot, self.head_bytes) for i in range(self.count)
        ]
        if self.outputs_in_shadow:
            self._poison_shadow()
        self._guards = self._guard_positions()
        self._clean_guards = self._clean_region()[self._guards]
        args = self.problem.spec.args
        self.scalars = {a.name: template[a.name] for a in args if a.kind == "scalar"}
        """Scalars, which the runner receives by value, once for all sets."""
        for index in range(self.count):
            self.fill(index, template | weights[index] if weights else template)
        self.publish(list(range(self.count)))

    def fill(self, index: int, values: Values) -> None:
        """Write the inputs of one set into the shadow."""
        views = self._shadow_views[index]
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
        self._shadow_views = self._snapshot_views = []
        super().close()

    def snapshot_changed(self) -> bool:
        """Take another snapshot; whether it differs from the last one."""
        changed = False
        last = self.snapshot[self._writable(self._only)]
        for kept, lent in pieces(last, self._outputs(), elements=8 * MOST_ELEMENTS):
            now = lent.clone()
            changed = changed or not _are_alike(now, kept)
            kept.copy_(now)
        self.settle()
        return changed

    def inputs(self, index: int) -> Values:
        """The `in`, `inout` and scalar arguments of a set, as views of the shadow."""
        names = [a.name for a in self.problem.spec.args if a.role != "out"]
        return {name: self._shadow_views[index][name] for name in names}

    def outputs(self, index: int) -> Values:
        """The `out` and `inout` arguments of a set, as views of the last snapshot."""
        return self._snapshot_views[index]

    def tampered(self) -> str | None:
        """What was written besides outputs, in words; None when nothing was. After a call of a
        single set, among its inputs: the others are overwritten before they are used."""
        inputs = self._readable(self._only)
        if not _are_alike(self.lent[inputs], self.shadow[inputs]):
            return self._tampered_input()
        own = slice(None) if self._only is None else self._only
        if not torch.equal(self.snapshot[self._guards[own]], self._clean_guards[own]):
            return OUT_OF_BOUNDS.format("beside an output")
        if bool((self.behind != GUARD).any()):
            return OUT_OF_BOUNDS.format("behind the last output")
        return None

    def untouched(self, index: int) -> list[str]:
        """The outputs of a set that the last snapshot shows as they were before the call, but for
        those that may be left out."""
        found = []
        for argument in self.problem.spec.args:
            if argument.role == "in" or argument.optional:
                continue
            after = listed(self.outputs(index)[argument.name])
            state = argument.role == "inout"
            before = listed(self.inputs(index)[argument.name]) if state else [None] * len(after)
            if all(map(_is_untouched, after, before)) and any(t.numel() for t in after):
                found.append(argument.name)
        return found

    def _tampered_input(self) -> str:
        now = self.lent[: self.head_bytes].clone()
        for values in self.layout.sets:
            for argument, place in zip(self.problem.spec.args, values, strict=True):
                if argument.is_written or argument.kind == "scalar":
                    continue
                for slot in _specs_of(place):
                    part = slice(slot.offset, slot.offset + slot.nbytes)
                    if not torch.equal(now[part], self.shadow[part]):
                        return f"your kernel wrote into '{argument.name}', which is an input"
        return OUT_OF_BOUNDS.format("beside an input")

    def _views(self, index: int, buffer: torch.Tensor, base: int) -> Values:
        """Tensors of one set that lie in `buffer`, which begins at offset `base` of the block."""
        found: Values = {}
        for argument, place in zip(self.problem.spec.args, self.layout.sets[index], strict=True):
            if argument.kind == "scalar":
                continue
            slots = [
                TensorSpec(s.offset - base, s.dtype, s.shape, s.strides) for s in _specs_of(place)
            ]
            first, last = slots[0], slots[-1]
            if first.offset >= 0 and last.offset + last.nbytes <= buffer.numel():
                tensors = views(buffer, slots)
                found[argument.name] = tensors if isinstance(place, list) else tensors[0]
        return found

    def _poison_shadow(self) -> None:
        for values in self._shadow_views:
            for argument in self.problem.spec.args:
                if argument.role == "out":
                    value = values[argument.name]
                    for tensor in value if isinstance(value, list) else [value]:
                        poison(tensor)

    def _clean_region(self) -> torch.Tensor:
        """The writable part of the block as it is before any call."""
        if self.outputs_in_shadow:
            return self.shadow[self.head_bytes :]
        fill_with_poison(self.snapshot, self.item_bytes)
        return self.snapshot

    def _guard_positions(self) -> torch.Tensor:
        """Positions in a snapshot of the guard bytes behind every writable tensor, by set."""
        ends = [
            slot.offset + slot.nbytes - self.head_bytes
            for values in self.layout.sets
            for argument, place in zip(self.problem.spec.args, values, strict=True)
            if argument.is_written
            for slot in _specs_of(place)
        ]
        starts = torch.tensor(ends, dtype=torch.int64, device=self.device)
        offsets = torch.arange(GUARD_BYTES, device=self.device)
        return (starts[:, None] + offsets[None, :]).reshape(self.count, -1)


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether regions of whole words hold the same bytes."""
    a, b = a.view(torch.int64), b.view(torch.int64)
    if not a.is_cuda:
        return torch.equal(a, b)
    from grader.judge.memory.words_kernel import are_alike

    return are_alike(a, b)


def _is_untouched(after: torch.Tensor, before: torch.Tensor | None) -> bool:
    """Whether a tensor holds what it held before a call, bit by bit; None stands for poison."""
    after = after.contiguous()
    if before is None:
        return bool((bits(after) == poison_of(after)).all())
    return torch.equal(bits(after), bits(before.contiguous()))


def layout_of(problem: Problem, case: Case, template: Values) -> Layout:
    """How one argument set lies in a block."""
    return arrange([arguments_of(problem, case, template)])


def item_bytes(problem: Problem, case: Case) -> int:
    """Element size of the outputs in bytes; 0 where sizes differ or an input is written, so that
    the outputs lie in the shadow."""
    written = [a for a in problem.spec.args if a.is_written]
    sizes = {ITEM_BYTES[problem.dtype(argument, case)] for argument in written}
    return 0 if any(a.role != "out" for a in written) or len(sizes) > 1 else sizes.pop()


def arguments_of(problem: Problem, case: Case, values: Values) -> list[tuple[bool, Any]]:
    """One argument set as `grader.arena.arrange` takes it: (writable, value) of each argument."""
    return [(a.is_written, _value(problem, case, a, values)) for a in problem.spec.args]


def _value(problem: Problem, case: Case, argument: Argument, values: Values) -> Any:
    if argument.kind == "scalar":
        return values[argument.name]
    if argument.role == "out":
        shape = problem.shape(argument, case)
        strides = problem.strides(argument, case)
        return TensorSpec(0, problem.dtype(argument, case), shape, strides)
    value = values[argument.name]
    return [spec_of(tensor) for tensor in value] if isinstance(value, list) else spec_of(value)


def _specs_of(place: Value) -> list[TensorSpec]:
    if isinstance(place, list):
        return place
    return [place] if isinstance(place, TensorSpec) else []
