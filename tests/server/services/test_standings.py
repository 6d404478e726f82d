"""A leaderboard's records, of all users and of each."""

from __future__ import annotations

from unittest import mock

from grader.report import Verdict
from tests.server.conftest import World

INTERVALS = {us: (us * 0.99, us * 1.01) for us in (30.0, 40.0, 50.0, 60.0)}


def _grade(world: World, name: str, *scores_us: float) -> None:
    for score_us in scores_us:
        world.clock.move(60)
        world.graded(
            name, score_us=score_us, score_ci_us=INTERVALS[score_us], created_at=world.clock()
        )


def _steps(world: World, user: str | None) -> list[float]:
    (leaderboard,) = world.services.standings.snapshot()(world.problem.digest, None)
    steps = leaderboard.steps if user is None else leaderboard.personal_bests(user)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    return [step.time_us for step in steps]


def test_a_users_bests_are_the_own_improvements(world: World) -> None:
    _grade(world, "ada", 50.0, 60.0, 50.0, 40.0)
    _grade(world, "bob", 60.0, 50.0, 30.0, 40.0)
    assert _steps(world, "ada") == [50, 40]
    assert _steps(world, "bob") == [60, 50, 30]
    assert _steps(world, None) == [50, 40, 30]


def test_a_user_who_never_improved_has_no_bests(world: World) -> None:
    _grade(world, "ada", 50.0, 60.0, 50.0)
    assert _steps(world, "ada") == []
    assert _steps(world, "nobody") == []


def test_results_of_the_same_second_are_records_in_turn(world: World) -> None:
    for score_us in (50.0, 40.0, 60.0):
        world.graded("ada", score_us=score_us, score_ci_us=INTERVALS[score_us])
    assert _steps(world, "ada") == [50, 40]


def test_a_deleted_record_no_longer_counts(world: World) -> None:
    _grade(world, "ada", 60.0, 40.0, 50.0)
    assert _steps(world, "ada") == [60, 40]
    world.services.admin.delete(2, "root")
    assert _steps(world, "ada") == [60, 50]


def test_only_its_own_results_change_a_leaderboard(world: World) -> None:
    """A busy server has results of other problems, and wrong ones, all the time."""
    standings = world.services.standings
    unscored = {"ranked": False, "score_us": None, "score_ci_us": None}
    with mock.patch.object(standings, "_read", wraps=standings._read) as read:
        _grade(world, "ada", 60.0)
        assert (_steps(world, None), standings.snapshot()("another", None)) == ([60], ())
        world.graded("bob", verdict=Verdict.WRONG_ANSWER, **unscored)
        assert _steps(world, None) == [60]
        assert read.call_count == 2
        _grade(world, "bob", 50.0)
        assert (_steps(world, None), standings.snapshot()("another", None)) == ([60, 50], ())
        assert read.call_count == 3
