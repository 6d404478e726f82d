"""A/B comparisons: the answer of an interval, and the real path on a CPU."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.judge import Progress
from grader.judge import ab_compare as ab_compare_module
from grader.judge.ab_compare import (
    MIN_PAIRS,
    MOST_LOAD,
    SAME_SHARE,
    ABComparison,
    ComparisonError,
    TimeRatio,
    ab_compare,
    orders,
    other_load,
    overall_ratio,
    paired_ratio,
)
from grader.sandbox.base import SandboxError
from grader.sandbox.process import ProcessSandbox
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.judge.conftest import HONEST, REFERENCE, WriteProblem

SAME = SAME_SHARE["cuda"]
SLOW = "import time\n" + HONEST + "    time.sleep(0.005)\n"


def ratio(low: float, high: float) -> TimeRatio:
    return TimeRatio("square", 100.0, 100.0, math.sqrt(low * high), (low, high))


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (1.0, 1.0, "same"),
        (1 - SAME, 1 + SAME, "same"),
        (0.998, 0.999, "same"),  # surely faster, but by too little to matter
        (1.001, 1.002, "same"),
        (0.990, 0.995, "faster"),
        (0.990, 0.999, "faster"),
        (0.9, 1.0, "unsure"),
        (1.005, 1.010, "slower"),
        (1.001, 1.010, "slower"),
        (1.0, 1.1, "unsure"),
        (0.9, 1.1, "unsure"),
        (1 - SAME, 1.01, "unsure"),
    ],
)
def test_the_answer_of_an_interval(low: float, high: float, answer: str) -> None:
    assert ratio(low, high).answer == answer


def test_a_difference_within_the_noise_is_none() -> None:
    """The noise is what the same code shows against itself in the same rounds."""
    for low, high in ((0.85, 0.95), (1.05, 1.2)):
        clear = ratio(low, high)
        assert clear.answer in ("faster", "slower")
        assert replace(clear, noise=0.06).answer == "unsure"
        assert replace(clear, noise=0.04).answer == clear.answer


def test_a_busy_cpu_gets_no_answer() -> None:
    idle, busy = (replace(ratio(0.4, 0.5), load=load) for load in (MOST_LOAD, MOST_LOAD + 0.01))
    assert (idle.answer, idle.too_busy) == ("faster", False)
    assert (busy.answer, busy.too_busy) == ("unsure", True)
    overall = overall_ratio([replace(busy, load=0.5), replace(idle, load=0.0)])
    assert (overall.load, overall.answer) == (0.25, "unsure")
    assert not ratio(0.4, 0.5).too_busy, "a GPU's rounds do not share it"


def test_other_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(ab_compare_module, "PROC_STAT", stat)
    assert other_load(0) is None
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")

    def sleep(_: float) -> None:
        stat.write_text("cpu  120 5 55 860 60 0 0 0 0 0\n")

    monkeypatch.setattr("grader.judge.ab_compare.time.sleep", sleep)
    assert other_load() == pytest.approx(0.3)  # 30 of 100 ticks


# A file against itself --------------------------------------------------------------------------


def steady(rng: random.Random, count: int) -> list[float]:
    return [math.exp(rng.gauss(0, 0.1)) for _ in range(count)]


def spiked(rng: random.Random, count: int) -> list[float]:
    return [1 + 0.02 * rng.paretovariate(1.2) for _ in range(count)]


def in_bursts(rng: random.Random, count: int) -> list[float]:
    """As beside a process that works now and then."""
    times, slow = [], False
    for _ in range(count):
        slow ^= rng.random() < (0.3 if slow else 0.15)
        times.append((1.8 if slow else 1) * math.exp(rng.gauss(0, 0.03)))
    return times


def drifting(rng: random.Random, count: int) -> list[float]:
    times, level = [], 0.0
    for _ in range(count):
        level = 0.9 * level + rng.gauss(0, 0.15)
        times.append(math.exp(level))
    return times


def in_two_levels(rng: random.Random, count: int) -> list[float]:
    return [rng.choice((1, 1, 1.4)) * math.exp(rng.gauss(0, 0.002)) for _ in range(count)]


def periodic(rng: random.Random, count: int) -> list[float]:
    """As beside a timer whose period is a few rounds."""
    period = rng.choice((2, 3, 4, 5))
    return [(1.5 if i % period == 0 else 1) * rng.gauss(1, 0.02) for i in range(count)]


NOISES = (steady, spiked, in_bursts, drifting, in_two_levels, periodic)


def simulated(
    rng: random.Random, noise: Callable[..., list[float]], pairs: int, factor: float
) -> TimeRatio:
    """A comparison in rounds of 1 µs for A and `factor` µs for B, with the same noise."""
    times = iter(noise(rng, 2 * pairs))
    sides: tuple[list[float], list[float]] = ([], [])
    for order in itertools.islice(orders(rng.randrange), pairs):
        for which in order:
            sides[which].append(next(times) * (factor if which else 1))
    return paired_ratio("simulated", *sides, "cpu")


@pytest.mark.parametrize("noise", NOISES)
def test_of_1000_noisy_comparisons_of_a_file_with_itself_none_finds_a_difference(
    noise: Callable[..., list[float]],
) -> None:
    rng = random.Random(20_30)
    answers = Counter(
        simulated(rng, noise, pairs, 1.0).answer for pairs in (MIN_PAIRS, 20) for _ in range(500)
    )
    assert answers.keys() <= {"same", "unsure"}, answers


@pytest.mark.parametrize(("noise", "least"), [(steady, 60), (spiked, 60)])
def test_a_real_difference_is_found_in_the_noise(
    noise: Callable[..., list[float]], least: int
) -> None:
    rng = random.Random(3)
    answers = Counter(simulated(rng, noise, 20, 1 / 1.4).answer for _ in range(100))
    assert answers["faster"] >= least
    assert answers["slower"] == 0


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


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the machine for idle: other tests may run beside these."""
    monkeypatch.setattr(ab_compare_module, "_load", lambda device: 0.01)


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
            write_problem(), files[0], files[1], sandbox=ForkedSandbox(), device="cpu"
        )

    return run


def test_a_slowed_copy_is_slower(compare: Compare) -> None:
    comparison = compare(HONEST, SLOW)
    (small,) = comparison.cases
    assert (small.name, small.answer, comparison.overall.answer) == ("small", "slower", "slower")
    assert small.b_us > 5000 > small.a_us
    assert small.ci[0] <= small.ratio <= small.ci[1]
    assert (small.noise >= SAME_SHARE["cpu"], small.load) == (True, 0.01)
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
    """A B, then B A, or the other way round, so that an effect of the order cancels out."""
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
    sandbox = ForkedSandbox()
    ab_compare(write_problem(), twin, twin, sandbox=sandbox, device="cpu", progress=seen.append)
    assert len(turns) >= 2 * MIN_PAIRS
    fours = [turns[i : i + 4] for i in range(0, len(turns) - 3, 4)]
    assert all(four in ([0, 1, 1, 0], [1, 0, 0, 1]) for four in fours)
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
        ab_compare(problem, twin, twin, sandbox=ForkedSandbox(), device="cpu")
