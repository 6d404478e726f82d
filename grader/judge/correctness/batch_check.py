"""A fast check of all argument sets of a round at once, against eager PyTorch.

A round has tens of sets, and every output of each must be checked. On a GPU, one replay of a CUDA
graph computes eager PyTorch's outputs for all sets; its time also serves as a baseline measured
next to the submission. One kernel then compares all outputs: element by element, over each whole
output, and over chunks of 4096 elements instead of `check`'s rows, columns and tiles. A set that
looks wrong goes through `check`, which decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from grader.arena import TensorSpec, tensor_like
from grader.judge.correctness.check import KERNEL_DTYPES, MIN_NORM_SHARE, MIN_SLICE_ELEMENTS
from grader.judge.gpu.graphs import capture_graph, replay_us
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import poison_of
from grader.judge.problem_code import ProblemCode, Values, listed
from grader.problem import ProblemError
from grader.problem.spec import Argument, Case, Tolerance

LEAST_BYTES = 1 << 20
"""PyTorch takes smaller tensors than about this from blocks that hold many."""
CHUNK = 4096
"""Elements that one program of the kernel compares, and to which the L2 bound applies."""
TINY = 1e-300
"""Replaces a sum of squares that is zero, to divide by it."""


class EagerOutputs:
    """Eager PyTorch's outputs for each argument set, from the judge's copy of the inputs."""

    def __init__(self, code: ProblemCode, case: Case, sets: ArgumentSets) -> None:
        self._code, self._case, self._sets = code, case, sets
        self._count = len(sets.layout.sets)
        self.written = code.written
        self.values: list[Values] = []
        self._graph = self._capture() if sets.device == "cuda" and code.is_local else None

    def compute(self) -> float | None:
        """Compute all outputs into `values`. Returns microseconds per set, or None if there is no
        graph; `values` is empty then."""
        if self._graph is None:
            return None
        return replay_us(self._graph) / self._count

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        def compute() -> None:
            # One allocation, which the graph's memory keeps for the answers: each would have one of
            # its own otherwise, and a grading hundreds.
            torch.empty(answers_bytes, dtype=torch.uint8, device="cuda")
            self.values = [
                self._code.run_eager(self._case, self._sets.inputs(i)) for i in range(self._count)
            ]

        # Once outside the graph, since compiling and allocating cannot be captured.
        first = self._code.run_eager(self._case, self._sets.inputs(0))
        answers_bytes = self._count * sum(
            _allocated_bytes(t) for a in self.written for t in listed(first[a.name])
        )
        del first
        try:
            graph = capture_graph(compute)
        except ProblemError:
            graph = None
        if graph is None:  # the code synchronises, or memory is short
            self.values = []
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return graph


def _allocated_bytes(tensor: torch.Tensor) -> int:
    """Bytes that PyTorch's allocator takes from a large block for a tensor like this one."""
    return 0 if tensor.nbytes <= LEAST_BYTES else -(-tensor.nbytes // 512) * 512


class _Output(NamedTuple):
    """One output tensor of one set, and what it is compared with."""

    out: torch.Tensor
    expected: torch.Tensor
    initial: torch.Tensor | None
    """Its value before the call, for `inout` arguments."""


@dataclass(frozen=True)
class _Group:
    """All chunks of one argument, in the form that the kernel takes; each tensor has one entry per
    chunk. Those of a set come together, and every set has as many."""

    dtype: torch.dtype
    bounds: Tolerance
    out: torch.Tensor
    expected: torch.Tensor
    initial: torch.Tensor
    counts: torch.Tensor
    has_initial: bool
    whole: bool
    """Whether every chunk is full and aligned to 16 bytes."""


class BatchCheck:
    """Compares the outputs of all sets with `EagerOutputs` at once."""

    def __init__(self, groups: list[_Group], count: int) -> None:
        self._groups = groups
        self._count = count

    @classmethod
    def build(
        cls, eager: EagerOutputs, sets: ArgumentSets, bounds_of: Callable[[Argument], Tolerance]
    ) -> BatchCheck | None:
        """None where the kernel cannot compare: no graph, another dtype, strided tensors, or
        outputs with several right values or that may be left out.

        `bounds_of(argument)` gives the bounds for an output.
        """
        if not eager.values or not all(a.unique and not a.optional for a in eager.written):
            return None
        groups = []
        for argument in eager.written:
            outputs: list[_Output] = []
            for i, values in enumerate(eager.values):
                out = listed(sets.outputs(i)[argument.name])
                expected = listed(values[argument.name])
                state = argument.role == "inout"
                initial = listed(sets.inputs(i)[argument.name]) if state else [None] * len(out)
                for o, e, first in zip(out, expected, initial, strict=True):
                    if not _comparable(o, e):
                        return None
                    outputs.append(_Output(o, e, first))
            groups.append(_group(outputs, bounds_of(argument)))
        return cls(groups, len(eager.values))

    def suspect_sets(self) -> tuple[set[int], list[int]]:
        """Indices of the sets that look wrong; and the indices of all sets, by their distance from
        eager PyTorch's outputs, largest first."""
        suspect = torch.zeros(self._count, dtype=torch.bool, device="cuda")
        distance = torch.zeros(self._count, dtype=torch.float64, device="cuda")
        for group in self._groups:
            bad, error2, reference2 = _compare_all(group)
            limit2 = group.bounds.rel_l2**2
            least2 = reference2.mean() * MIN_NORM_SHARE**2
            over = error2 > limit2 * torch.maximum(reference2, least2)
            wrong = (bad > 0) | (over & (group.counts >= MIN_SLICE_ELEMENTS))
            of_sets = self._count, len(error2) // self._count
            suspect |= wrong.view(of_sets).any(1)
            whole_error2 = error2.view(of_sets).sum(1)
            whole_reference2 = reference2.view(of_sets).sum(1)
            suspect |= ~(whole_error2 <= limit2 * whole_reference2)
            distance += whole_error2 / (limit2 * whole_reference2).clamp_min(TINY)
        furthest: list[int] = distance.nan_to_num().argsort(descending=True).tolist()
        return set(suspect.nonzero().flatten().tolist()), furthest


def compile_check_kernels(code: ProblemCode) -> None:
    """Compile the kernel for all outputs of a problem's benchmarks, before it is needed."""
    kinds = {
        (code.problem.dtype(argument, case), argument.role == "inout")
        for argument in code.written
        for case in code.problem.cases("benchmark", "cuda")
    }
    for dtype, is_state in kinds:
        one = tensor_like(TensorSpec(0, dtype, (1,), (1,)), "cuda")
        if _comparable(one, one):
            for some in (one, tensor_like(TensorSpec(0, dtype, (CHUNK,), (1,)), "cuda")):
                output = _Output(some, some, some if is_state else None)
                _compare_all(_group([output], Tolerance(atol=0, rtol=0, rel_l2=1)))


def _comparable(out: torch.Tensor, expected: torch.Tensor) -> bool:
    plain = out.is_contiguous() and expected.is_contiguous()
    return plain and out.dtype == expected.dtype and out.dtype in KERNEL_DTYPES


def _group(outputs: list[_Output], bounds: Tolerance) -> _Group:
    """Cut all outputs of one argument into chunks."""
    item_bytes = outputs[0].out.element_size()
    # Computed on the device, since there may be a million chunks.
    sizes = torch.tensor([one.out.numel() for one in outputs]).cuda()
    chunks = (sizes + CHUNK - 1) // CHUNK
    which = torch.repeat_interleave(chunks)
    first = torch.cumsum(chunks, 0) - chunks
    start = (torch.arange(len(which), device="cuda") - first[which]) * CHUNK

    def addresses(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
        bases = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        found: torch.Tensor = torch.tensor(bases).cuda()[which] + start * item_bytes
        return found

    tensors = [t for one in outputs for t in (one.out, one.expected, one.initial)]
    is_full = all(one.out.numel() % CHUNK == 0 for one in outputs)
    return _Group(
        dtype=outputs[0].out.dtype,
        bounds=bounds,
        out=addresses(one.out for one in outputs),
        expected=addresses(one.expected for one in outputs),
        initial=addresses(one.initial for one in outputs),
        counts=torch.clamp(sizes[which] - start, max=CHUNK).int(),
        has_initial=outputs[0].initial is not None,
        whole=is_full and all(t.data_ptr() % 16 == 0 for t in tensors if t is not None),
    )


def _compare_all(group: _Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per chunk: the number of wrong elements, and the sums of squares of error and of reference,
    both float64."""
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
