"""Leaderboard entries and the ranks that results share. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BoardEntry:
    """A user's or a team's best ranked result on one GPU."""

    rank: int
    user: str
    """The user, or the team."""
    result_id: int
    score_us: float
    ci_us: tuple[float, float]
    language: str
    created_at: str
    """ISO 8601, UTC."""
    speedup: dict[str, float] = field(default_factory=dict)
    sol: float | None = None
    """Geometric mean over the benchmark cases of the fraction of the roofline."""


def ranks(intervals_us: Sequence[tuple[float, float]]) -> list[int]:
    """The rank of each result, from their confidence intervals (low, high) in µs, best score first.

    The first result leads a group. The following results share its rank while their intervals
    overlap the leader's. The first that does not overlap leads the next group, and its rank is its
    position: 1, 1, 3. Comparing with the leader only keeps a chain of small overlaps from tying the
    first result with the last.
    """
    shared: list[int] = []
    leader_high_us = float("-inf")
    for position, (low_us, high_us) in enumerate(intervals_us, start=1):
        if shared and low_us <= leader_high_us:
            shared.append(shared[-1])
        else:
            shared.append(position)
            leader_high_us = high_us
    return shared
