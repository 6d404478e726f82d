"""References and inputs of the matmul and quantization problems, against plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grader.judge.problem_code import ProblemCode
from grader.problem import Case, Problem
from tests.problem.test_packages import load

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"


def code_of(name: str) -> ProblemCode:
    return ProblemCode(Problem.load(PROBLEMS / name), "cpu")


def case_of(code: ProblemCode, name: str) -> Case:
    return next(case for case in code.problem.cases("test", "cpu") if case.name == name)


def made(problem: str, case_name: str) -> tuple[dict[str, Any], torch.Tensor]:
    """The inputs of a case, and the reference's output."""
    code = code_of(problem)
    case = case_of(code, case_name)
    values = code.inputs(case, 7)
    return values, code.run_reference(case, values)["out"]


def inputs_with(problem: str, values: str) -> list[dict[str, Any]]:
    """The inputs of all cases on a CPU with a distribution."""
    code = code_of(problem)
    cases = [c for c in code.problem.cases("test", "cpu") if c.params["values"] == values]
    assert cases
    return [code.inputs(case, 7) for case in cases]


def near(got: torch.Tensor, expected: float) -> bool:
    return got.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_int4_packing_saturates() -> None:
    reference = code_of("int4_pack").reference
    codes = torch.tensor([[2, -3], [5, -8], [8, -9], [127, -128]], dtype=torch.int8)
    assert reference(codes).tolist() == [[0x5A], [0x0D], [0x0F], [0x0F]]


def test_int4_unpacking_reverses_packing() -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8).repeat(2, 3)
    packed = code_of("int4_pack").reference(codes)
    assert torch.equal(code_of("int4_unpack").reference(packed), codes)


def test_int4_packing_is_that_of_int4_matmul() -> None:
    code = code_of("int4_matmul")
    packed = code.inputs(case_of(code, "odd_pairs"), 3)["b_packed"]
    assert torch.equal(
        code_of("int4_unpack").reference(packed), load("int4_matmul", "reference").unpack(packed)
    )


def test_int8_gemv_element_by_element() -> None:
    values, out = made("int8_weight_only_gemv", "primes")
    x, w, scales = (values[name].tolist() for name in ("x", "w", "scales"))
    for row in (0, 50, 96):
        assert near(out[row], scales[row] * sum(c * v for c, v in zip(w[row], x, strict=True)))


def test_int8_matmul_element_by_element() -> None:
    values, out = made("int8_dynamic_matmul", "primes")
    a, b = values["a"].tolist(), values["b"].tolist()
    for row, column in [(0, 0), (3, 100), (52, 17)]:
        total = sum(p * q for p, q in zip(a[row], b[column], strict=True))
        scale = values["a_scales"][row].item() * values["b_scales"][column].item()
        assert near(out[row, column], total * scale)


def test_int8_sums_pass_what_fp32_holds_and_come_back() -> None:
    values, _ = made("int8_dynamic_matmul", "beyond_fp32")
    a, b = values["a"].long(), values["b"].long()
    half = a.shape[1] // 2
    assert int((a[:, :half] @ b[:, :half].T).min()) > 2**24
    assert int((a @ b.T).abs().max()) < 2**16


def test_fp8_scales_are_of_blocks() -> None:
    values, out = made("fp8_matmul", "second_block")
    a, b = values["a"].double().tolist(), values["b"].double().tolist()
    for row, column in [(0, 0), (5, 127), (16, 128), (9, 196)]:
        expected = 0.0
        for k in range(256):
            scale = values["a_scales"][row, k // 128] * values["b_scales"][column // 128, k // 128]
            exact = values["a_scales"][row, k // 128].double().item()
            exact *= values["b_scales"][column // 128, k // 128].double().item()
            assert scale.item() == pytest.approx(exact, rel=1e-6)
            expected += a[row][k] * b[column][k] * exact
        assert out[row, column].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_no_fp8_code_is_nan_and_some_are_extreme() -> None:
    for values in inputs_with("fp8_matmul", "extreme"):
        a = values["a"].float()
        assert a.abs().unique().tolist() == [2.0**-9, 448.0]
    for values in inputs_with("fp8_matmul", "tiny"):
        codes = values["b"].float().abs()
        is_subnormal = (codes > 0) & (codes < 2.0**-6)
        assert float(is_subnormal.float().mean()) > 0.7


def test_int4_zero_points_element_by_element() -> None:
    values, out = made("int4_matmul_zeros", "odd_pairs")
    a, scales = values["a"].tolist(), values["scales"].tolist()
    packed, zeros = values["b_packed"].tolist(), values["zeros_packed"].tolist()

    def code(byte: int, column: int) -> int:
        return byte >> 4 if column % 2 else byte & 15

    for row, column in [(0, 0), (1, 65), (2, 7)]:
        expected = 0.0
        for k in range(384):
            zero = code(zeros[k // 128][column // 2], column)
            weight = (code(packed[k][column // 2], column) - zero) * scales[k // 128][column]
            expected += a[row][k] * weight
        assert near(out[row, column], expected)


@pytest.mark.parametrize("seed", range(5))
def test_group_sizes_add_up_and_some_are_empty(seed: int) -> None:
    code = code_of("grouped_matmul")
    for case in code.problem.cases("test", "cpu") + code.problem.draw_cases("cpu", seed):
        sizes = code.inputs(case, seed)["sizes"]
        assert int(sizes.sum()) == case.params["tokens"]
        assert int((sizes > 0).sum()) == case.params["active"]
        assert int(sizes.min()) >= 0


def test_grouped_matmul_row_by_row() -> None:
    values, out = made("grouped_matmul", "some_empty")
    row = 0
    for expert, size in enumerate(values["sizes"].tolist()):
        for _ in range(size):
            expected = values["x"][row].double() @ values["w"][expert].double()
            torch.testing.assert_close(out[row], expected, rtol=1e-12, atol=1e-12)
            row += 1
    assert row == len(out)


@pytest.mark.parametrize("seed", range(5))
def test_two_weights_in_four_are_zero(seed: int) -> None:
    code = code_of("sparse24_matmul")
    for case in code.problem.cases("test", "cpu") + code.problem.draw_cases("cpu", seed):
        kept = (code.inputs(case, seed)["w"].unflatten(1, (-1, 4)) != 0).sum(-1)
        assert int(kept.max()) <= 2
        if case.params["values"] == "fewer" and kept.numel() > 100:
            assert set(kept.unique().tolist()) == {0, 1, 2}


CANCELLING = ["matmul", "grouped_matmul", "sparse24_matmul"]


@pytest.mark.parametrize("name", CANCELLING)
def test_sixteen_terms_are_taken_back_by_the_next(name: str) -> None:
    for values in inputs_with(name, "cancelling"):
        left = values["a" if name == "matmul" else "x"].double()
        right = {"matmul": "b", "grouped_matmul": "w", "sparse24_matmul": "w"}[name]
        weights = values[right].double()
        weights = weights[0] if weights.dim() == 3 else weights
        weights = weights.T if name == "sparse24_matmul" else weights
        first = (left[:, :16] @ weights[:16]).mean()
        both = (left[:, :32] @ weights[:32]).abs().mean()
        assert float(first) > 5
        assert float(both) < 0.1 * float(first)
