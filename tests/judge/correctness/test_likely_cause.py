"""A failure comes with a guess at its usual cause, and with none where there is no pattern."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grader.judge.correctness.check import check
from grader.judge.correctness.likely_cause import coarse_format, likely_cause, likely_mistake
from grader.numerics import round_to
from grader.problem import Problem
from grader.problem.spec import Tolerance
from grader.submission import Language

ROOT = Path(__file__).resolve().parents[3]
STRICT = Tolerance(atol=1e-9, rtol=1e-7, rel_l2=1e-7)


def reference(rows: int = 40, columns: int = 300) -> torch.Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(2))
    return torch.softmax(x.double(), -1)


def guess(
    out: torch.Tensor, truth: torch.Tensor, initial: torch.Tensor | None = None
) -> str | None:
    wrong = (out.double() - truth).abs() > 1e-7 * truth.abs() + 1e-9
    return likely_cause(out, truth, initial, wrong)


@pytest.mark.parametrize(
    ("name", "words"),
    [("fp16", "fp16"), ("tf32", "TF32"), ("bf16", "bf16"), ("fp8", "fp8")],
)
def test_values_in_a_coarser_format(name: str, words: str) -> None:
    truth = reference() * (100 if name == "fp8" else 1)
    assert guess(round_to(truth.float(), name), truth) == (
        f"values or sums rounded to {words} on the way"
    )


@pytest.mark.parametrize(
    ("name", "found"), [("fp16", "fp16 or TF32"), ("tf32", "fp16 or TF32"), ("bf16", "bf16")]
)
def test_the_format_shows_in_a_product_whose_operands_were_rounded(name: str, found: str) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(64, 64, generator=generator) for _ in "ab")
    truth = a.double() @ b.double()
    out = (round_to(a, name).double() @ round_to(b, name).double()).float()
    assert coarse_format(out, truth) == found
    assert coarse_format(truth.float(), truth) is None
    result = check("out", out, truth, None, STRICT)
    assert result.mismatch is not None
    assert result.mismatch.looks_like == found


def test_values_of_a_format_show_it_whatever_the_size_of_the_errors() -> None:
    """With half of the elements exact, the others' errors in bf16 are as small as in fp16."""
    truth = torch.cat([reference(), torch.full((40, 300), 0.03125, dtype=torch.float64)], 1)
    out = truth.float()
    out[:, :300] = round_to(out[:, :300], "bf16")
    assert float((out - truth).norm() / truth.norm()) < 2.0**-9 / 4
    assert coarse_format(out, truth) == "bf16"


def test_a_row_that_is_off_by_one_factor() -> None:
    truth = reference()
    out = truth.float()
    out[7] *= 1.01
    found = guess(out, truth)
    assert found is not None
    assert found.startswith("row 7 is 1.01 times what it should be throughout")


@pytest.mark.parametrize(
    ("factor", "dtype"),
    [
        (1.01, torch.float32),
        (0.5, torch.float32),
        (1.001, torch.float32),
        (1.01, torch.float16),
        (1.01, torch.bfloat16),
    ],
)
def test_one_factor_is_no_rounding(factor: float, dtype: torch.dtype) -> None:
    truth = reference(40, 3)
    found = guess((factor * truth).to(dtype), truth)
    assert found is not None
    assert found.startswith("all elements are ")
    assert float(found.split()[3]) == pytest.approx(factor, abs=5e-4)
    assert coarse_format((factor * truth).float(), truth) is None
    before = torch.ones(500)
    found = guess(before + 0.5 * factor, before.double() + 0.5, before)
    assert found == f"all changes are {factor} times what they should be: is a factor wrong"


def test_one_factor_is_found_beside_numbers_too_small_for_it() -> None:
    """Rounding changes a subnormal number by more than the factor does."""
    truth = torch.logspace(-44, 0, 256, dtype=torch.float64)
    found = guess((1.01 * truth).float(), truth)
    assert found is not None
    assert found.startswith("all elements are 1.01 times")


