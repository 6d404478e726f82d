"""Every part of the check accepts honest rounding and finds errors that `allclose` accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grader.judge.correctness.check import (
    CheckResult,
    check,
    count_unwritten,
    errors_beyond_mixed_inputs,
)
from grader.judge.correctness.error_bound import error_bound
from grader.judge.memory.shared_block import poison
from grader.problem.spec import Tolerance
from grader.problem.validation import Accumulation

LOOSE = Tolerance(atol=1e-2, rtol=1e-2, rel_l2=1e-2, budget=4)
"""Common loose bounds, under which the other parts of the check must find errors."""


def softmax_case(
    rows: int = 64, columns: int = 4096, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = (0.7 * torch.randn(rows, columns, generator=generator)).to(dtype)
    return torch.softmax(x.double(), -1), torch.softmax(x, -1)


def checked(out: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor | None) -> CheckResult:
    return check("out", out, truth, eager, LOOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_rounded_reference_passes(dtype: torch.dtype) -> None:
    truth, eager = softmax_case(dtype=dtype)
    assert checked(truth.to(dtype), truth, eager).failure is None
    assert checked(eager, truth, eager).failure is None


def test_a_bool_that_was_never_written_is_not_true() -> None:
    truth = torch.ones(4096, dtype=torch.bool)
    out = torch.full((4096,), 0xA5, dtype=torch.uint8).view(torch.bool)
    exact = Tolerance(atol=0, rtol=0, rel_l2=1)
    assert check("out", truth.clone(), truth, None, exact).failure is None
    assert check("out", out, truth, None, exact).failure == "'out' was never written"
    assert count_unwritten(out) == 4096
    out[5:] = False
    failure = check("out", out, truth, None, exact).failure
    assert failure == "5 of 4096 elements of 'out' were never written"


@pytest.mark.parametrize("unused", [math.nan, math.inf])
def test_a_state_of_nan_before_the_call_leaves_the_bounds_on(unused: float) -> None:
    """As of a cache whose free places hold anything."""
    truth = torch.randn(64, 64, dtype=torch.float64)
    before = torch.zeros(64, 64)
    before[0, 0] = unused
    loose = Tolerance(atol=1e-3, rtol=1e-3, rel_l2=1e-3)
    out = truth.float()
    assert check("out", out, truth, None, loose, before).failure is None
    wrong = out.clone()
    wrong[0, 0] = 1e6
    assert check("out", wrong, truth, None, loose, before).failure is not None
    slightly = out.clone()
    slightly[7] *= 1.005
    lenient = Tolerance(atol=1, rtol=1, rel_l2=1e-3)
    assert check("out", slightly, truth, None, lenient, before).failure is not None
    assert errors_beyond_mixed_inputs(wrong, out, out, loose, before) == 1


def test_zeros_pass_allclose_and_fail_here() -> None:
    truth, eager = softmax_case()
    zeros = torch.zeros_like(eager)
    assert torch.allclose(zeros.double(), truth, atol=1e-2)
    assert checked(zeros, truth, eager).failure is not None


def test_a_constant_passes_allclose_and_fails_here() -> None:
    truth, eager = softmax_case()
    constant = torch.full_like(eager, 1 / truth.shape[1])
    assert torch.allclose(constant.double(), truth, atol=1e-2)
    assert checked(constant, truth, eager).failure is not None


def test_one_dropped_column_is_found_by_its_slice() -> None:
    truth, eager = softmax_case(columns=32_768)
    out = eager.clone()
    out[:, 77] = 0
    result = checked(out, truth, None)
    assert result.failure is not None
    assert "column 77" in result.failure


def test_one_dropped_row_is_found_by_its_slice() -> None:
    truth, eager = softmax_case(rows=40_000, columns=64)
    out = eager.clone()
    out[39_999] = out[39_998]
    result = check("out", out, truth, None, Tolerance(atol=1, rtol=1, rel_l2=1e-2))
    assert result.failure is not None
    assert "row 39999" in result.failure


def test_a_wrong_tile_is_found_in_long_rows_and_columns() -> None:
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(2048, 2048, generator=generator).double()
    out = truth.float()
    out[64:128, 128:192] *= 1.05
    bounds = Tolerance(atol=1, rtol=1, rel_l2=3e-2)
    result = check("out", out, truth, None, bounds)
    assert result.failure is not None
    assert "tile" in result.failure


@pytest.mark.parametrize("shape", [(4099,), (65, 65), (129, 64), (3, 4100)])
def test_a_slice_of_few_elements_is_left_out(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(shape, generator=generator).double()
    out = truth.float()
    bounds = Tolerance(atol=1e-2, rtol=1e-2, rel_l2=1e-3)
    truth.reshape(-1)[-1] = 0.1  # one element in the corner, well within the elementwise bound
    out.reshape(-1)[-1] = 0.102
    assert check("out", out, truth, None, bounds).failure is None


def test_without_large_enough_slices_there_is_no_worst_slice() -> None:
    """The error is unknown then, and not 0."""
    truth = torch.rand(1, 3, dtype=torch.float64)
    found = checked((truth * 2).float(), truth, None)
    assert found.failure is not None
    assert found.worst_slice_rel_l2 is None


def test_half_precision_exceeds_the_error_budget_of_float32() -> None:
    truth, eager = softmax_case()
    out = truth.half().float()
    result = checked(out, truth, eager)
    assert result.failure is not None
    assert "budget" in result.failure
    largest = (out - truth).abs().argmax()
    wanted = f"{float(truth.reshape(-1)[largest]):.9g}"
    assert f"; the worst is {float(out.reshape(-1)[largest]):.9g} instead of {wanted}" in (
        result.failure
    )


def test_the_worst_element_is_one_that_is_wrong() -> None:
    """A larger error of a larger element may be allowed."""
    truth = torch.tensor([[1.0, 1e-5, 2e-5]], dtype=torch.float64)
    out = torch.tensor([[1.001, 0.0, 0.0]])
    result = check("out", out, truth, None, Tolerance(atol=0, rtol=1e-2, rel_l2=1))
    assert result.failure is not None
    assert result.failure.startswith("2 of 3 elements")
    assert "; the worst is 0 instead of 2e-05; they are all 0: was it computed?" in result.failure


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0, "None"),
        (0.0, r"relative L2 error of 'out' is 1\.00e\+00, above 1e-02"),
        (1000.0, r"'out' is off by up to \d+ times the tolerance 0\.01 \+ 0\.01·\|expected\|"),
    ],
)
def test_an_error_is_the_same_without_its_explanation(factor: float, words: str) -> None:
    truth, eager = softmax_case()
    out = eager * factor
    full = checked(out, truth, eager)
    short = check("out", out, truth, eager, LOOSE, explained=False)
    assert (full.failure is None) == (short.failure is None)
    assert re.fullmatch(words, str(short.failure))
    assert full == replace(short, failure=full.failure, mismatch=full.mismatch)


def test_the_budget_allows_an_ulp_even_if_eager_is_exact() -> None:
    truth = torch.linspace(0.5, 1, 1000).double()
    exact = truth.float()
    out = torch.nextafter(exact, torch.tensor(2.0))
    assert check("out", out, exact.double(), exact, LOOSE).failure is None


def test_unwritten_elements_are_counted() -> None:
    truth, eager = softmax_case(4, 100)
    out = eager.clone()
    left = torch.empty(3, 7)
    poison(left)
    out[1:, 3:10] = left
    result = checked(out, truth, eager)
    assert result.failure is not None
    assert "21 of 400" in result.failure


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_poison_differs_from_every_nan_of_arithmetic(dtype: torch.dtype) -> None:
    left = torch.empty(64, dtype=dtype)
    poison(left)
    assert bool(torch.isnan(left).all())
    made = [
        torch.full((64,), float("nan")).to(dtype),
        torch.full((64,), float("inf")).sub(float("inf")).to(dtype),
        torch.zeros(64).div(0).to(dtype),
        torch.softmax(torch.full((4, 64), float("-inf")).to(dtype), -1)[0],
    ]
    truth = torch.full((64,), float("nan")).double()
    for nan in made:
        assert check("out", nan, truth, None, LOOSE).failure is None
    unwritten = check("out", left, truth, None, LOOSE).failure
    assert unwritten is not None
    assert "never written" in unwritten


def test_nan_and_infinity_must_be_where_the_reference_has_them() -> None:
    truth = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]).double()
    assert checked(truth.float(), truth, None).failure is None
    for index, value in [(0, float("nan")), (1, 1.0), (2, -float("inf")), (3, 5.0)]:
        out = truth.float()
        out[index] = value
        result = checked(out, truth, None)
        assert result.failure is not None
        assert result.mismatch is not None
        assert result.mismatch.index == [index]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_special_value_among_many_is_found(dtype: torch.dtype, device: str) -> None:
    truth = torch.ones(300, 1000, dtype=torch.float64, device=device)
    for value in (float("nan"), float("inf"), -float("inf")):
        out = truth.to(dtype, copy=True)
        assert checked(out, truth, out).failure is None
        out[211, 707] = value
        result = checked(out, truth, truth.to(dtype))
        assert result.failure is not None
        assert "NaN or infinity" in result.failure
        assert result.mismatch is not None
        assert result.mismatch.index == [211, 707]
        with_same = truth.clone()
        with_same[211, 707] = value
        assert checked(out, with_same, out).failure is None


def test_overflow_of_the_output_dtype_is_infinity() -> None:
    truth = torch.tensor([1e5, 1.0]).double()
    assert checked(truth.half(), truth, None).failure is None


def test_state_is_checked_by_its_change() -> None:
    generator = torch.Generator().manual_seed(2)
    before = torch.randn(4096, generator=generator)
    truth = before.double() - 1e-3 * torch.sign(before).double()
    bounds = Tolerance(atol=1e-6, rtol=1e-3, rel_l2=1e-3)
    assert torch.allclose(before.double(), truth, atol=1e-2)
    assert check("p", truth.float(), truth, None, bounds, before).failure is None
    assert check("p", before.clone(), truth, None, bounds, before).failure is not None


def test_a_mismatch_in_a_list_names_tensor_and_index() -> None:
    truth = [torch.ones(5).double(), torch.ones(3).double(), torch.ones(70).double()]
    out = [t.float() for t in truth]
    out[1][2] = 3.0
    result = check("params", out, truth, None, LOOSE)
    assert result.mismatch is not None
    assert (result.mismatch.argument, result.mismatch.index) == ("params[1]", [2])


def test_integers_must_be_exact() -> None:
    truth = torch.arange(10)
    assert check("out", truth.clone(), truth, None, LOOSE).failure is None
    out = truth.clone()
    out[9] = 0
    assert check("out", out, truth, None, LOOSE).failure is not None


def test_the_histogram_counts_every_element() -> None:
    truth, eager = softmax_case(8, 500)
    out = eager.clone()
    out[0, 0] = 9.0
    mismatch = checked(out, truth, eager).mismatch
    assert mismatch is not None
    assert sum(count for _, count in mismatch.histogram) == 4000


def test_a_reference_of_zeros_is_no_division_by_zero() -> None:
    truth = torch.zeros(64, 64).double()
    assert check("out", torch.zeros(64, 64), truth, torch.zeros(64, 64), LOOSE).failure is None
    result = check("out", torch.full((64, 64), 1e-3), truth, torch.zeros(64, 64), LOOSE)
    assert result.failure is not None


def test_the_budget_of_a_float64_zero_is_its_smallest_normal_number() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    assert check("out", zero, zero, zero, LOOSE).failure is None
    result = check("out", zero + 1e-300, zero, zero, LOOSE)
    assert result.budget_used is not None
    assert result.budget_used > 1


# Deferred inputs: a call may have read new ones, stale ones, or some of each --------------------

TIGHT = Tolerance(atol=1e-7, rtol=1e-3, rel_l2=1e-3)


@pytest.fixture
def deferred_rows() -> dict[str, torch.Tensor]:
    """Softmax of the right inputs, of inputs with half a row stale, and of a mixture of both."""
    true = torch.randn(64, 4096, generator=torch.Generator().manual_seed(5))
    stale, mixed = true.clone(), true.clone()
    stale[7, :2048] = -true[7, :2048] + 1
    mixed[7, :1024] = stale[7, :1024]
    every = {"right": true, "stale": stale, "mixed": mixed}
    return {name: torch.softmax(x, -1) for name, x in every.items()}


def test_mixed_inputs_explain_an_output(deferred_rows: dict[str, torch.Tensor]) -> None:
    right, stale = deferred_rows["right"], deferred_rows["stale"]
    torn = right.clone()
    torn[7, 100:300] = stale[7, 100:300]
    for out in (right, stale, deferred_rows["mixed"], torn):
        assert errors_beyond_mixed_inputs(out, right, stale, TIGHT) == 0
        assert errors_beyond_mixed_inputs([out[:8], out[8:]], [right], [stale], TIGHT) == 0


def test_mixed_inputs_do_not_explain_errors_in_other_rows(
    deferred_rows: dict[str, torch.Tensor],
) -> None:
    right, stale = deferred_rows["right"], deferred_rows["stale"]
    assert errors_beyond_mixed_inputs(torch.zeros_like(right), right, stale, TIGHT) == 63 * 4096
    for wrong in (right.roll(1, 0), right.mean() + 0 * right):  # a few elements are right by chance
        assert errors_beyond_mixed_inputs(wrong, right, stale, TIGHT) > 60 * 4096
    half = right.clone()
    half[20:40] = 0
    assert errors_beyond_mixed_inputs(half, right, stale, TIGHT) == 20 * 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unwritten_elements_of_lists_are_counted(dtype: torch.dtype) -> None:
    out = torch.randn(40, 50).to(dtype)
    assert count_unwritten(out) == count_unwritten([out, out]) == 0
    poison(out[7, :5])
    assert count_unwritten(out) == 5
    assert count_unwritten([out[:8], out[8:], out]) == 10
    assert count_unwritten(torch.zeros(4, dtype=torch.int32)) == 0, "unknown for integers"


@pytest.mark.parametrize(
    ("dtype", "output"),
    [(torch.uint8, torch.arange(4096) * 7), (torch.float16, 1e4 * torch.randn(4096) ** 3)],
)
def test_eager_outputs_are_converted_to_the_output_s_dtype(
    dtype: torch.dtype, output: torch.Tensor
) -> None:
    """Eager PyTorch's output may have another dtype, and wrap or overflow in this one."""
    assert not torch.equal(output.to(dtype).to(output.dtype), output)
    assert errors_beyond_mixed_inputs(output.to(dtype), output, output.clone(), TIGHT) == 0


