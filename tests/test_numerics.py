"""Sums run in the order they state, and values round to the format they name."""

from __future__ import annotations

import math

import pytest
import torch

from grader.numerics import (
    ROW_STATISTICS,
    SUM_ORDERS,
    matmul_in_steps,
    mean_of_squares,
    off_by,
    round_to,
    strided_partials,
    sum_blocked,
    sum_in,
    sum_pairwise,
    sum_sequential,
    sum_strided,
    truncated_to,
    two_pass,
    welford,
)


def terms(count: int, rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, count, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 1000])
def test_every_order_gives_the_sum(count: int) -> None:
    x = terms(count)
    exact = x.double().sum(-1)
    for total in (sum_sequential(x), sum_strided(x, 32), sum_blocked(x, 64), sum_pairwise(x)):
        assert total.shape == (3,)
        assert torch.allclose(total.double(), exact, atol=1e-4)


def test_a_sequential_sum_rounds_after_every_term() -> None:
    x = terms(300, rows=1)
    total = torch.zeros(())
    for value in x[0]:
        total = total + value
    assert float(sum_sequential(x)[0]) == float(total)


def test_lanes_take_every_so_many_terms() -> None:
    x = torch.arange(10.0)[None]
    assert strided_partials(x, 4).tolist() == [[0 + 4 + 8, 1 + 5 + 9, 2 + 6, 3 + 7]]


def test_sums_keep_the_dtype_of_their_terms() -> None:
    ones = torch.ones(1, 5000, dtype=torch.float16)
    assert sum_sequential(ones).dtype == torch.float16
    assert float(sum_sequential(ones)[0]) == 2048, "1 is lost beside 2048 in fp16"
    assert float(sum_pairwise(ones)[0]) == 5000


def test_a_matmul_in_steps() -> None:
    a, b = terms(50), terms(7, rows=50)
    assert torch.allclose(matmul_in_steps(a, b, 16), a @ b, atol=1e-5)


def test_tf32_keeps_10_bits_and_rounds_to_nearest_even() -> None:
    one = 1.0
    step = 2.0**-10
    x = torch.tensor([one + step, one + step / 2, one + 1.5 * step, one + 0.51 * step, -one - step])
    assert round_to(x, "tf32").tolist() == [
        one + step,
        one,
        one + 2 * step,
        one + step,
        -one - step,
    ]
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0])
    rounded = round_to(special, "tf32")
    assert torch.equal(rounded[[0, 1, 3]], special[[0, 1, 3]])
    assert bool(rounded[2].isnan())


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_other_formats_are_pytorch_s(name: str, dtype: torch.dtype) -> None:
    x = terms(100)
    assert torch.equal(round_to(x, name), x.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_truncation_never_grows_and_is_less_than_a_last_place_off(dtype: torch.dtype) -> None:
    x = terms(10_000)
    cut = truncated_to(x, dtype).double()
    assert bool((cut.abs() <= x.double().abs()).all())
    assert bool(((cut - x).abs() < x.double().abs() * torch.finfo(dtype).eps).all())
    assert not torch.equal(cut, x.to(dtype).double())


@pytest.mark.parametrize("name", SUM_ORDERS)
def test_a_named_order_sums_each_row(name: str) -> None:
    x = terms(1500)
    assert torch.allclose(SUM_ORDERS[name](x).double(), x.double().sum(-1), atol=1e-4)


@pytest.mark.parametrize("name", ROW_STATISTICS)
@pytest.mark.parametrize("count", [1, 2, 31, 33, 300, 1025])
def test_statistics_of_rows_survive_a_large_mean(name: str, count: int) -> None:
    x = terms(count) + 1000
    mean, variance = ROW_STATISTICS[name](x)
    assert torch.allclose(mean.double(), x.double().mean(-1), rtol=1e-5)
    exact = x.double().var(-1, correction=0)
    assert torch.allclose(variance.double(), exact, rtol=1e-3, atol=1e-6)


def test_the_mean_of_squares_does_not_survive_it() -> None:
    x = terms(300) + 3000
    exact = x.double().var(-1, correction=0)
    assert not torch.allclose(mean_of_squares(x)[1].double(), exact, rtol=0.1)
    assert torch.allclose(mean_of_squares(x - 3000)[1].double(), exact, rtol=1e-4)
    assert bool((mean_of_squares(torch.full((1, 300), 3000.1))[1] >= 0).all())


def test_welford_and_two_passes_agree_in_float64() -> None:
    x = terms(77).double()
    for lanes in (1, 8, 128):
        for one, other in zip(welford(x, lanes), two_pass(x), strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=0)


def test_an_intrinsic_s_error_alternates() -> None:
    ones = torch.ones(2, 4, dtype=torch.float64)
    assert off_by(ones, 0.25).tolist() == [[1.25, 0.75, 1.25, 0.75]] * 2


def test_a_narrow_sum_loses_what_a_wide_one_keeps() -> None:
    halves = torch.full((1, 32 * 3000), 0.5)
    assert float(sum_in(halves, torch.float16)[0]) == 32 * 1024
    assert sum_in(halves, torch.bfloat16).dtype == torch.float32
    assert float(sum_in(halves, torch.bfloat16)[0]) == 32 * 128
