"""The bound holds for sums in any order, and is small enough to catch coarser formats."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch

from grader.judge.correctness.check import check
from grader.judge.correctness.error_bound import (
    DETERMINISTIC_TERMS,
    UNIT_ROUNDOFF,
    ErrorBound,
    error_bound,
    error_bounds,
    sum_constant,
)
from grader.judge.problem_code import ProblemCode
from grader.numerics import sum_blocked, sum_pairwise, sum_sequential, sum_strided
from grader.problem import Problem
from grader.problem.spec import Tolerance
from grader.problem.validation import Accumulation

PROBLEMS = Path(__file__).resolve().parents[3] / "problems"
UNIT = UNIT_ROUNDOFF["fp32"]
OPEN = Tolerance(atol=1, rtol=1, rel_l2=1)
"""Bounds under which only the error budget can fail."""


def test_a_sum_of_few_terms_may_use_the_deterministic_constant() -> None:
    assert sum_constant(100, UNIT) == pytest.approx(100 * UNIT, rel=1e-4)
    assert sum_constant(DETERMINISTIC_TERMS, UNIT) == pytest.approx(1024 * UNIT, rel=1e-3)


def test_a_sum_of_many_terms_gets_the_probabilistic_one() -> None:
    assert sum_constant(5000, UNIT) == sum_constant(DETERMINISTIC_TERMS, UNIT)
    assert sum_constant(2**20, UNIT) == pytest.approx(4 * 1024 * UNIT, rel=1e-2)
    assert sum_constant(2**40, UNIT_ROUNDOFF["bf16"]) == 1, "as large as all terms together"


def test_the_constant_grows_with_the_number_of_terms() -> None:
    for unit in UNIT_ROUNDOFF.values():
        constants = [sum_constant(2**power, unit) for power in range(50)]
        assert constants == sorted(constants)


@pytest.mark.parametrize(
    ("kind", "count"),
    # Of equal terms all rounding errors may have one sign, beyond the probabilistic bound.
    [*product(["positive", "any sign"], [2, 63, 1000, 5_000]), ("equal", 63), ("equal", 1000)],
)
def test_every_order_of_a_sum_is_within_the_bound(kind: str, count: int) -> None:
    for seed in range(8):
        terms = torch.rand(3, count, generator=torch.Generator().manual_seed(seed))
        if kind == "any sign":
            terms -= 0.5
        elif kind == "equal":
            terms = terms[:, :1].expand(3, count).contiguous()
        exact, size = terms.double().sum(-1), terms.double().abs().sum(-1)
        allowed = sum_constant(count, UNIT) * size
        orders = [sum_sequential(terms), sum_sequential(terms.flip(-1)), sum_pairwise(terms)]
        orders += [sum_strided(terms, 32), sum_blocked(terms, 128)]
        for total in orders:
            assert bool(((total - exact).abs() <= allowed).all())


def test_sums_in_a_coarser_format_exceed_the_bound() -> None:
    terms = torch.rand(64, 1000, generator=torch.Generator().manual_seed(1))
    exact = terms.double().sum(-1)
    for dtype in (torch.float16, torch.bfloat16):
        error = (sum_strided(terms.to(dtype), 32).double() - exact).abs() / exact
        assert float(error.max()) > sum_constant(1000, UNIT)


def test_what_is_allowed_adds_a_unit_in_the_last_place_and_the_least_number() -> None:
    bound = ErrorBound(0.5, torch.tensor([2.0, 0.0, 0.0]).double(), 0.0, "")
    expected = torch.tensor([0.0, 4.0, 0.0])
    info = torch.finfo(torch.float32)
    assert bound.allowed(expected, expected.dtype).tolist() == [
        1 + info.tiny,
        4 * info.eps + info.tiny,
        info.tiny,
    ]


def test_each_call_may_add_an_error() -> None:
    how = Accumulation("fp32", 2, 6, None)
    assert error_bound(how, None, 3).relative == pytest.approx(3 * 8 * UNIT)


def test_operands_add_their_own_rounding() -> None:
    with_half = error_bound(Accumulation("fp32", 16, 0, "fp16"), None)
    assert with_half.relative == pytest.approx(16 * UNIT + 2**-11)
    assert with_half.shared == pytest.approx(with_half.relative), "equal factors err alike"
    assert with_half.words == "rounding in fp32 over 16 terms, in any order, of factors in fp16"


def test_a_sequential_sum_passes_where_four_times_pytorch_s_error_does_not() -> None:
    """Softmax of one thread a row, at the width where it was refused once."""
    x = torch.randn(5, 1025, generator=torch.Generator().manual_seed(3))
    weights = torch.exp(x - x.amax(-1, keepdim=True))
    # A sum as far off as some sequential sums are.
    out = weights / (weights.sum(-1, keepdim=True) * (1 + 2e-6))
    truth, eager = torch.softmax(x.double(), -1), torch.softmax(x, -1)
    strict = check("out", out, truth, eager, OPEN)
    assert strict.failure is not None
    assert "4 times eager PyTorch's error at float32" in strict.failure
    bound = error_bound(Accumulation("fp32", 1025, 16, None), truth)
    fair = check("out", out, truth, eager, OPEN, bound=bound)
    assert fair.failure is None
    assert fair.budget_used is not None
    assert fair.budget_used < 1


def test_pytorch_s_error_remains_the_floor_of_the_budget() -> None:
    truth = torch.linspace(1, 2, 4096).double()
    eager = (truth * (1 + 1e-4)).float()
    out = (truth * (1 + 3e-4)).float()
    bound = error_bound(Accumulation("fp32", 1, 1, None), truth)
    assert check("out", out, truth, eager, OPEN, bound=bound).failure is None
    failure = check("out", out, truth, None, OPEN, bound=bound).failure
    assert failure is not None
    assert "error budget (rounding in fp32)" in failure


def test_the_bound_of_a_list_is_that_of_its_tensors() -> None:
    truth = [torch.ones(3).double(), torch.full((2,), 100.0).double()]
    out = [t.float() for t in truth]
    bound = error_bound(Accumulation("fp32", 100, 0, None), truth)
    out[1][1] += 5e-4  # 5e-6 of it, within 100 roundings
    assert check("out", out, truth, None, OPEN, bound=bound).failure is None
    out[0][1] += 5e-4
    result = check("out", out, truth, None, OPEN, bound=bound)
    assert result.mismatch is not None
    assert (result.mismatch.argument, result.mismatch.index) == ("out[0]", [1])


@pytest.mark.parametrize(
    "name", ["softmax", "int4_matmul", "multi_tensor_adamw", "flash_attention"]
)
def test_magnitudes_are_at_least_the_reference(name: str) -> None:
    """A sum is at most the sum of its terms' absolute values."""
    code = ProblemCode(Problem.load(PROBLEMS / name), "cpu")
    case = code.problem.cases("test", "cpu")[3]
    inputs = code.inputs(case, 1)
    truth = code.run_reference(case, inputs)
    bounds = error_bounds(code, case, inputs, truth)
    assert bounds.keys() == truth.keys()
    for output, bound in bounds.items():
        assert 0 < bound.shared <= bound.relative < math.inf
        values, sizes = truth[output], bound.magnitude
        pairs = zip(values, sizes, strict=True) if isinstance(values, list) else [(values, sizes)]
        for value, size in pairs:
            assert size.dtype == torch.float64
            assert bool((size.abs() >= value.abs() * (1 - 1e-9)).all())


def test_a_problem_that_does_not_say_has_no_bounds() -> None:
    code = ProblemCode(Problem.load(PROBLEMS / "softmax"), "cpu")
    silent = code.problem.spec.model_copy(update={"accumulate": None})
    object.__setattr__(code.problem, "spec", silent)
    case = code.problem.cases("test", "cpu")[0]
    inputs = code.inputs(case, 1)
    assert error_bounds(code, case, inputs, code.run_reference(case, inputs)) == {}
