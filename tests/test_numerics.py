"""Sums run in the order they state, and values round to the format they name."""

from __future__ import annotations

import math

import pytest
import torch

from grader.numerics import (
    MATMUL_ORDERS,
    matmul_in_steps,
    matmul_narrow,
    pack_int4,
    round_to,
    strided_partials,
    sum_blocked,
    sum_pairwise,
    sum_sequential,
    sum_strided,
    truncated_to,
    unpack_int4,
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


@pytest.mark.parametrize("name", MATMUL_ORDERS)
@pytest.mark.parametrize("depth", [1, 7, 8, 50, 130])
def test_every_order_gives_the_product(name: str, depth: int) -> None:
    a, b = terms(depth), terms(5, rows=depth)
    product = MATMUL_ORDERS[name](a, b)
    assert product.dtype == torch.float32
    assert torch.allclose(product.double(), a.double() @ b.double(), atol=1e-4)


def test_split_k_adds_whole_parts() -> None:
    # 1 is lost beside 2**24 in fp32, and 1 + 1 is not.
    a, b = torch.ones(1, 16), torch.ones(16, 1)
    b[0] = 2.0**24
    assert float(MATMUL_ORDERS["one thread an output"](a, b)) == 2**24
    assert float(MATMUL_ORDERS["split-K, 8 parts"](a, b)) == 2**24 + 14


def test_a_narrow_product_rounds_after_every_step() -> None:
    a, b = torch.ones(1, 64), torch.full((64, 1), 200.0)
    b[0] = 200.25
    assert float(matmul_narrow(a, b, torch.float16, step=64)) == 12800
    assert float(matmul_narrow(a, b, torch.float16, step=1)) == 12800
    assert float(matmul_narrow(a, b * 8, torch.float16)) == math.inf
    exact = matmul_narrow(a, b, torch.float32)
    assert (exact.dtype, float(exact)) == (torch.float32, 12800.25)


def test_int4_codes_keep_their_columns() -> None:
    codes = torch.arange(16, dtype=torch.uint8).reshape(2, 8)
    packed = pack_int4(codes)
    assert packed.tolist() == [[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]]
    assert torch.equal(unpack_int4(packed), codes)
