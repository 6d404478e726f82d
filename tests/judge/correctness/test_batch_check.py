"""Eager PyTorch's outputs, and the batch check that compares a whole round with them.

The kernel runs in Triton's interpreter, with this file as a program.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.judge.correctness.batch_check import (
    CHUNK,
    BatchCheck,
    EagerOutputs,
    _allocated_bytes,
    _comparable,
)
from grader.judge.correctness.check import MIN_SLICE_ELEMENTS, check, combine_results, tolerance_of
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import bits, poison, poison_of
from grader.judge.problem_code import ProblemCode, Values, seed_for
from grader.problem import Problem
from grader.problem.spec import Argument, Tolerance
from tests.interpreted import run_interpreted
from tests.judge.conftest import SPEC, WriteProblem

ROOT = Path(__file__).resolve().parents[3]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ATOL, RTOL = 1e-2, 1e-2
SIZES = [CHUNK, CHUNK - 1, 1, MIN_SLICE_ELEMENTS, 513]
"""Elements of each chunk of a scenario: a full chunk, ragged ones, and a single element."""
WHOLE_SIZES = [CHUNK] * 3

# Scenarios: a corrupted chunk beside correct ones ------------------------------------------------

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Corruption:
    """How the first elements of the first chunk differ from the correct output."""

    expected: float
    out: float | None
    """None leaves the poison in place."""
    wrong: bool


CORRUPTIONS = {
    "nothing": Corruption(1.0, 1.0, False),
    "within_bounds": Corruption(1.0, 1.0 + ATOL, False),
    "beyond_bounds": Corruption(1.0, 1.0 + 3 * (ATOL + RTOL), True),
    "unwritten": Corruption(1.0, None, True),
    "unwritten_where_nan_is_due": Corruption(NAN, None, True),
    "nan_where_due": Corruption(NAN, NAN, False),
    "inf_where_due": Corruption(INF, INF, False),
    "minus_inf_where_due": Corruption(-INF, -INF, False),
    "nan": Corruption(1.0, NAN, True),
    "inf": Corruption(1.0, INF, True),
    "no_nan": Corruption(NAN, 1.0, True),
    "no_inf": Corruption(INF, 1.0, True),
    "wrong_sign_of_inf": Corruption(INF, -INF, True),
    "inf_for_nan": Corruption(NAN, INF, True),
    "nan_for_inf": Corruption(INF, NAN, True),
}
CORRUPTED = 3
"""Number of corrupted elements."""


@dataclass(frozen=True)
class Chunks:
    """The chunks that one launch compares."""

    out: list[torch.Tensor]
    expected: list[torch.Tensor]
    initial: list[torch.Tensor] | None


def chunks(dtype: str, has_initial: bool, whole: bool, name: str) -> Chunks:
    """The chunks of a scenario; the same in both processes."""
    generator = torch.Generator().manual_seed(7)

    def normal() -> list[torch.Tensor]:
        sizes = WHOLE_SIZES if whole else SIZES
        return [torch.randn(size, generator=generator).to(DTYPES[dtype]) for size in sizes]

    expected = normal()
    initial = normal() if has_initial else None
    out = [value + (1e-3 * value.float()).to(value.dtype) for value in expected]
    corruption = CORRUPTIONS[name]
    expected[0][:CORRUPTED] = corruption.expected
    if corruption.out is None:
        poison(out[0][:CORRUPTED])
    else:
        out[0][:CORRUPTED] = corruption.out
    if initial is not None:
        initial[0][:CORRUPTED] = 0.5
    return Chunks(out, expected, initial)


SCENARIOS = [
    (dtype, has_initial, whole, name)
    for dtype in DTYPES
    for has_initial in (False, True)
    for whole in (False, True)
    for name in CORRUPTIONS
]

Sums = tuple[list[int], list[float], list[float]]
"""Per chunk: wrong elements, and the sums of squares of error and reference."""


def run_kernel(given: Chunks, device: str = "cpu") -> Sums:
    """The kernel's result."""
    from grader.judge.correctness.compare_kernel import compare

    def at(tensors: list[torch.Tensor] | None) -> torch.Tensor:
        return torch.tensor([t.data_ptr() for t in tensors or given.out], device=device)

    count = len(given.out)
    bad = torch.full((count,), -1, dtype=torch.int32, device=device)
    error2 = torch.full((count,), -1.0, device=device)
    reference2 = error2.clone()
    counts = torch.tensor([t.numel() for t in given.out], dtype=torch.int32, device=device)
    compare(
        count,
        at(given.out),
        at(given.expected),
        at(given.initial),
        counts,
        bad,
        error2,
        reference2,
        ATOL,
        RTOL,
        poison_of(given.out[0]),
        given.out[0].dtype,
        given.initial is not None,
        all(t.numel() == CHUNK for t in given.out),
        CHUNK,
    )
    return bad.tolist(), error2.tolist(), reference2.tolist()


