"""Medians, their intervals, when to stop measuring, and which results are a tie. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

Interval = tuple[float, float]


def median(values: Sequence[float]) -> float:
    """Median. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values to take a median of")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Distribution-free confidence interval of the median, from order statistics.

    The k-th smallest and k-th largest of n values bracket the median with probability
    ``1 - 2 * P(Binomial(n, 1/2) < k)``; the largest k that keeps `confidence` is taken. With fewer
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
        if 1 - 2 * below < confidence or 2 * (k + 1) > n:
            break
        k += 1
    return ordered[k - 1], ordered[n - k]


def is_narrow(values: Sequence[float], relative: float, least: int = 6) -> bool:
    """Whether the median is known to ±`relative` of itself, from at least `least` values."""
    if len(values) < least:
        return False
    low, high = median_interval(values)
    return (high - low) / 2 <= relative * median(values)


def overlap(a: Interval, b: Interval) -> bool:
    """Whether two intervals share a point: the two results are a tie."""
    return a[0] <= b[1] and b[0] <= a[1]


def widened(interval: Interval, value: float, share: float) -> Interval:
    """The interval, made to reach at least `share` of `value` to both sides of it."""
    return min(interval[0], value * (1 - share)), max(interval[1], value * (1 + share))


def product_interval(intervals: Sequence[Interval]) -> Interval:
    """Interval of the geometric mean of quantities with the given independent intervals.

    Half-widths add in quadrature in the logarithm, as independent errors do.
    """
    if not intervals:
        raise ValueError("no intervals to combine")
    n = len(intervals)
    centre = math.fsum((math.log(lo) + math.log(hi)) / 2 for lo, hi in intervals) / n
    spread = math.sqrt(math.fsum(((math.log(hi) - math.log(lo)) / 2) ** 2 for lo, hi in intervals))
    return math.exp(centre - spread / n), math.exp(centre + spread / n)