def test_as_many_elements_may_be_wrong_as_the_outputs_differ_in() -> None:
    """A rounded element may agree for both inputs, and be off for a mixture."""
    right = torch.ones(100)
    stale, out = right.clone(), right.clone()
    stale[:3] = 2
    out[10:13] = 3
    assert errors_beyond_mixed_inputs(out, right, stale, TIGHT) == 0
    out[13] = 3
    assert errors_beyond_mixed_inputs(out, right, stale, TIGHT) == 4
    whole = right.long(), stale.long()
    assert errors_beyond_mixed_inputs(out.long(), *whole, TIGHT) == 4
    assert errors_beyond_mixed_inputs(whole[0], *whole, TIGHT) == 0


def test_a_nan_in_both_outputs_is_no_difference() -> None:
    right = torch.tensor([float("nan"), 1.0, 2.0, float("inf")])
    assert errors_beyond_mixed_inputs(right, right, right.clone(), TIGHT) == 0
    assert errors_beyond_mixed_inputs(torch.ones(4), right, right.clone(), TIGHT) == 3
    assert errors_beyond_mixed_inputs(torch.full((4,), torch.nan), right, right.clone(), TIGHT) == 3


def test_unchanged_state_is_not_explained() -> None:
    before = torch.randn(4096, generator=torch.Generator().manual_seed(2))
    right = before - 1e-3 * torch.sign(before)
    stale = right.clone()
    stale[:200] += 1e-3
    bounds = Tolerance(atol=1e-7, rtol=1e-2, rel_l2=1e-3)
    near = right * (1 + 1e-7)
    assert errors_beyond_mixed_inputs(near, right, stale, bounds, before) == 0
    assert errors_beyond_mixed_inputs(before.clone(), right, stale, bounds, before) == 4096 - 200