def by_torch(given: Chunks) -> Sums:
    """The same with PyTorch operations in float64."""
    sums: Sums = ([], [], [])
    for i, (out, expected) in enumerate(zip(given.out, given.expected, strict=True)):
        truth, got = expected.double(), out.double()
        finite = truth.isfinite()
        reference = truth if given.initial is None else truth - given.initial[i].double()
        error = (got - truth).abs()[finite]
        reference = reference.abs()[finite]
        alike = (got == truth) | (got.isnan() & truth.isnan())
        right = alike.clone()
        right[finite] = error <= ATOL + RTOL * reference
        right &= bits(out) != poison_of(out)
        sums[0].append(int((~right).sum()))
        sums[1].append(float(error.square().sum()))
        sums[2].append(float(reference.square().sum()))
    return sums


def expect_alike(kernel: Sums, given: Chunks) -> None:
    plain = by_torch(given)
    assert kernel[0] == plain[0]
    assert kernel[1] == pytest.approx(plain[1], rel=1e-4, abs=1e-12, nan_ok=True)
    assert kernel[2] == pytest.approx(plain[2], rel=1e-4, abs=1e-12, nan_ok=True)


@pytest.fixture(scope="module")
def interpreted() -> list[Sums]:
    """The kernel's result for every scenario, in Triton's interpreter."""
    found: list[Sums] = json.loads(run_interpreted("tests.judge.correctness.test_batch_check"))
    assert len(found) == len(SCENARIOS)
    return found


@pytest.mark.parametrize("index", range(len(SCENARIOS)), ids=map(str, SCENARIOS))
def test_the_kernel_agrees_with_plain_torch(interpreted: list[Sums], index: int) -> None:
    given = chunks(*SCENARIOS[index])
    corruption = CORRUPTIONS[SCENARIOS[index][-1]]
    bad = interpreted[index][0]
    assert bad == [CORRUPTED if corruption.wrong else 0] + [0] * (len(given.out) - 1)
    expect_alike(interpreted[index], given)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_initial", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_the_compiled_kernel_agrees_too(dtype: str, has_initial: bool, whole: bool) -> None:
    for name in CORRUPTIONS:
        host = chunks(dtype, has_initial, whole, name)
        initial = host.initial and [t.cuda() for t in host.initial]
        given = Chunks([t.cuda() for t in host.out], [t.cuda() for t in host.expected], initial)
        expect_alike(run_kernel(given, "cuda"), host)


@pytest.mark.parametrize(
    ("out", "expected", "can"),
    [
        (torch.zeros(4), torch.zeros(4), True),
        (torch.zeros(4).half(), torch.zeros(4).half(), True),
        (torch.zeros(4), torch.zeros(4).half(), False),
        (torch.zeros(4).double(), torch.zeros(4).double(), False),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), False),
        (torch.zeros(4, 4), torch.zeros(4, 4).t(), False),
        (torch.zeros(4, 4).t(), torch.zeros(4, 4), False),
    ],
)
def test_only_contiguous_tensors_of_one_dtype_are_comparable(
    out: torch.Tensor, expected: torch.Tensor, can: bool
) -> None:
    assert _comparable(out, expected) is can


