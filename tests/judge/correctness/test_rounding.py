"""Rounding to nearest has no direction; truncation, and rounding up or down, have one."""

from __future__ import annotations

import pytest
import torch

from grader.judge.correctness.check import check
from grader.judge.correctness.error_bound import error_bound
from grader.judge.correctness.rounding import _biases, bias_used, rounding_bias
from grader.numerics import truncated_to
from grader.problem.spec import Tolerance
from grader.problem.validation import Accumulation

OPEN = Tolerance(atol=1, rtol=1, rel_l2=1)
SHORT = Accumulation("fp32", 64, 16, None)


def values(count: int = 5000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(7))


def used(out: torch.Tensor, exact: torch.Tensor, how: Accumulation = SHORT) -> float:
    found = rounding_bias(out, exact.double(), error_bound(how, exact.double().abs()))
    return bias_used({name: float(value) for name, value in found.items()})


def test_rounding_to_nearest_has_no_direction() -> None:
    for seed in range(50):
        exact = torch.randn(600, generator=torch.Generator().manual_seed(seed))
        assert used(exact.half(), exact) < 0.3


@pytest.mark.parametrize(
    ("direction", "words"),
    [(0.0, "toward zero"), (torch.inf, "up"), (-torch.inf, "down")],
)
def test_one_direction_is_found_and_named(direction: float, words: str) -> None:
    exact = values()
    nearest = exact.half()
    goal = torch.full_like(nearest, direction)
    over = {
        0.0: nearest.abs() > exact.abs(),
        torch.inf: nearest < exact,
        -torch.inf: nearest > exact,
    }
    out = torch.where(over[direction], torch.nextafter(nearest, goal), nearest)
    assert used(out, exact) > 1.3
    failure = check(
        "out", out, exact.double(), None, OPEN, bound=error_bound(SHORT, exact.double().abs())
    ).failure
    assert failure is not None
    assert f"'out' is rounded {words} (by 0.5" in failure


def test_values_rounded_away_from_zero_are_found() -> None:
    exact = values()
    nearest = exact.half()
    further = torch.nextafter(nearest, torch.copysign(torch.tensor(torch.inf), exact).half())
    assert used(torch.where(nearest.abs() < exact.abs(), further, nearest), exact) > 1.3


def test_numbers_flushed_to_zero_have_no_direction() -> None:
    """Fast exponentials flush what is below the normal numbers, as bf16 and fp32 have them."""
    exact = torch.exp2(torch.linspace(-132, 0, 5000, dtype=torch.float64)) / 3
    flushed = torch.where(exact < torch.finfo(torch.bfloat16).tiny, 0.0, exact)
    bound = error_bound(SHORT, exact)
    for truncates in (False, True):
        out = truncated_to(flushed.float(), torch.bfloat16) if truncates else flushed.bfloat16()
        found = {name: float(value) for name, value in _biases(out, exact, bound).items()}
        assert (bias_used(found) > 1) == truncates


def test_few_different_values_say_nothing() -> None:
    exact = values(100).repeat(50)
    assert used(truncated_to(exact, torch.float16), exact) == 0


def test_equal_values_count_once() -> None:
    """Half of a softmax's rows may hold 1/n throughout, all rounded the same way."""
    exact = torch.cat([values(600), torch.full((5000,), 1 / 470)])
    assert used(exact.half(), exact) < 0.3


def test_a_shared_error_as_large_as_a_last_place_is_no_direction() -> None:
    """All results of a long sum may be off by the same part."""
    exact = values()
    out = (exact * (1 - 4e-4)).half()
    assert used(out, exact, Accumulation("fp32", 10**6, 16, None)) == 0
    assert used(out, exact) > 1


def test_factors_in_16_bits_may_all_err_one_way() -> None:
    """Attention over equal keys may round every weight 1/n down."""
    exact = values()
    out = (exact * (1 - 2**-12)).half()
    assert used(out, exact) > 1
    assert used(out, exact, Accumulation("fp32", 64, 16, "fp16")) == 0


def test_fp32_results_of_fp32_arithmetic_are_left_out() -> None:
    exact = values().double()
    assert rounding_bias(exact.float(), exact, error_bound(SHORT, exact.abs())) == {}


def test_bfloat16_on_a_cpu_is_left_out() -> None:
    """Triton's interpreter truncates to it."""
    exact = values()
    assert used(truncated_to(exact, torch.bfloat16), exact) == 0


@pytest.mark.cuda
def test_bfloat16_on_a_gpu_is_checked() -> None:
    exact = values().cuda()
    assert used(truncated_to(exact, torch.bfloat16), exact) > 1.3
    assert used(exact.bfloat16(), exact) < 0.3


def test_small_numbers_have_the_last_place_of_subnormal_ones() -> None:
    exact = values() * 1e-6
    assert used(exact.half(), exact) < 0.3
    assert used(truncated_to(exact, torch.float16), exact) > 1.3
