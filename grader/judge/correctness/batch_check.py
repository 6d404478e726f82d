"""Plain PyTorch's answers to every set of a round, and a quick look at whether outputs agree.

A round has tens of sets, each to be checked in full. On a GPU the answers come from one replay of a
CUDA graph, whose time is at once a baseline measured in the same breath as the submission; and one
kernel compares them with all outputs: element by element, over each whole output, and over pieces
of 4096 elements where `check` has rows, columns and tiles. A set in which it finds
something wrong goes through that check, which decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from grader.arena import TensorSpec, tensor_like
from grader.judge.correctness.check import LEAST_SLICE, TYPICAL_SHARE
from grader.judge.gpu.graphs import captured, replay_us
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import poison_of
from grader.judge.problem_code import ProblemCode, Values
from grader.problem import ProblemError
from grader.problem.spec import Argument, Case, Tolerance

CHUNK = 4096
"""Elements that one program of the kernel compares: a slice of its own for the L2 bound."""
TINY = 1e-300
"""Stands for a sum of squares that is zero."""
_COMPARED = (torch.float32, torch.float16, torch.bfloat16)


class Answers:
    """What PyTorch gives for each set of a sets, from the inputs that lie in its image."""

    def __init__(self, code: ProblemCode, case: Case, sets: ArgumentSets) -> None:
        self._code, self._case, self._loan = code, case, sets
        self._count = len(sets.layout.sets)
        self.written = code.written
        self.values: list[Values] = []
        self._graph = self._captured() if sets.device == "cuda" else None

    def compute(self) -> float | None:
        """Compute them all; microseconds per set where they come from a graph, else None."""
        if self._graph is None:
            return None
        return replay_us(self._graph) / self._count

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        def compute() -> None:
            self.values = [
                self._code.plain(self._case, self._loan.inputs(i)) for i in range(self._count)
            ]

        self._code.plain(self._case, self._loan.inputs(0))  # what compiles or allocates, does now
        try:
            graph = captured(compute)
        except ProblemError:
            graph = None
        if graph is None:  # code that synchronises, or memory is short
            self.values = []
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return graph


@dataclass(frozen=True)
class _Group:
    """All chunks of one argument, as the kernel takes them; one entry per chunk."""

    dtype: torch.dtype
    bounds: Tolerance
    out: torch.Tensor
    expected: torch.Tensor
    initial: torch.Tensor
    counts: torch.Tensor
    sets: torch.Tensor
    has_initial: bool
    whole: bool
    """Whether every chunk is full, and lies where it can be read 16 bytes at a time."""


class QuickLook:
    """Compares the snapshot of a sets with captured answers, all sets at once."""

    def __init__(self, groups: list[_Group], count: int) -> None:
        self._groups = groups
        self._count = count

    @classmethod
    def over(
        cls, answers: Answers, sets: ArgumentSets, bounds_of: Callable[[Argument], Tolerance]
    ) -> QuickLook | None:
        """None where the kernel cannot compare: no graph, other types, or strided tensors.

        `bounds_of(argument)` gives the bounds for an output.
        """
        if not answers.values:
            return None
        groups = []
        for argument in answers.written:
            pieces: list[tuple[Any, ...]] = []
            for i, values in enumerate(answers.values):
                out = _as_list(sets.outputs(i)[argument.name])
                expected = _as_list(values[argument.name])
                state = argument.role == "inout"
                initial = _as_list(sets.inputs(i)[argument.name]) if state else [None] * len(out)
                for o, e, first in zip(out, expected, initial, strict=True):
                    if not _comparable(o, e):
                        return None
                    pieces.append((i, o, e, first))
            groups.append(_group(pieces, bounds_of(argument)))
        return cls(groups, len(answers.values))

    def doubtful(self) -> tuple[set[int], list[int]]:
        """Indices of the sets that it finds something wrong with; and of all, those whose outputs
        lie furthest from the answers first."""
        doubt = torch.zeros(self._count, dtype=torch.bool, device="cuda")
        distance = torch.zeros(self._count, dtype=torch.float64, device="cuda")
        for group in self._groups:
            bad, error2, reference2 = _compare_all(group)
            limit2 = group.bounds.rel_l2**2
            typical = reference2.mean() * TYPICAL_SHARE**2
            over = error2 > limit2 * torch.maximum(reference2, typical)
            wrong = (bad > 0) | (over & (group.counts >= LEAST_SLICE))
            doubt[group.sets[wrong]] = True
            zeros = torch.zeros(self._count, dtype=torch.float64, device="cuda")
            whole_error2 = zeros.index_add(0, group.sets, error2)
            whole_reference2 = zeros.index_add(0, group.sets, reference2)
            doubt |= ~(whole_error2 <= limit2 * whole_reference2)
            distance += whole_error2 / (limit2 * whole_reference2).clamp_min(TINY)
        furthest: list[int] = distance.nan_to_num().argsort(descending=True).tolist()
        return set(doubt.nonzero().flatten().tolist()), furthest


def load_kernels(code: ProblemCode) -> None:
    """Compile what a quick look at a problem's benchmarks needs, before it is needed."""
    kinds = {
        (code.problem.dtype(argument, case), argument.role == "inout")
        for argument in code.written
        for case in code.problem.cases("benchmark", "cuda")
    }
    for dtype, is_state in kinds:
        one = tensor_like(TensorSpec(0, dtype, (1,), (1,)), "cuda")
        if _comparable(one, one):
            for some in (one, tensor_like(TensorSpec(0, dtype, (CHUNK,), (1,)), "cuda")):
                piece = (0, some, some, some if is_state else None)
                _compare_all(_group([piece], Tolerance(atol=0, rtol=0, rel_l2=1)))


