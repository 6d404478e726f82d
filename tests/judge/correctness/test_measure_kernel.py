"""An output is judged alike by the kernel that measures it in one pass and by PyTorch's operations.

The kernel runs in Triton's interpreter, in a separate process (this file as a program), since
Triton reads TRITON_INTERPRET only on import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from grader.judge.correctness.check import CheckResult, _Piece, check
from grader.judge.correctness.error_bound import ErrorBound
from grader.problem.spec import Tolerance

ROOT = Path(__file__).resolve().parents[3]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SHAPES = [(130, 65), (64, 64), (3, 200), (5000,), (1,), (7, 5, 40)]
ERRORS = ("none", "element", "row", "everywhere", "bias")
"""What is wrong with an output."""
SCENARIOS = [
    (dtype, shape, wrong, has_eager, bound)
    for dtype in DTYPES
    for shape in SHAPES
    for wrong in ERRORS
    for has_eager in (False, True)
    for bound in ("none", "own", "other")
] + [
    (dtype, shape, wrong, False, "narrow")
    for dtype in DTYPES
    for shape in SHAPES
    for wrong in ERRORS
]
"""With or without eager outputs and a bound, or against an answer of the output's own dtype."""
INTERPRETED = SCENARIOS[::7]
"""All of them take the interpreter minutes."""
TOLERANCE = Tolerance(atol=1e-2, rtol=2e-2, rel_l2=1e-2, budget=4)


def judged(scenario: tuple[Any, ...], device: str, by_kernel: bool) -> CheckResult:
    """The finding on an output of a scenario, the same in every process."""
    dtype, shape, wrong, has_eager, kind = scenario
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(shape, generator=generator, dtype=torch.float64)
    out = truth.to(DTYPES[dtype])
    eager = (truth * (1 + 1e-7)).to(DTYPES[dtype])
    if wrong == "element":
        out.view(-1)[-1] += 0.25
    elif wrong == "row":
        out[-1] *= 1.015
    elif wrong == "everywhere":
        out *= 1.1
    elif wrong == "bias":
        out = (truth * (1 - 2e-3)).to(DTYPES[dtype])
    truth, out, eager = truth.to(device), out.to(device), eager.to(device)
    magnitudes = {"own": truth, "other": 3 * truth.abs() + 1}
    bound = ErrorBound(1e-6, magnitudes[kind], 1e-7, "rounding") if kind in magnitudes else None
    if kind == "narrow":
        truth = truth.to(out.dtype)
    with mock.patch.object(_Piece, "fits_kernel", property(lambda piece: by_kernel)):
        return check("out", out, truth, eager if has_eager else None, TOLERANCE, None, bound)


def expect_alike(found: CheckResult, plain: CheckResult, dtype: str) -> None:
    """Their words may differ where two places are equally wrong."""
    assert (found.failure is None) == (plain.failure is None), (found.failure, plain.failure)
    # The interpreter rounds to bfloat16 toward zero, which changes the bound by a last place.
    relative = 1e-2 if dtype == "bf16" else 1e-9
    for name in ("max_abs_err", "rel_l2", "worst_slice_rel_l2", "budget_used", "used"):
        wanted = getattr(plain, name)
        got = getattr(found, name)
        assert got == (wanted if wanted is None else pytest.approx(wanted, rel=relative)), name


def test_the_kernel_judges_as_plain_torch_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.judge.correctness.test_measure_kernel"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(INTERPRETED)), "alike"]


@pytest.mark.cuda
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_compiled_kernel_does_too(scenario: tuple[Any, ...]) -> None:
    found, plain = (judged(scenario, "cuda", by_kernel) for by_kernel in (True, False))
    expect_alike(found, plain, "")


def main() -> None:
    """Judge every scenario by the interpreted kernel, and by PyTorch."""
    for scenario in INTERPRETED:
        found, plain = (judged(scenario, "cpu", by_kernel) for by_kernel in (True, False))
        try:
            expect_alike(found, plain, scenario[0])
        except AssertionError as error:
            sys.exit(f"{scenario}: {error}")
    print(len(INTERPRETED), "alike")


if __name__ == "__main__":
    main()
