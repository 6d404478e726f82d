"""Mutants of any problem: its right outputs, changed as a broken or lazy kernel leaves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grader.judge.memory.shared_block import bits, poison


@dataclass(frozen=True)
class OutputTensor:
    """One output tensor, or one tensor of an output list, as a mutant sees it."""

    value: torch.Tensor
    """The right output, in the output's dtype."""
    previous: torch.Tensor
    half: torch.Tensor | None
    initial: torch.Tensor | None
    """Its value before the call, for `inout` arguments."""
    source: torch.Tensor | None
    """An input of the same shape and dtype, if there is one."""
    last: bool
    """Whether it is the last of its list; true for a single tensor."""
    listed: bool

    def blank(self) -> torch.Tensor:
        """The output when nothing is computed: the initial state, or zeros."""
        return torch.zeros_like(self.value) if self.initial is None else self.initial.clone()


class NotApplicableError(Exception):
    """This mutant has no meaning for this output; the message says why."""


Mutant = Callable[[OutputTensor], torch.Tensor]


def _needs(condition: bool, otherwise: str) -> None:
    if not condition:
        raise NotApplicableError(otherwise)


def _zeros(output: OutputTensor) -> torch.Tensor:
    return torch.zeros_like(output.value)


def _constant(output: OutputTensor) -> torch.Tensor:
    """One number everywhere: the mean of all finite outputs."""
    _needs(output.value.numel() > 1, "the output has one element")
    values = output.value.double()
    finite = values[torch.isfinite(values)]
    mean = float(finite.mean()) if finite.numel() else 0.0
    return torch.full_like(output.value, mean if output.value.is_floating_point() else int(mean))


def _row_mean(output: OutputTensor) -> torch.Tensor:
    _needs(output.value.dim() > 0 and output.value.shape[-1] > 1, "its rows have one element")
    mean = output.value.double().mean(-1, keepdim=True)
    return mean.expand_as(output.value).to(output.value.dtype)


def _nothing_done(output: OutputTensor) -> torch.Tensor:
    """An `inout` argument unchanged; any other output as a copy of a similar input."""
    if output.initial is not None:
        return output.initial.clone()
    if output.source is None:
        raise NotApplicableError("no input has the output's shape and dtype")
    return output.source.clone()


def _unwritten(output: OutputTensor) -> torch.Tensor:
    _needs(output.initial is None, "the argument is updated in place")
    left = torch.empty_like(output.value, memory_format=torch.contiguous_format)
    poison(left)
    return left


def _permuted(output: OutputTensor) -> torch.Tensor:
    """Every row (of a vector, every element) in the place of its neighbour."""
    columns = output.value.shape[-1] if output.value.dim() > 1 else 1
    _needs(output.value.numel() > columns, "the output has one row")
    # As integers: PyTorch cannot roll 8-bit floating-point numbers on a GPU.
    rolled = bits(output.value.contiguous()).reshape(-1, columns).roll(1, 0)
    return rolled.view(output.value.dtype).reshape(output.value.shape)


def _last_row(output: OutputTensor) -> torch.Tensor:
    """The last row, or the last tensor of a list, is not computed."""
    if output.listed:
        return output.blank() if output.last else output.value
    _needs(output.value.dim() > 0, "the output has one element")
    dropped = output.value.contiguous().clone()
    columns = dropped.shape[-1]
    dropped.view(-1, columns)[-1] = output.blank().reshape(-1, columns)[-1]
    return dropped


def _last_column(output: OutputTensor) -> torch.Tensor:
    """The last column is not computed: the tail that a wrong mask cuts off."""
    _needs(output.value.dim() > 0, "the output has one element")
    dropped = output.value.clone()
    dropped[..., -1] = output.blank()[..., -1]
    return dropped


def _half(output: OutputTensor) -> torch.Tensor:
    if output.half is None:
        narrow = "16 bits wide" if output.value.is_floating_point() else "integers"
        raise NotApplicableError(f"the outputs are {narrow}")
    return output.half


def _previous(output: OutputTensor) -> torch.Tensor:
    return output.previous


def _largest_integers(output: OutputTensor) -> torch.Tensor:
    """An index out of every range: the check itself must not stumble over it."""
    _needs(not output.value.is_floating_point(), "the outputs are no integers")
    _needs(output.value.dtype != torch.bool, "the outputs are no integers")
    return torch.full_like(output.value, torch.iinfo(output.value.dtype).max)


MUTANTS: dict[str, Mutant] = {
    "zeros": _zeros,
    "constant": _constant,
    "mean of the row": _row_mean,
    "nothing done": _nothing_done,
    "nothing written": _unwritten,
    "permuted rows": _permuted,
    "last row dropped": _last_row,
    "last column dropped": _last_column,
    "half precision": _half,
    "previous output": _previous,
    "largest integers": _largest_integers,
}

DRAWN_MUTANTS: dict[str, Mutant] = {"right on the listed shapes only": OutputTensor.blank}
"""What only a drawn case can show: on every listed case, the outputs are right."""