def _comparable(out: torch.Tensor, expected: torch.Tensor) -> bool:
    plain = out.is_contiguous() and expected.is_contiguous()
    return plain and out.dtype == expected.dtype and out.dtype in _COMPARED


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _group(pieces: list[tuple[Any, ...]], bounds: Tolerance) -> _Group:
    """Cut the tensors of one argument, as (set, output, expected, initial or None), into chunks."""
    item_bytes = pieces[0][1].element_size()
    # On the device, since there may be a million chunks.
    sizes = torch.tensor([out.numel() for _, out, _, _ in pieces]).cuda()
    chunks = (sizes + CHUNK - 1) // CHUNK
    which = torch.repeat_interleave(chunks)
    first = torch.cumsum(chunks, 0) - chunks
    start = (torch.arange(len(which), device="cuda") - first[which]) * CHUNK

    def at(position: int) -> torch.Tensor:
        bases = [0 if piece[position] is None else piece[position].data_ptr() for piece in pieces]
        addresses: torch.Tensor = torch.tensor(bases).cuda()[which] + start * item_bytes
        return addresses

    bases = [t.data_ptr() for _, *tensors in pieces for t in tensors if t is not None]
    is_full = all(out.numel() % CHUNK == 0 for _, out, _, _ in pieces)
    return _Group(
        dtype=pieces[0][1].dtype,
        bounds=bounds,
        out=at(1),
        expected=at(2),
        initial=at(3),
        counts=torch.clamp(sizes[which] - start, max=CHUNK).int(),
        sets=torch.tensor([piece[0] for piece in pieces]).cuda()[which],
        has_initial=pieces[0][3] is not None,
        whole=is_full and all(base % 16 == 0 for base in bases),
    )


def _compare_all(group: _Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per chunk: wrong elements, and the sums of squares of error and reference (float64)."""
    from grader.judge.correctness.compare_kernel import compare

    chunks = group.counts.numel()
    bad = torch.empty(chunks, dtype=torch.int32, device="cuda")
    error2 = torch.empty(chunks, dtype=torch.float32, device="cuda")
    reference2 = torch.empty_like(error2)
    poison = poison_of(torch.empty(0, dtype=group.dtype))
    compare(
        chunks,
        group.out,
        group.expected,
        group.initial,
        group.counts,
        bad,
        error2,
        reference2,
        group.bounds.atol,
        group.bounds.rtol,
        poison,
        group.dtype,
        group.has_initial,
        group.whole,
        CHUNK,
    )
    return bad, error2.double(), reference2.double()
