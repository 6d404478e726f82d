"""Sums run in the order they state, and values round to the format they name."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from grader.numerics import (
    DIRECTION_ELEMENTS,
    FAST_EXP_ERROR,
    FAST_TANH_ERROR,
    MATMUL_ORDERS,
    ROW_STATISTICS,
    SUM_ORDERS,
    alternately_off,
    coarsely_in,
    computed_in,
    elementwise_honest,
    elementwise_mutants,
    fast_exp,
    fast_tanh,
    matmul_in_steps,
    matmul_narrow,
    mean_of_squares,
    of_rounded_inputs,
    pack_int4,
    round_to,
    rounded_toward_zero,
    scan_blocked,
    scan_doubling,
    scan_sequential,
    shifted_by_one,
    strided_partials,
    sum_blocked,
    sum_in,
    sum_pairwise,
    sum_sequential,
    sum_strided,
    truncated_to,
    two_pass,
    unpack_int4,
    welford,
    without_tail,
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


@pytest.mark.parametrize("count", [1, 2, 31, 64, 65, 1000])
def test_every_order_gives_the_prefix_sums(count: int) -> None:
    x = terms(count)
    exact = x.double().cumsum(-1)
    for sums in (scan_sequential(x), scan_blocked(x, 64), scan_doubling(x)):
        assert sums.shape == x.shape
        assert sums.dtype == x.dtype
        assert torch.allclose(sums.double(), exact, atol=1e-4)


def test_a_sequential_scan_rounds_after_every_term() -> None:
    x = terms(300, rows=1)
    assert float(scan_sequential(x)[0, -1]) == float(sum_sequential(x)[0])
    assert scan_sequential(x.double()).dtype == torch.float64


def test_infinities_of_both_signs_give_nan_and_no_warning() -> None:
    x = torch.tensor([[1.0, math.inf, 1.0, -math.inf], [1e38, 3e38, 3e38, -math.inf]])
    assert sum_sequential(x).isnan().all()
    for sums in (scan_sequential(x), scan_blocked(x, 2), scan_doubling(x)):
        assert sums[0, :3].tolist() == [1.0, math.inf, math.inf]
        assert bool(sums[:, 3].isnan().all())


def test_a_blocked_scan_adds_whole_blocks() -> None:
    # 1 is lost beside 2**24 in fp32, and 1 + 1 is not.
    x = torch.tensor([[2.0**24, 1.0, 1.0, 1.0]])
    assert scan_sequential(x).tolist() == [[2.0**24] * 4]
    assert scan_blocked(x, 2).tolist() == [[2.0**24, 2.0**24, 2.0**24, 2.0**24 + 2]]


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


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor / 3


def test_a_function_computes_in_another_precision_and_rounds_once() -> None:
    x = terms(100)
    exact = (x.double() * 0.7 / 3).float()
    assert torch.equal(computed_in(scaled, torch.float64)(x=x, factor=0.7), exact)
    assert not torch.equal(scaled(x, 0.7), exact), "in fp32 it rounds twice"
    half = computed_in(scaled, torch.float32)(x=x.half(), factor=0.7)
    assert torch.equal(half, scaled(x.half().float(), 0.7).half())
    assert computed_in(scaled, torch.float16, out=torch.float64)(x=x, factor=1.0).dtype == (
        torch.float64
    )


@pytest.mark.parametrize(
    ("dtype", "applies"),
    [(torch.float32, True), (torch.float16, False), (torch.bfloat16, False)],
)
def test_coarse_arithmetic_means_nothing_for_coarse_tensors(
    dtype: torch.dtype, applies: bool
) -> None:
    x = terms(100).to(dtype)
    found = coarsely_in(scaled, torch.float16)(x=x, factor=0.7)
    assert (found is not None) == applies
    if found is not None:
        assert found.dtype == dtype
        assert torch.equal(found, scaled(x.half(), 0.7).float())
    for name in ("tf32", "fp16"):
        rounded = of_rounded_inputs(scaled, name)(x=x, factor=0.7)
        assert (rounded is not None) == applies
        if rounded is not None:
            assert torch.equal(rounded, scaled(round_to(x, name), 0.7))


def test_bf16_is_coarser_than_fp16() -> None:
    x = terms(100).half()
    assert coarsely_in(scaled, torch.bfloat16)(x=x, factor=0.7) is not None
    assert coarsely_in(scaled, torch.float16)(x=x.bfloat16(), factor=0.7) is None


def test_results_rounded_toward_zero_are_many_and_of_16_bits() -> None:
    x = terms(DIRECTION_ELEMENTS, rows=1)
    cut = rounded_toward_zero(scaled)(x=x.half(), factor=0.7)
    assert cut is not None
    assert torch.equal(cut, truncated_to(scaled(x.half().float(), 0.7), torch.float16))
    for few in (x, x.half()[:, 1:], x.bfloat16()):
        assert rounded_toward_zero(scaled)(x=few, factor=0.7) is None


def test_the_hardware_s_functions_are_off_by_what_their_manual_allows() -> None:
    x = terms(1000) * 5
    # Scaling by log2(e) is one more rounding, of up to |x| log2(e) units.
    error = (fast_exp(x).double() / x.double().exp() - 1).abs()
    assert FAST_EXP_ERROR / 2 < float(error.max()) < 20 * FAST_EXP_ERROR
    assert float(fast_exp(torch.tensor([-100.0]))) == 0
    error = (fast_tanh(x).double() / x.double().tanh() - 1).abs()
    assert FAST_TANH_ERROR / 2 < float(error.max()) < 1.001 * FAST_TANH_ERROR
    assert float(fast_tanh(x).abs().max()) <= 1


def test_errors_alternate() -> None:
    assert alternately_off(torch.ones(2, 3), 0.25).tolist() == [[1.25, 0.75, 1.25]] * 2


@pytest.mark.parametrize(("count", "kept"), [(10, 8), (3, 0), (4, None), (8, None)])
def test_a_grid_of_whole_blocks_leaves_the_tail_out(count: int, kept: int | None) -> None:
    x = torch.ones(count)
    found = without_tail(scaled, 4)(x=x, factor=3.0)
    if kept is None:
        assert found is None
    else:
        assert found is not None
        assert found.tolist() == [1.0] * kept + [0.0] * (count - kept)
    assert x.tolist() == [1.0] * count


@pytest.mark.parametrize(("last", "is_left_out"), [(1e-7, False), (1e-5, True)])
def test_a_tail_that_no_check_could_tell_from_0_proves_nothing(
    last: float, is_left_out: bool
) -> None:
    found = without_tail(scaled, 4)(x=torch.tensor([1.0, 1, 1, 1, last]), factor=3.0)
    assert (found is not None) == is_left_out


def test_a_shift_by_one_repeats_the_first_element() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert shifted_by_one(scaled)(x=x, factor=3.0).tolist() == [[0, 0, 1], [2, 3, 4]]
    assert shifted_by_one(scaled)(x=x[:1, :1], factor=3.0).tolist() == [[0]]


def test_elementwise_variants_take_the_function_s_own_parameters() -> None:
    """The judge passes the case's parameters that a signature names."""
    variants = elementwise_honest(scaled) | elementwise_mutants(scaled)
    for variant in variants.values():
        assert list(inspect.signature(variant).parameters) == ["x", "factor"]


def test_elementwise_honest_are_near_and_mutants_are_not() -> None:
    x = terms(1500, rows=3)
    exact = scaled(x.double(), 0.7)
    for variant in elementwise_honest(scaled).values():
        assert torch.allclose(variant(x=x, factor=0.7).double(), exact, rtol=3e-7, atol=0)
    for name, mutant in elementwise_mutants(scaled).items():
        found = mutant(x=x, factor=0.7)
        assert (found is None) == (name == "rounded toward zero")
        if found is not None:
            assert not torch.allclose(found.double(), exact, rtol=1e-5, atol=0), name


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
    assert alternately_off(ones, 0.25).tolist() == [[1.25, 0.75, 1.25, 0.75]] * 2


def test_a_narrow_sum_loses_what_a_wide_one_keeps() -> None:
    halves = torch.full((1, 32 * 3000), 0.5)
    assert float(sum_in(halves, torch.float16)[0]) == 32 * 1024
    assert sum_in(halves, torch.bfloat16).dtype == torch.float32
    assert float(sum_in(halves, torch.bfloat16)[0]) == 32 * 128


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
