"""The statistics against brute force and known tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.stats import (
    Estimate,
    _signed_rank,
    estimate,
    hodges_lehmann,
    is_narrow,
    median,
    median_estimate,
    median_interval,
    overlap,
    product_interval,
    wilson_interval,
)

numbers = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60)
factors = st.floats(1, 100)


def test_interval_of_known_sizes_uses_the_tabled_ranks() -> None:
    # Ranks of the 95 % interval of a median, from statistics tables.
    for n, low, high in [(6, 1, 6), (9, 2, 8), (15, 4, 12), (20, 6, 15)]:
        assert median_interval(range(1, n + 1)) == (low, high)


def test_few_values_give_their_whole_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_signed_rank_of_known_sizes_is_as_tabled() -> None:
    # Critical values of Wilcoxon's signed rank test, two-sided, 5 %, from statistics tables. The
    # first rank that is not critical is one more.
    tabled = [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52), (25, 89)]
    for n, critical in tabled:
        assert _signed_rank(n) == critical + 1


def test_hodges_lehmann_by_hand() -> None:
    # Means of pairs: 1, 1.5, 2, 3, 3.5, 5, and the mean of the middle two is 2.5.
    assert hodges_lehmann([5.0, 1.0, 2.0]) == (2.5, (1.0, 5.0))


@given(numbers)
def test_an_estimate_lies_in_its_interval_within_the_values(values: list[float]) -> None:
    for value, (low, high) in (estimate(values), hodges_lehmann(values)):
        assert min(values) <= low <= value <= high <= max(values)
    low, high = median_interval(values)
    assert low <= median(values) <= high


def spread(draw: random.Random) -> float:
    return draw.gauss(10, 1)


def in_two_levels(draw: random.Random) -> float:
    return draw.choice((9, 11)) + draw.gauss(0, 0.1)


def seldom_slow(draw: random.Random) -> float:
    return draw.gauss(10, 1) + (30 if draw.random() < 0.08 else 0)


@pytest.mark.parametrize("how", [median_estimate, hodges_lehmann])
def test_an_interval_has_its_nominal_coverage(
    how: Callable[[list[float]], Estimate],
) -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(2000):
        _, (low, high) = how([spread(draw) for _ in range(12)])
        covered += low <= 10 <= high
    assert covered / 2000 >= 0.94


Shape = Callable[[random.Random], float]
SHAPES: dict[Shape, tuple[float, float]] = {
    spread: (10, 10),
    in_two_levels: (10, 10),
    seldom_slow: (10.1, 10.2),
}
"""Distribution → its true median and its true Hodges-Lehmann location, which is slightly higher
with a few slow times. Times in two levels have no unique median."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [6, 9, 15, 30])
def test_the_narrower_interval_has_nearly_the_nominal_coverage(shape: Shape, n: int) -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(1000):
        _, (low, high) = estimate([shape(draw) for _ in range(n)])
        covered += low <= SHAPES[shape][1] and SHAPES[shape][0] <= high
    # 95 %, less two standard errors of a thousand tries, less the cost of choosing the narrower.
    assert covered / 1000 >= 0.92


def test_the_estimate_is_as_good_as_the_better_of_both() -> None:
    draw = random.Random(7)
    levels = [[in_two_levels(draw) for _ in range(15)] for _ in range(200)]
    slow = [[draw.gauss(10, 0.1) for _ in range(8)] + [40.0] for _ in range(200)]
    for samples, better, worse in (
        (levels, hodges_lehmann, median_estimate),
        (slow, median_estimate, hodges_lehmann),
    ):
        assert mean_width(estimate, samples) <= mean_width(better, samples)
        assert mean_width(estimate, samples) < 0.75 * mean_width(worse, samples)


def mean_width(how: Callable[[list[float]], Estimate], samples: list[list[float]]) -> float:
    return sum(high - low for _, (low, high) in map(how, samples)) / len(samples)


def test_of_equally_wide_intervals_the_median_s_is_used() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert estimate(values) == (6.0, (1.0, 32.0))


def test_narrow_needs_enough_values_and_little_spread() -> None:
    assert not is_narrow([1.0] * 5, 0.01)
    assert is_narrow([1.0] * 6, 0.01)
    assert not is_narrow([1.0, 1.0, 1.0, 1.1, 1.1, 1.1], 0.01)


def test_overlap_counts_touching_ends() -> None:
    assert overlap((1, 2), (2, 3))
    assert not overlap((1, 2), (2.1, 3))


def test_product_interval_of_one_is_itself() -> None:
    low, high = product_interval([Estimate(3.0, (2.0, 8.0))])
    assert math.isclose(low, 2.0)
    assert math.isclose(high, 8.0)


def test_product_interval_narrows_with_independent_factors() -> None:
    one = product_interval([Estimate(1.0, (0.99, 1.01))])
    four = product_interval([Estimate(1.0, (0.99, 1.01))] * 4)
    assert four[1] - four[0] == pytest.approx((one[1] - one[0]) / 2, rel=0.01)


@given(st.lists(st.tuples(factors, factors, factors), min_size=1, max_size=8))
def test_product_interval_holds_the_mean_of_its_values(sizes: list[tuple[float, ...]]) -> None:
    """Also for asymmetric intervals: times have slow tails."""
    estimates = [Estimate(v, (v / below, v * above)) for v, below, above in sizes]
    mean = math.exp(math.fsum(math.log(m.value) for m in estimates) / len(estimates))
    low, high = product_interval(estimates)
    assert low <= mean * (1 + 1e-9)
    assert high >= mean * (1 - 1e-9)


def test_an_asymmetric_interval_stays_asymmetric() -> None:
    low, high = product_interval([Estimate(1.0, (1.0, 1.005))] * 6)
    assert low == 1
    assert 1 < high < 1.005


@pytest.mark.parametrize(
    "function", [median, median_interval, hodges_lehmann, estimate, product_interval]
)
def test_no_values_are_an_error(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        function([])


@pytest.mark.parametrize(
    ("successes", "total", "expected"),
    [
        (8, 9, (0.565, 0.980)),
        (0, 10, (0.0, 0.278)),
        (10, 10, (0.722, 1.0)),
        (50, 100, (0.404, 0.596)),
    ],
)
def test_wilsons_interval(successes: int, total: int, expected: tuple[float, float]) -> None:
    assert wilson_interval(successes, total) == pytest.approx(expected, abs=0.0006)


@pytest.mark.parametrize(("successes", "total"), [(1, 0), (-1, 3), (4, 3)])
def test_wilsons_interval_of_no_share(successes: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson_interval(successes, total)