@pytest.mark.parametrize("is_state", [False, True])
def test_what_an_output_in_float64_is_compared_with_stays_as_it_is(is_state: bool) -> None:
    """Converting it to float64 makes no copy."""
    truth = torch.randn(40, 40, dtype=torch.float64)
    initial = torch.randn(40, 40, dtype=torch.float64) if is_state else None
    given = [truth, truth.clone(), *([initial] if initial is not None else [])]
    before = [tensor.clone() for tensor in given]
    bound = error_bound(Accumulation("fp32", terms=4, roundings=1, operands=None), truth)
    tolerance = Tolerance(atol=1e-2, rtol=1e-2, rel_l2=1e-3)
    for out in (truth.clone(), torch.zeros_like(truth)):
        check("y", out, truth, given[1], tolerance, initial, bound)
    assert all(map(torch.equal, given, before))


Change = Callable[[torch.Tensor], object]


def _off(out: torch.Tensor) -> None:
    out[..., -2:] += 0.5


def _unwritten(out: torch.Tensor) -> None:
    poison(out.view(-1)[-70:])


def _special(out: torch.Tensor) -> None:
    out.view(-1)[-3] = math.nan


def _scaled_row(out: torch.Tensor) -> None:
    out[-1] *= 1.03


def _coarse(out: torch.Tensor) -> None:
    out.copy_(out.bfloat16())