def test_rounding_toward_zero_is_no_factor() -> None:
    truth = reference(40, 3)
    bits = truth.float().view(torch.int32) & ~0xFFFF  # the upper 16 are those of bf16
    assert guess(bits.view(torch.float32), truth) == "values or sums rounded to bf16 on the way"


@pytest.mark.parametrize("tiny", [1e-160, 1e-300, 5e-324])
def test_errors_of_a_tiny_reference_are_no_crash(tiny: float) -> None:
    truth = torch.full((40, 3), tiny, dtype=torch.float64)
    truth[::2] = 1.0
    out = torch.rand(40, 3, generator=torch.Generator().manual_seed(6))
    assert guess(out, truth) is None
    truth = torch.full((40, 3), tiny, dtype=torch.float64)
    likely_cause(torch.ones(40, 3), truth, None, torch.ones(40, 3, dtype=torch.bool))


def test_one_element_shows_no_rounding() -> None:
    truth = torch.ones(1, 1, dtype=torch.float64)
    assert guess(torch.full((1, 1), 1.01), truth) is None
    assert coarse_format(torch.full((1, 1), 1.01), truth) is None


def test_a_tail_that_is_not_computed_right() -> None:
    truth = reference()
    out = truth.float()
    out[:, 290:] *= 1.7
    assert guess(out, truth) == "only the columns from 290 on are wrong: is the last tile masked"
    out = truth.float()
    out[39] = out[3]
    assert guess(out, truth) == "only the rows from 39 on are wrong: is the last tile masked"


def test_a_few_errors_in_the_last_columns_are_no_tail() -> None:
    """Some are beyond a bound by chance, here where 1 % is about the bound of bf16."""
    truth = reference() * 100
    out = truth.float() * 1.01
    wrong = torch.zeros(truth.shape, dtype=torch.bool)
    wrong[[3, 20], 299] = True
    found = likely_cause(out, truth, None, wrong)
    assert found is not None
    assert "1.01 times what it should be" in found


def test_zeros() -> None:
    truth = reference()
    assert guess(torch.zeros(40, 300), truth) == "they are all 0: was it computed"


def test_state_that_did_not_change() -> None:
    before = torch.randn(500, generator=torch.Generator().manual_seed(4))
    truth = before.double() + 0.1
    assert guess(before.clone(), truth, before) == "were these elements left unchanged"


def test_errors_without_a_pattern_have_no_cause() -> None:
    truth = reference()
    out = truth.float() + torch.randn(40, 300, generator=torch.Generator().manual_seed(5))
    assert guess(out, truth) is None


def test_nan_in_the_output_is_no_crash() -> None:
    truth = reference()
    out = truth.float()
    out[3, 3] = torch.nan
    out[4, 4] = torch.inf
    likely_cause(out, truth, None, torch.isnan(out) | torch.isinf(out))


def test_the_failure_says_it() -> None:
    truth = reference()
    failure = check("out", round_to(truth.float(), "fp16"), truth, None, STRICT).failure
    assert failure is not None
    assert failure.endswith("; values or sums rounded to fp16 on the way?")


@pytest.mark.parametrize(
    ("problem", "language", "untouched", "elsewhere", "words"),
    [
        ("softmax", "python", ["out"], False, "'out' was never written: write into it, such as by"),
        ("softmax", "cuda", ["out"], False, "'out' was never written: is the kernel launched?"),
        ("softmax", "python", ["out"], True, "take its arguments in the order of softmax(x, out)?"),
        ("softmax", "cuda", ["out"], True, "take its arguments in the order of softmax(x, out)?"),
        ("softmax", "python", [], True, None),
        ("softmax", "python", [], False, None),
        (
            "multi_tensor_adamw",
            "python",
            ["params"],
            False,
            "by params[i].copy_(…) or params[i][:]",
        ),
        (
            "multi_tensor_adamw",
            "python",
            ["params"],
            True,
            "'params' was never written: write into",
        ),
    ],
)
def test_outputs_that_were_never_written(
    problem: str, language: Language, untouched: list[str], elsewhere: bool, words: str | None
) -> None:
    spec = Problem.load(ROOT / "problems" / problem).spec
    told = likely_mistake(untouched, spec, language, elsewhere)
    assert told is None if words is None else words in str(told)
