"""Teams over HTTP: who may see and do what. tests/server/services/test_teams.py has the rules."""

from __future__ import annotations

from typing import Any

import pytest

from grader.server.services.admin_service import BoardSettings
from tests.server.conftest import World

API = "/api/v1"


@pytest.fixture
def contest(world: World) -> World:
    """A server whose board softmax takes teams, and where `tile` has the members ada and bob."""
    world.tokens["cleo"] = world.services.accounts.add_user("cleo")
    world.services.admin.set_board("softmax", BoardSettings(team_size=2), "root")
    made = world.client("ada").post(f"{API}/teams", json={"name": "tile"})
    assert made.status_code == 201
    code = world.client("ada").post(f"{API}/me/team/codes").json()["code"]
    joined = world.client("bob").post(f"{API}/me/team", json={"code": code})
    assert joined.json()["members"] == ["ada", "bob"]
    return world


def get(world: World, path: str, name: str | None = None, status: int = 200) -> Any:
    reply = world.client(name).get(f"{API}{path}")
    assert reply.status_code == status, reply.text
    return reply.json()


def leaderboard(world: World) -> list[tuple[int, str, bool]]:
    entries = get(world, "/leaderboards/softmax")["entries"]
    return [(one["rank"], one["user"], one["team"]) for one in entries]


def test_a_team_has_one_row(contest: World) -> None:
    contest.graded("ada", score_us=50.0, score_ci_us=(50.0, 50.0))
    contest.graded("bob", score_us=40.0, score_ci_us=(40.0, 40.0))
    contest.graded("cleo", score_us=45.0, score_ci_us=(45.0, 45.0))
    assert leaderboard(contest) == [(1, "tile", True), (2, "cleo", False)]
    assert get(contest, "/problems/softmax")["board"]["team_size"] == 2
    listed = get(contest, "/submissions?team=tile")["submissions"]
    assert [(one["user"], one["team"]) for one in listed] == [("bob", "tile"), ("ada", "tile")]
    assert get(contest, "/me", "bob")["team"] == "tile"
    assert get(contest, "/me", "cleo")["team"] is None


def test_members_see_each_others_reports_and_sources(contest: World) -> None:
    number = contest.graded("ada")
    path = f"/submissions/{number}"
    mine = get(contest, path, "ada")
    assert mine["team"] == "tile"
    assert mine["submission_name"] == "kernel.py"
    assert get(contest, path, "bob") == mine
    source = contest.client("bob").get(f"{API}{path}/source")
    assert "def softmax" in source.text
    for name in ("cleo", None):
        other = get(contest, path, name)
        assert other["submission_name"] is None
        assert contest.client(name).get(f"{API}{path}/source").status_code == 403


def test_what_was_submitted_to_a_board_without_teams_is_ones_own(contest: World) -> None:
    number = contest.submitted("ada", problem="gelu", content=b"def gelu(x, out): ...")
    assert get(contest, f"/submissions/{number}", "ada")["team"] is None
    contest.grade()
    assert get(contest, f"/submissions/{number}", "bob")["submission_name"] is None


def test_who_leaves_sees_their_own_alone(contest: World) -> None:
    theirs, own = contest.graded("ada"), contest.graded("bob")
    assert contest.client("bob").delete(f"{API}/me/team").status_code == 204
    assert get(contest, f"/submissions/{theirs}", "bob")["submission_name"] is None
    assert get(contest, f"/submissions/{own}", "bob")["submission_name"] == "kernel.py"
    assert get(contest, f"/submissions/{own}", "ada")["submission_name"] == "kernel.py"


@pytest.mark.parametrize("closed", [{"hidden": True}, {"group": "course"}])
def test_members_see_nothing_of_a_board_that_is_not_shown_to_them(
    contest: World, closed: dict[str, Any]
) -> None:
    number = contest.graded("ada")
    contest.services.groups.add("course", "root")
    settings = BoardSettings(team_size=2, **closed)
    contest.services.admin.set_board("softmax", settings, "root")
    get(contest, f"/submissions/{number}", "bob", 404)
    get(contest, f"/submissions/{number}", "ada")


def test_only_the_author_cancels_and_withdraws(contest: World) -> None:
    done, waiting = contest.graded("ada"), contest.submitted("ada")
    bob = contest.client("bob")
    assert bob.delete(f"{API}/submissions/{waiting}").status_code == 403
    assert bob.post(f"{API}/submissions/{done}/withdraw").status_code == 403
    assert contest.client("ada").delete(f"{API}/submissions/{waiting}").status_code == 204
    get(contest, f"/submissions/{waiting}", "bob", 404)  # as for everyone but its author


def test_a_second_entry_is_refused(contest: World) -> None:
    contest.submitted("ada")
    assert contest.client("ada").delete(f"{API}/me/team").status_code == 204
    reply = contest.submit("ada")
    assert reply.status_code == 409
    assert reply.json()["error"] == {
        "code": "entry_refused",
        "message": "you have submitted to softmax for the team tile, and a person has one entry on "
        "each board; join tile again to go on",
    }


def test_a_team_is_shown_once_it_has_a_visible_submission(contest: World) -> None:
    get(contest, "/teams/tile", None, 404)
    get(contest, "/teams/tile", "cleo", 404)
    assert get(contest, "/teams/TILE", "bob")["members"] == ["ada", "bob"]
    contest.submitted("ada")
    shown = get(contest, "/teams/tile")
    assert {name: shown[name] for name in ("name", "members")} == {
        "name": "tile",
        "members": ["ada", "bob"],
    }
    contest.services.admin.set_board("softmax", BoardSettings(team_size=2, hidden=True), "root")
    get(contest, "/teams/tile", None, 404)


def test_what_is_left_of_a_daily_limit_is_the_teams(contest: World) -> None:
    settings = BoardSettings(team_size=2, daily_limit=3)
    contest.services.admin.set_board("softmax", settings, "root")
    contest.submitted("ada")
    for name, left in (("ada", 2), ("bob", 2), ("cleo", 3)):
        assert get(contest, "/problems/softmax", name)["daily_left"] == left


@pytest.mark.parametrize("size", [1, 0, -1, 1001, "two"])
def test_a_team_size_that_cannot_be(world: World, size: object) -> None:
    put = world.client("root").put(f"{API}/admin/boards/softmax", json={"team_size": size})
    assert put.status_code == 422
    assert "team_size" in put.json()["error"]["message"]


def test_events_are_sent_to_members(contest: World) -> None:
    number = contest.submitted("ada")
    contest.grade(score_us=40.0)
    path = f"{API}/submissions/{number}/events"
    assert '"reason":null' not in contest.client("bob").get(path).text
    assert '"reason":null' in contest.client("cleo").get(path).text
