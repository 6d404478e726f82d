"""`grade team` and `grade admin team`, against a server on a real socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grader.server.services.admin_service import BoardSettings
from tests.server.command_line import Result, runner
from tests.server.conftest import World

As = Callable[..., Result]


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> As:
    """`grade` as a user."""
    monkeypatch.setenv("GRADE_SERVER", world.url)
    monkeypatch.setenv("COLUMNS", "200")
    grade = runner(capsys)

    def as_user(name: str, *arguments: str) -> Result:
        monkeypatch.setenv("GRADE_TOKEN", world.tokens[name])
        return grade(*arguments)

    return as_user


def test_a_team_is_made_joined_shown_and_left(run: As, world: World) -> None:
    made = run("ada", "team", "new", "tile")
    assert made.status == 0
    assert "members   ada" in made.out
    invited = run("ada", "team", "invite")
    code = invited.out.strip()
    assert f"grade team join {code}; it ends 2030-01-08" in invited.err
    assert run("bob", "team", "join", code, "--json").json["members"] == ["ada", "bob"]
    again = run("bob", "team", "join", code)
    assert again.status == 2
    assert "this code is not valid, or no longer" in again.err
    for arguments in (("show",), ("show", "Tile")):
        shown = run("bob", "team", *arguments, "--json").json
        assert (shown["name"], shown["members"]) == ("tile", ["ada", "bob"])
    assert run("bob", "team", "leave").status == 0
    assert world.services.teams.team("tile").members == ["ada"]
    for arguments in (("leave",), ("invite",), ("show",)):
        refused = run("bob", "team", *arguments)
        assert refused.status == 2
        assert "you are in no team" in refused.err


def test_the_leaderboard_shows_teams(run: As, world: World) -> None:
    world.services.admin.set_board("softmax", BoardSettings(team_size=2), "root")
    assert run("ada", "team", "new", "tile").status == 0
    number = world.graded("ada")
    shown = run("bob", "show", f"{number}", "--server", world.url)
    assert f"submission {number} by ada for the team tile to softmax" in shown.out
    assert "tile" in run("bob", "leaderboard", "softmax", "--server", world.url).out


def test_admins_list_and_change_teams(run: As, world: World) -> None:
    assert run("ada", "team", "new", "tile").status == 0
    assert "bob is in tile" in run("root", "admin", "team", "add", "tile", "bob").err
    listed = run("root", "admin", "team", "list")
    assert "ada, bob" in listed.out
    assert run("root", "admin", "team", "list", "--json").json["teams"][0]["name"] == "tile"
    removed = run("root", "admin", "team", "remove", "tile", "bob")
    assert "bob is no longer in tile" in removed.err
    assert "there is no team tile any more" in run("root", "admin", "team", "delete", "tile").err
    assert world.services.teams.teams() == []


def test_a_board_is_set_to_take_teams(run: As, world: World) -> None:
    def board_set(size: str) -> Result:
        return run("root", "admin", "board", "set", "softmax", "--team-size", size)

    assert "of up to 4" in board_set("4").out
    assert world.services.admin.board("softmax") == BoardSettings(team_size=4)
    for wrong in ("1", "x", "-2"):
        refused = board_set(wrong)
        assert refused.status == 2
        assert f"--team-size: '{wrong}' is not a number from 2 on" in refused.err
    assert "none, people compete alone" in board_set("none").out
    assert world.services.admin.board("softmax") == BoardSettings()