@pytest.mark.parametrize(
    ("elements", "nbytes"), [(1, 0), (1 << 18, 0), ((1 << 18) + 1, (1 << 20) + 512)]
)
def test_only_large_answers_have_a_part_of_the_large_block(elements: int, nbytes: int) -> None:
    assert _allocated_bytes(torch.empty(elements)) == nbytes
    view = torch.empty(1 << 20)[:elements]  # its storage is that of another tensor
    assert _allocated_bytes(view) == nbytes


def test_without_a_gpu_there_is_no_batch_check(write_problem: WriteProblem) -> None:
    problem = write_problem()
    code, case = ProblemCode(problem, "cpu"), problem.cases("test", "cpu")[1]
    sets = ArgumentSets(problem, case, code.inputs(case, 1), 2, "cpu")
    try:
        eager = EagerOutputs(code, case, sets)
        assert (eager.values, eager.compute()) == ([], None)
        assert BatchCheck.build(eager, sets, bounds_in(problem, case)) is None
    finally:
        sets.close()


# Whole rounds on a GPU ----------------------------------------------------------------------------

ROUND = 4
ADAMW = ROOT / "problems" / "multi_tensor_adamw"
SOFTMAX = ROOT / "problems" / "softmax"


def bounds_in(problem: Problem, case: Any) -> Callable[[Argument], Tolerance]:
    return lambda argument: tolerance_of(problem, argument, case)


class Round:
    """Argument sets on the GPU, each with different inputs, and with correct outputs collected."""

    def __init__(self, problem: Problem, name: str) -> None:
        every = problem.cases("test", "cuda") + problem.cases("benchmark", "cuda")
        self.case = next(case for case in every if case.name == name)
        self.code = ProblemCode(problem, "cuda")
        template = self.code.inputs(self.case, 1)
        self.sets = ArgumentSets(problem, self.case, template, ROUND, "cuda")
        self.eager = EagerOutputs(self.code, self.case, self.sets)
        self.bounds = bounds_in(problem, self.case)
        for index in range(ROUND):
            self.sets.fill(index, self.code.inputs(self.case, seed_for(5, index)))
        self.us = self.eager.compute()
        self.sets.take_snapshot()
        for index in range(ROUND):
            self.write(index, self.code.run_eager(self.case, self.sets.inputs(index)))
        batch_check = BatchCheck.build(self.eager, self.sets, self.bounds)
        assert batch_check is not None
        self.batch_check = batch_check

    def write(self, index: int, outputs: Values) -> None:
        """Write outputs into the judge's copy."""
        for name, value in outputs.items():
            for target, tensor in zip(
                tensors(self.sets.outputs(index)[name]), tensors(value), strict=True
            ):
                target.copy_(tensor)

    def by_check(self, index: int) -> str | None:
        """The failure that `check` finds in a set, with the same bounds and reference."""
        inputs, outputs = self.sets.inputs(index), self.sets.outputs(index)
        eager = self.code.run_eager(self.case, inputs)
        return combine_results(
            [
                check(
                    argument.name,
                    outputs[argument.name],
                    eager[argument.name],
                    None,
                    self.bounds(argument),
                    inputs[argument.name] if argument.role == "inout" else None,
                )
                for argument in self.code.written
            ]
        ).failure


def tensors(value: Any) -> list[torch.Tensor]:
    return value if isinstance(value, list) else [value]


@pytest.fixture(
    params=[(SOFTMAX, "small"), (ADAMW, "many_steps"), (ADAMW, "thousands"), (None, "small")],
    ids=["softmax", "adamw_mixed", "adamw_thousands", "two_types"],
)
def whole(request: pytest.FixtureRequest, write_problem: WriteProblem) -> Any:
    folder, name = request.param
    # The tiny problem in fp16 has outputs of two dtypes, one of them state.
    mixed = SPEC.replace("{n: 4096, dtype: fp32}", "{n: 100003, dtype: fp16}")
    made = Round(Problem.load(folder) if folder else write_problem(spec=mixed), name)
    yield made
    made.sets.close()