CHANGES: list[Change] = [
    lambda _: None, _off, _unwritten, _special, _scaled_row, _coarse, torch.Tensor.zero_,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("shape", [(100, 96), (3, 70, 33), (5_000,), (2, 3)], ids=str)
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("is_state", [False, True])
def test_an_output_is_judged_alike_in_pieces(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    special: bool,
    is_state: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums over pieces differ in their last bits; everything else is the same."""
    torch.manual_seed(0)
    truth = torch.randn(shape, dtype=torch.float64) * 8
    if special and dtype.is_floating_point:
        truth.view(-1)[[1, -1]] = math.inf
        truth.view(-1)[3] = math.nan
    eager = truth.to(dtype)
    initial = (truth.nan_to_num(0, 0, 0) * 0.9).to(dtype) if is_state else None
    how = Accumulation("fp32", terms=4, roundings=1, operands=None)
    bound = error_bound(how, truth) if dtype.is_floating_point else None
    if not dtype.is_floating_point:
        truth = truth.round()
        eager = truth.to(dtype)
    tolerance = Tolerance(atol=1e-2, rtol=1e-2, rel_l2=1e-3)

    def found() -> list[CheckResult]:
        results = []
        for change in CHANGES if dtype.is_floating_point else [CHANGES[0], torch.Tensor.zero_]:
            out = eager.clone()
            change(out)
            results.append(check("y", out, truth, eager, tolerance, initial, bound))
            results.append(check("y", out, truth, None, tolerance, initial))
        return results

    whole = found()
    assert any(result.failure for result in whole)
    monkeypatch.setattr("grader.judge.correctness.check.MOST_ELEMENTS", 1)
    monkeypatch.setattr("grader.judge.pieces.MOST_ELEMENTS", 77)
    for one, other in zip(whole, found(), strict=True):
        assert one.failure == other.failure
        assert repr(one.mismatch) == repr(other.mismatch)  # as NaN is not NaN
        assert one.max_abs_err == other.max_abs_err
        for name in ("rel_l2", "worst_slice_rel_l2", "budget_used", "used"):
            first, second = getattr(one, name), getattr(other, name)
            assert (first is None) == (second is None), name
            assert (first or 0.0) == pytest.approx(second or 0.0, rel=1e-12), name


def test_what_is_computed_of_an_output_is_smaller_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor in float64 has more than a piece's elements."""
    monkeypatch.setattr("grader.judge.correctness.check.MOST_ELEMENTS", 1)
    monkeypatch.setattr("grader.judge.pieces.MOST_ELEMENTS", 64 * 64)
    truth = torch.randn(16 * 64, 64, dtype=torch.float64)
    tolerance = Tolerance(atol=1e-4, rtol=1e-4, rel_l2=1e-4)
    out, eager = (truth * 1.05).float(), truth.float()
    with _Largest() as largest:
        result = check("y", out, truth, eager, tolerance)
    assert "off by more than" in (result.failure or "")
    assert largest.elements <= 64 * 64


class _Largest(TorchDispatchMode):
    """Notes the size of the largest new tensor of 4 or 8 bytes an element."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if torch.is_tensor(t)}
        for one in tree_leaves(made):
            is_new = torch.is_tensor(one) and one.untyped_storage().data_ptr() not in given
            if is_new and one.element_size() >= 4:
                self.elements = max(self.elements, one.numel())
        return made
