"""A/B comparisons: the answer of an interval, and the real path on a CPU."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.judge import Progress
from grader.judge.ab_compare import (
    MIN_PAIRS,
    SAME_SHARE,
    ABComparison,
    ComparisonError,
    TimeRatio,
    ab_compare,
)
from grader.sandbox.base import SandboxError
from grader.sandbox.process import ProcessSandbox
from grader.submission import Submission
from tests.judge.conftest import HONEST, REFERENCE, WriteProblem

SLOW = "import time\n" + HONEST + "    time.sleep(0.005)\n"


def ratio(low: float, high: float) -> TimeRatio:
    return TimeRatio("square", 100.0, 100.0, math.sqrt(low * high), (low, high))


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (1.0, 1.0, "same"),
        (1 - SAME_SHARE, 1 + SAME_SHARE, "same"),
        (0.998, 0.999, "same"),  # surely faster, but by too little to matter
        (1.001, 1.002, "same"),
        (0.990, 0.995, "faster"),
        (0.990, 0.999, "faster"),
        (0.9, 1.0, "unsure"),
        (1.005, 1.010, "slower"),
        (1.001, 1.010, "slower"),
        (1.0, 1.1, "unsure"),
        (0.9, 1.1, "unsure"),
        (1 - SAME_SHARE, 1.01, "unsure"),
    ],
)
def test_the_answer_of_an_interval(low: float, high: float, answer: str) -> None:
    assert ratio(low, high).answer == answer


bounds = st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)).map(lambda pair: sorted(pair))


@given(bounds)
def test_swapping_the_two_never_gives_the_same_side(pair: list[float]) -> None:
    low, high = pair
    answer, swapped = ratio(low, high).answer, ratio(1 / high, 1 / low).answer
    assert {answer, swapped} not in ({"faster"}, {"slower"})
    if answer in ("faster", "slower"):
        assert swapped in ("faster", "slower", "same")


@given(bounds, st.floats(1.0, 1.5))
def test_a_wider_interval_never_reverses_the_answer(pair: list[float], wider: float) -> None:
    low, high = pair
    narrow, wide = ratio(low, high).answer, ratio(low / wider, high * wider).answer
    assert {narrow, wide} != {"faster", "slower"}
    if narrow == "unsure":
        assert wide == "unsure"


# The real path ----------------------------------------------------------------------------------

Compare = Callable[[str, str], ABComparison]


@pytest.fixture
def compare(write_problem: WriteProblem, tmp_path: Path) -> Compare:
    """Compares two source texts on the tiny problem."""

    def run(a: str, b: str) -> ABComparison:
        files = []
        for name, source in (("first.py", a), ("second.py", b)):
            path = tmp_path / name
            path.write_text(source)
            files.append(Submission.read(path, 10_000))
        return ab_compare(
            write_problem(), files[0], files[1], sandbox=ProcessSandbox(), device="cpu"
        )

    return run


def test_a_slowed_copy_is_slower(compare: Compare) -> None:
    comparison = compare(HONEST, SLOW)
    (small,) = comparison.cases
    assert (small.name, small.answer, comparison.overall.answer) == ("small", "slower", "slower")
    assert small.b_us > 5000 > small.a_us
    assert small.ci[0] <= small.ratio <= small.ci[1]
    # With one case, the overall ratio is that case's.
    assert comparison.overall.ratio == pytest.approx(small.ratio)
    assert comparison.overall.ci == pytest.approx(small.ci)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HONEST.replace("total += x", "total += 2 * x"), "case 'one'"),
        (HONEST.replace("total +=", "1 / 0; total +="), "ZeroDivisionError"),
        (HONEST + "    x.zero_()\n", "'x'"),
    ],
)
def test_an_incorrect_file_is_named(compare: Compare, source: str, words: str) -> None:
    with pytest.raises(ComparisonError) as caught:
        compare(HONEST, source)
    assert str(caught.value).startswith("second.py: ")
    assert words in str(caught.value)


def test_a_file_that_does_not_load_is_named_and_ends_the_comparison(compare: Compare) -> None:
    with pytest.raises(ComparisonError, match=r"^first\.py: SyntaxError"):
        compare("def scale(", "also no function")


def test_a_file_that_is_wrong_in_a_benchmark_is_named(compare: Compare) -> None:
    wrong = HONEST + "    if x.numel() == 4096:\n        out[7] = 1\n"
    with pytest.raises(ComparisonError, match=r"^second\.py: benchmark 'small': [^b]"):
        compare(HONEST, wrong)


def test_rounds_alternate_and_progress_names_the_file(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A B, B A, A B …, so that an effect of the order within a pair cancels out."""
    from grader.judge.benchmark import Benchmark

    turns: list[int] = []
    warm: list[int] = []
    real_warm_up, real_round = Benchmark.warm_up, Benchmark.round

    def warm_up(bench: Benchmark) -> None:
        real_warm_up(bench)
        warm.append(id(bench))

    def noted_round(bench: Benchmark, index: int, order: list[int] | None = None) -> object:
        if id(bench) in warm:
            turns.append(warm.index(id(bench)))
        return real_round(bench, index, order)

    monkeypatch.setattr(Benchmark, "warm_up", warm_up)
    monkeypatch.setattr(Benchmark, "round", noted_round)
    seen: list[Progress] = []
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    twin = Submission.read(path, 10_000)
    sandbox = ProcessSandbox()
    ab_compare(write_problem(), twin, twin, sandbox=sandbox, device="cpu", progress=seen.append)
    assert len(turns) >= 2 * MIN_PAIRS
    assert turns == [0, 1, 1, 0] * (len(turns) // 4) + [0, 1] * (len(turns) % 4 // 2)
    cases = [step.case for step in seen if step.stage == "test"]
    assert cases == [f"kernel.py: {name}" for name in ("one", "many", "steps")] * 2
    assert [step.case for step in seen if step.stage == "benchmark"] == ["small"]


def test_a_failure_before_the_load_is_the_sandbox_s(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    twin = Submission.read(path, 10_000)
    broken = ProcessSandbox(module="json.tool")
    with pytest.raises(SandboxError, match="failed at start"):
        ab_compare(write_problem(), twin, twin, sandbox=broken, device="cpu")


def test_no_descriptor_leaks(compare: Compare) -> None:
    before = len(os.listdir("/proc/self/fd"))
    compare(HONEST, HONEST)
    gc.collect()  # a mapping keeps its descriptor open until the last tensor in it is freed
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_broken_problem_is_the_author_s_fault(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    from grader.problem import ProblemError

    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    twin = Submission.read(path, 10_000)
    problem = write_problem(reference=REFERENCE.replace("total + x, ", ""))
    with pytest.raises(ProblemError, match="returned 1 values"):
        ab_compare(problem, twin, twin, sandbox=ProcessSandbox(), device="cpu")
