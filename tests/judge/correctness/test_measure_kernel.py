"""An output is judged alike by the kernel that measures it in one pass and by PyTorch's operations.

The kernel runs in Triton's interpreter, with this file as a program.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grader.judge.correctness import check as check_module
from grader.judge.correctness.check import CheckResult, _Piece, check
from grader.judge.correctness.error_bound import ErrorBound
from grader.problem.spec import Tolerance
from tests.interpreted import run_interpreted

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SHAPES = [(130, 65), (64, 64), (3, 200), (5000,), (1,), (7, 5, 40)]
ERRORS = ("none", "element", "row", "everywhere", "bias")


class Scenario(NamedTuple):
    """An output, and what it is held against."""

    dtype: str
    shape: tuple[int, ...]
    wrong: str
    """What is wrong with it, one of `ERRORS`."""
    has_eager: bool
    kind: str
    """The bound of its rounding: ``none``, relative to the reference (``own``), or to ``other``
    magnitudes; or ``narrow``, where the reference has the output's dtype."""
    is_cut: bool = False
    """Whether each band is a piece of its own."""


SCENARIOS = [
    *(
        Scenario(dtype, shape, wrong, has_eager, kind)
        for dtype in DTYPES
        for shape in SHAPES
        for wrong in ERRORS
        for has_eager in (False, True)
        for kind in ("none", "own", "other")
    ),
    *(
        Scenario(dtype, shape, wrong, False, "narrow")
        for dtype in DTYPES
        for shape in SHAPES
        for wrong in ERRORS
    ),
    *(
        Scenario(dtype, SHAPES[0], wrong, True, "other", is_cut=True)
        for dtype in DTYPES
        for wrong in ERRORS
    ),
]
INTERPRETED = SCENARIOS[::7]
"""All of them take the interpreter minutes."""
TOLERANCE = Tolerance(atol=1e-2, rtol=2e-2, rel_l2=1e-2, budget=4)


def judged(scenario: Scenario, device: str, by_kernel: bool) -> CheckResult:
    """The finding on an output of a scenario, the same in every process."""
    dtype, shape, wrong, has_eager, kind, is_cut = scenario
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
    with ExitStack() as stack:
        if is_cut:
            stack.enter_context(mock.patch.object(check_module, "MOST_ELEMENTS", 1))
        fits = property(lambda piece: by_kernel)
        stack.enter_context(mock.patch.object(_Piece, "fits_kernel", fits))
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
    printed = run_interpreted("tests.judge.correctness.test_measure_kernel")
    assert printed.split() == [str(len(INTERPRETED)), "alike"]


@pytest.mark.parametrize(
    ("fits", "changed"),
    [
        (True, {}),
        (True, {"truth": torch.float16}),
        (True, {"eager": torch.float16, "bound": torch.float64}),
        (False, {"stored": torch.float64}),
        (False, {"eager": torch.float64}),
        (False, {"truth": torch.int32}),
        (False, {"bound": torch.float32}),
        (False, {"initial": torch.float16}),
        (False, {"has_special": True}),
        (True, {"rows": 32}),
        (False, {"rows": 31}),
        (True, {"columns": 32}),
        (False, {"columns": 31}),
        (False, {"rows": 0}),
        (False, {"device": "cpu"}),
    ],
    ids=str,
)
def test_the_kernel_takes_what_it_can_measure(fits: bool, changed: dict[str, Any]) -> None:
    """Of fp16 outputs of 64 rows and 64 columns on a GPU, unless something is changed."""
    rows, columns = changed.get("rows", 64), changed.get("columns", 64)
    with FakeTensorMode():

        def values(name: str, dtype: torch.dtype | None = None) -> Any:
            dtype, device = changed.get(name, dtype), changed.get("device", "cuda")
            return (
                None if dtype is None else torch.empty(rows * columns, dtype=dtype, device=device)
            )

        magnitude = values("bound")
        piece = _Piece(
            columns=columns,
            stored=values("stored", torch.float16),
            truth=values("truth", torch.float64),
            eager=values("eager"),
            initial=values("initial"),
            bound=None if magnitude is None else ErrorBound(1e-6, magnitude, 1e-7, "rounding"),
            tolerance=TOLERANCE,
            has_special=changed.get("has_special", False),
        )
        assert piece.fits_kernel == fits


@pytest.mark.cuda
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_compiled_kernel_does_too(scenario: Scenario) -> None:
    found, plain = (judged(scenario, "cuda", by_kernel) for by_kernel in (True, False))
    expect_alike(found, plain, "")


def main() -> None:
    """Judge every scenario by the interpreted kernel, and by PyTorch."""
    for scenario in INTERPRETED:
        found, plain = (judged(scenario, "cpu", by_kernel) for by_kernel in (True, False))
        try:
            expect_alike(found, plain, scenario.dtype)
        except AssertionError as error:
            sys.exit(f"{scenario}: {error}")
    print(len(INTERPRETED), "alike")


if __name__ == "__main__":
    main()
