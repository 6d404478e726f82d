from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.board import ranks


@pytest.mark.parametrize(
    ("intervals_us", "expected"),
    [
        ([], []),
        ([(9, 11)], [1]),
        ([(9, 11), (10.5, 12), (20, 21)], [1, 1, 3]),
        ([(9, 11), (12, 13), (12.5, 14)], [1, 2, 2]),
        ([(9, 11), (11, 13)], [1, 1]),
        # Each overlaps the next, but the third does not overlap the leader: no chain.
        ([(9, 11), (10, 13), (12, 15)], [1, 1, 3]),
        # A wide interval behind the leader shares its rank; a narrow one after it does not.
        ([(10, 10), (9, 30), (20, 20)], [1, 1, 3]),
    ],
)
def test_ranks(intervals_us: list[tuple[float, float]], expected: list[int]) -> None:
    assert ranks(intervals_us) == expected


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 100), st.floats(0, 100))))
def test_ranks_are_competition_ranks(results: list[tuple[float, float, float]]) -> None:
    intervals = [(score - low, score + high) for score, low, high in sorted(results)]
    shared = ranks(intervals)
    assert shared == sorted(shared)
    for position, rank in enumerate(shared, start=1):
        assert rank <= position
        assert shared[rank - 1] == rank, "a shared rank is the position of the group's leader"
        assert rank == position or intervals[position - 1][0] <= intervals[rank - 1][1]
