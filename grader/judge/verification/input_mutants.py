"""Plausible bugs by kind of argument: a kernel that reads one of its inputs wrongly.

PyTorch's own function computes what such a kernel gives. Whether a bug shows depends on a case's
values: a sign does not matter to a square, nor a scale where it is 1. So each must be caught in at
least one case, unless it changes no right answer anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch

from grader.judge.correctness.check import widened
from grader.judge.memory.shared_block import bits
from grader.judge.problem_code import Values
from grader.problem.spec import Argument

TAKEN_AS_1 = "taken as 1"


def input_mutants(arguments: Iterable[Argument], inputs: Values) -> Iterator[tuple[str, Values]]:
    """The name of each bug, and the inputs that its kernel computes with; both by name."""
    arguments = [argument for argument in arguments if argument.name in inputs]
    for argument in arguments:
        value = inputs[argument.name]
        for bug, change in _changes(value).items():
            changed = [change(v) for v in value] if isinstance(value, list) else change(value)
            yield f"'{argument.name}' {bug}", inputs | {argument.name: changed}
    for one, other in pairwise(arguments):
        first, second = inputs[one.name], inputs[other.name]
        if (
            one.kind == other.kind != "scalar"
            and one.role == other.role
            and form_of(first) == form_of(second)
        ):
            swapped = {one.name: second, other.name: first}
            yield f"'{one.name}' and '{other.name}' swapped", inputs | swapped


def perturbed(value: Any, redrawn: Any) -> Any:
    """Another value of an input: a scalar nearby; for tensors `redrawn`, as another seed draws."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return 1.5 * value + 0.25 if isinstance(value, float) else redrawn


def _changes(value: Any) -> dict[str, Callable[[Any], Any]]:
    """The bugs of one kind of argument; each changes a scalar, or a tensor of a list."""
    if isinstance(value, bool):
        return {"negated": lambda flag: not flag}
    if isinstance(value, int):
        return {"off by one": lambda number: number + 1}
    if isinstance(value, float):
        return {TAKEN_AS_1: lambda _: 1.0, "without its sign": abs}
    bugs: dict[str, Callable[[Any], Any]] = {"off by one row": _off_by_one_row}
    first = value[0] if isinstance(value, list) else value
    if first.is_floating_point():
        bugs |= {TAKEN_AS_1: torch.ones_like, "without its sign": _without_sign}
    return bugs


def _without_sign(tensor: torch.Tensor) -> torch.Tensor:
    return widened(tensor).abs().to(tensor.dtype)


def _off_by_one_row(tensor: torch.Tensor) -> torch.Tensor:
    """Each batch, group or row is its neighbour's: along the first dimension longer than 1."""
    dim = next((dim for dim, size in enumerate(tensor.shape) if size > 1), None)
    if dim is None:
        return tensor
    # As integers: PyTorch cannot roll 8-bit floating-point numbers on a GPU.
    return bits(tensor.contiguous()).roll(1, dim).view(tensor.dtype)


def form_of(value: Any) -> list[tuple[torch.Size, torch.dtype]]:
    """What two arguments have in common that may be mistaken for each other."""
    return [(t.shape, t.dtype) for t in (value if isinstance(value, list) else [value])]
