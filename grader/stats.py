"""Middles, their intervals, when to stop measuring, and which results are a tie. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement
from typing import NamedTuple

Interval = tuple[float, float]

CONFIDENCE = 0.95


class Middle(NamedTuple):
    """Where values lie, and between what bounds: of many such intervals 95 % hold the truth."""

    value: float
    interval: Interval


def median(values: Sequence[float]) -> float:
    """Median. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values to take a median of")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def middle(values: Sequence[float]) -> Middle:
    """The median or the Hodges-Lehmann estimate, whichever these values tell better: the one with
    the narrower interval, the median where both are as wide. Raises ValueError for no values.

    A few slow rounds among many hardly move the median, but widen the other's interval. Times in
    levels, as of a chip that changes its clock, make the median jump from one level to another; the
    other one lies between. Both are the same where times are spread evenly to both sides.

    Choosing the narrower has its price: of times drawn in several ways, at least 92 % of these
    intervals hold the truth, and not 95 % (`tests/test_stats.py`).
    """
    both = by_median(values), hodges_lehmann(values)
    return min(both, key=lambda one: one.interval[1] - one.interval[0])


def by_median(values: Sequence[float]) -> Middle:
    """The median with its interval. Raises ValueError for no values."""
    return Middle(median(values), median_interval(values))


def median_interval(values: Sequence[float]) -> Interval:
    """Distribution-free confidence interval of the median, from order statistics.

    The k-th smallest and k-th largest of n values bracket the median with probability
    ``1 - 2 * P(Binomial(n, 1/2) < k)``; the largest k that keeps `CONFIDENCE` is taken. With fewer
    than six values no k reaches 95 %, and the whole range is returned.
    Source: Conover, Practical Nonparametric Statistics, confidence interval for a quantile.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        raise ValueError("no values to bracket a median of")
    k, below = 1, math.ldexp(1, -n)
    while True:
        below += math.comb(n, k) * math.ldexp(1, -n)
        if 1 - 2 * below < CONFIDENCE or 2 * (k + 1) > n:
            break
        k += 1
    return ordered[k - 1], ordered[n - k]


def hodges_lehmann(values: Sequence[float]) -> Middle:
    """The median of the means of all pairs of values, each with itself too, and its
    distribution-free interval: the k-th smallest and the k-th largest of these means, by the
    distribution of Wilcoxon's signed rank statistic. Fewer than six values give their whole range.
    Raises ValueError for no values.

    Source: Hodges and Lehmann, Estimates of location based on rank tests, 1963; Conover, Practical
    Nonparametric Statistics, confidence interval for the median difference.
    """
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(values, 2))
    k = _signed_rank(len(values))
    return Middle(median(means), (means[k - 1], means[-k]))


@cache
def _signed_rank(n: int) -> int:
    """The largest k of which a signed rank statistic of n values is below k with a probability of
    at most ``(1 - CONFIDENCE) / 2``; one at least."""
    most = n * (n + 1) // 2
    ways = [1] + [0] * most  # in how many ways some of the ranks 1 to n add up to each sum
    for rank in range(1, n + 1):
        for total in range(most, rank - 1, -1):
            ways[total] += ways[total - rank]
    k, below = 0, ways[0]
    while 2 * below <= (1 - CONFIDENCE) * 2**n:
        k += 1
        below += ways[k]
    return max(k, 1)


def is_narrow(values: Sequence[float], relative: float, least: int = 6) -> bool:
    """Whether the middle is known to ±`relative` of itself, from at least `least` values."""
    if len(values) < least:
        return False
    value, (low, high) = middle(values)
    return (high - low) / 2 <= relative * value


def overlap(a: Interval, b: Interval) -> bool:
    """Whether two intervals share a point: the two results are a tie."""
    return a[0] <= b[1] and b[0] <= a[1]


def widened(interval: Interval, value: float, share: float) -> Interval:
    """The interval, made to reach at least `share` of `value` to both sides of it."""
    return min(interval[0], value * (1 - share)), max(interval[1], value * (1 + share))


def product_interval(middles: Sequence[Middle]) -> Interval:
    """Interval of the geometric mean of independent quantities with the given values and intervals.

    The arms to each side of the values add in quadrature in the logarithm, as independent errors
    do; an interval that reaches further to one side keeps doing so. Raises ValueError for none.
    """
    if not middles:
        raise ValueError("no intervals to combine")
    n = len(middles)
    centre = math.fsum(math.log(value) for value, _ in middles) / n
    below = math.hypot(*(math.log(value / low) for value, (low, _) in middles)) / n
    above = math.hypot(*(math.log(high / value) for value, (_, high) in middles)) / n
    return math.exp(centre - below), math.exp(centre + above)
