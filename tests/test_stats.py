"""The statistics against brute force and known tables."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.stats import is_narrow, median, median_interval, overlap, product_interval

numbers = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60)


def test_interval_of_known_sizes_uses_the_tabled_ranks() -> None:
    # Ranks of the 95 % interval of a median, as statistics tables give them.
    for n, low, high in [(6, 1, 6), (9, 2, 8), (15, 4, 12), (20, 6, 15)]:
        assert median_interval(range(1, n + 1)) == (low, high)


def test_few_values_give_their_whole_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


@given(numbers)
def test_median_lies_in_its_interval(values: list[float]) -> None:
    low, high = median_interval(values)
    assert low <= median(values) <= high


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(2000):
        low, high = median_interval([draw.gauss(10, 1) for _ in range(12)])
        covered += low <= 10 <= high
    assert covered / 2000 >= 0.94


def test_narrow_needs_enough_values_and_little_spread() -> None:
    assert not is_narrow([1.0] * 5, 0.01)
    assert is_narrow([1.0] * 6, 0.01)
    assert not is_narrow([1.0, 1.0, 1.0, 1.1, 1.1, 1.1], 0.01)


def test_overlap_counts_touching_ends() -> None:
    assert overlap((1, 2), (2, 3))
    assert not overlap((1, 2), (2.1, 3))


def test_product_interval_of_one_is_itself() -> None:
    low, high = product_interval([(2.0, 8.0)])
    assert math.isclose(low, 2.0)
    assert math.isclose(high, 8.0)


def test_product_interval_narrows_with_independent_factors() -> None:
    one = product_interval([(0.99, 1.01)])
    four = product_interval([(0.99, 1.01)] * 4)
    assert four[1] - four[0] == pytest.approx((one[1] - one[0]) / 2, rel=0.01)


@pytest.mark.parametrize("function", [median, median_interval, product_interval])
def test_nothing_has_no_middle(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        function([])