@pytest.mark.cuda
def test_the_graph_computes_the_outputs_of_eager_pytorch(whole: Round) -> None:
    assert whole.us is not None
    assert whole.us > 0
    for index in range(ROUND):
        plain = whole.code.run_eager(whole.case, whole.sets.inputs(index))
        for name, value in plain.items():
            for captured, tensor in zip(
                tensors(whole.eager.values[index][name]), tensors(value), strict=True
            ):
                assert torch.equal(captured, tensor)


@pytest.mark.cuda
def test_the_graph_computes_again_from_fresh_inputs(whole: Round) -> None:
    name = whole.code.written[0].name
    before = [tensor.clone() for tensor in tensors(whole.eager.values[1][name])]
    whole.sets.fill(1, whole.code.inputs(whole.case, seed_for(6, 1)))
    whole.eager.compute()
    plain = whole.code.run_eager(whole.case, whole.sets.inputs(1))
    after = tensors(whole.eager.values[1][name])
    assert not all(map(torch.equal, after, before))
    assert all(map(torch.equal, after, tensors(plain[name])))


@pytest.mark.cuda
def test_a_correct_round_has_no_suspect_set(whole: Round) -> None:
    assert whole.batch_check.suspect_sets()[0] == set()
    assert [whole.by_check(index) for index in range(ROUND)] == [None] * ROUND


def zero(target: torch.Tensor) -> None:
    target.zero_()


def unwritten(target: torch.Tensor) -> None:
    poison(target[-1:])


def one_nan(target: torch.Tensor) -> None:
    target[target.numel() // 2] = NAN


def scaled(target: torch.Tensor) -> None:
    target.mul_(1.5)


def far_off(target: torch.Tensor) -> None:
    target[0] += 10


CORRUPTORS = [zero, unwritten, one_nan, scaled, far_off]


@pytest.mark.cuda
@pytest.mark.parametrize("corruptor", CORRUPTORS, ids=lambda corruptor: corruptor.__name__)
def test_exactly_the_corrupted_set_is_suspect(
    whole: Round, corruptor: Callable[[torch.Tensor], None]
) -> None:
    for argument in whole.code.written:
        for which in (0, -1):
            index = 2 if which else 1
            targets = tensors(whole.sets.outputs(index)[argument.name])
            target = max(targets, key=torch.Tensor.numel) if which else targets[0]
            kept = target.clone()
            corruptor(target.view(-1))
            suspects, furthest = whole.batch_check.suspect_sets()
            assert suspects == {index}, (argument.name, which)
            assert furthest[0] == index or corruptor in (unwritten, one_nan)  # NaN is no distance
            assert whole.by_check(index) is not None
            target.copy_(kept)
    assert whole.batch_check.suspect_sets()[0] == set()


@pytest.mark.cuda
def test_sets_beyond_the_elementwise_bound_are_suspect(whole: Round) -> None:
    """Errors of random size over random parts. Only the elementwise bound is compared: the batch
    check has chunks instead of slices, and sums over a set's outputs of one argument."""
    generator = torch.Generator().manual_seed(3)
    seen = {True: 0, False: 0}
    for step in range(60):
        argument = whole.code.written[step % len(whole.code.written)]
        targets = tensors(whole.sets.outputs(0)[argument.name])
        target = targets[int(torch.randint(len(targets), (), generator=generator))].view(-1)
        kept = target.clone()
        # From one element to all of them, with relative errors from 1e-7 to 1.
        share = 10 ** -float(4 * torch.rand((), generator=generator))
        size = 10 ** -float(7 * torch.rand((), generator=generator))
        part = target[: max(1, int(share * target.numel()))]
        part.add_(part * size)
        refused = "are off by more than" in (whole.by_check(0) or "")
        seen[refused] += 1
        if refused:
            assert whole.batch_check.suspect_sets()[0] == {0}, (argument.name, share, size)
        target.copy_(kept)
    assert min(seen.values()) >= 5, seen


if __name__ == "__main__":
    print(json.dumps([run_kernel(chunks(*scenario)) for scenario in SCENARIOS]))
