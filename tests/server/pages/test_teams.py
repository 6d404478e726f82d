"""Pages of teams: the own page's section, a team's page, and a team's row on a board."""

from __future__ import annotations

import re

import pytest

from grader.server.services.admin_service import BoardSettings
from tests.server.conftest import World
from tests.server.pages.test_admin_pages import Browser
from tests.server.site import check, words


def team_of(world: World, *names: str) -> None:
    """Make the team `tile` of these users, and let the board softmax take teams."""
    user = world.services.accounts.whoami(world.tokens[names[0]])
    assert user is not None
    world.services.teams.add("tile", user)
    for name in names[1:]:
        world.services.teams.add_member("tile", name, "root")
    world.services.admin.set_board("softmax", BoardSettings(team_size=4), "root")


def scored(world: World, name: str, score_us: float) -> int:
    return world.graded(name, score_us=score_us, score_ci_us=(score_us, score_us))


def public(world: World, path: str, status: int = 200) -> str:
    """The page as someone without an account gets it."""
    answer = world.client().get(path, headers={"Accept": "text/html"})
    assert answer.status_code == status
    check(answer.text)
    return answer.text


def test_a_team_is_made_joined_and_left_on_the_own_page(world: World) -> None:
    ada, bob = Browser(world, "ada"), Browser(world, "bob")
    assert "You are in none" in ada.get("/users/ada")
    assert "in the team tile with nobody else yet" in ada.done("/account/team", name="tile")
    made = ada.post("/account/team/codes")
    assert made.headers["cache-control"] == "no-store"
    check(made.text)
    [code] = set(re.findall(r"grade team join (\S+) --server", made.text))
    assert "until 8 January 2030, 00:00 UTC" in words(made.text)
    assert code not in ada.html("/users/ada"), "it is shown once"
    joined = bob.done("/account/team/join", code=f" {code} ")
    assert "in the team tile with ada ." in joined
    assert "not valid" in Browser(world, "root").refused(422, "/account/team/join", code=code)
    assert "You are in none" in bob.done("/account/team/leave")
    assert "You are in no team" in bob.refused(404, "/account/team/leave")


@pytest.mark.parametrize(
    ("path", "form"),
    [("", {"name": "x"}), ("/codes", {}), ("/join", {"code": "x"}), ("/leave", {})],
)
def test_a_form_of_another_site_is_refused(world: World, path: str, form: dict[str, str]) -> None:
    team_of(world, "ada")
    answer = Browser(world, "ada").post(f"/account/team{path}", csrf="wrong", **form)
    assert answer.status_code == 403
    assert world.services.teams.team("tile").members == ["ada"]


def test_a_team_has_a_row_and_a_page(world: World) -> None:
    team_of(world, "ada", "bob")
    scored(world, "ada", 50.0)
    best = scored(world, "bob", 40.0)
    board = public(world, "/leaderboards/softmax")
    assert 'href="/teams/tile"' in board
    assert "Team or user" in board
    assert "in teams of up to 4, or alone" in words(board)
    assert 'href="/users/bob"' not in board
    team = public(world, "/teams/tile")
    assert "A team of ada , bob ." in words(team)
    assert "1 of 1" in words(team)
    assert f'href="/submissions/{best}"' in team
    assert 'href="/users/bob"' in team
    assert "Best over time" in words(team)
    for name in ("ada", "bob"):
        assert "In the team tile ." in words(public(world, f"/users/{name}"))
    submission = words(public(world, f"/submissions/{best}"))
    assert f"Submission {best} by bob for the team tile to" in submission


def test_a_board_without_teams_says_nothing_of_them(world: World) -> None:
    scored(world, "ada", 50.0)
    assert "eam" not in words(public(world, "/leaderboards/softmax"))
    public(world, "/teams/tile", 404)


def test_members_find_their_teams_row(world: World) -> None:
    team_of(world, "ada", "bob")
    scored(world, "ada", 50.0)
    for name, tag in (("ada", "your team"), ("bob", "your team")):
        page = Browser(world, name).get("/leaderboards/softmax")
        assert f"tile {tag}" in page
        assert "Go to your team’s row : rank 1" in page
    assert "your team" not in words(public(world, "/leaderboards/softmax"))
    world.services.teams.remove_member("tile", "bob", "root")
    assert "your team" not in Browser(world, "bob").get("/leaderboards/softmax")


def test_who_has_a_row_alone_finds_that_one(world: World) -> None:
    world.services.admin.set_board("softmax", BoardSettings(team_size=4), "root")
    scored(world, "bob", 60.0)
    team_of(world, "ada", "bob")
    scored(world, "ada", 50.0)
    page = Browser(world, "bob").get("/leaderboards/softmax")
    assert "bob you" in page
    assert "Go to your row : rank 2" in page


def test_a_row_on_another_page_is_found(world: World) -> None:
    team_of(world, "ada", "bob")
    accounts = world.services.accounts
    for index in range(51):
        name = f"user{index:02}"
        world.tokens[name] = accounts.add_user(name)
        scored(world, name, 10.0 + index)
    scored(world, "ada", 99.0)
    page = Browser(world, "bob").html("/leaderboards/softmax")
    assert "page=2#me" in page
    assert "Go to your team’s row : rank 52" in words(page)


def test_pages_of_members_are_not_kept_for_others(world: World) -> None:
    team_of(world, "ada", "bob")
    world.tokens["cleo"] = world.services.accounts.add_user("cleo")
    number = world.graded("ada", verdict="wrong_answer", reason="rows differ", ranked=False)
    for path in (f"/submissions/{number}", "/users/ada", "/teams/tile"):
        for _ in range(2):
            assert path != "/teams/tile" or "Compare" in Browser(world, "bob").html(path)
            for text in (public(world, path), Browser(world, "cleo").html(path)):
                assert "rows differ" not in text
    assert "rows differ" in Browser(world, "bob").html(f"/submissions/{number}")


def test_a_team_of_a_hidden_board_is_not_shown(world: World) -> None:
    team_of(world, "ada", "bob")
    scored(world, "ada", 50.0)
    world.services.admin.set_board("softmax", BoardSettings(team_size=4, hidden=True), "root")
    public(world, "/teams/tile", 404)
    public(world, "/users/ada", 404)
    assert "A team of ada , bob ." in Browser(world, "bob").get("/teams/tile")


def test_the_submit_page_says_what_counts_for_the_team(world: World) -> None:
    team_of(world, "ada")
    title = world.problem.spec.title
    assert f"For your team tile: {title}." in Browser(world, "ada").get("/submit")
    assert "For your team" not in Browser(world, "bob").get("/submit")


def test_admins_set_the_size_of_teams(world: World) -> None:
    root = Browser(world)
    assert "People in a team" in root.done("/admin/boards/softmax", team_size="4")
    assert world.services.admin.board("softmax").team_size == 4
    assert 'name="team_size" value="4"' in root.html("/admin/boards/softmax")
    for wrong in ("1", "x", "1001"):
        refused = root.refused(422, "/admin/boards/softmax", team_size=wrong)
        assert "team_size: write a whole number from 2 to 1,000" in refused.casefold()
    root.done("/admin/boards/softmax", team_size="")
    assert world.services.admin.board("softmax").team_size is None


def test_hostile_names_are_shown_as_text(world: World) -> None:
    ada = Browser(world, "ada")
    name = "<img src=x onerror=alert(4)>"
    assert name in ada.done("/account/team", name=name)
    world.services.admin.set_board("softmax", BoardSettings(team_size=4), "root")
    scored(world, "ada", 50.0)
    for path in ("/leaderboards/softmax", "/teams/%3Cimg%20src=x%20onerror=alert(4)%3E"):
        page = public(world, path)
        assert "<img" not in page
        assert name in words(page)


def test_admins_manage_teams(world: World) -> None:
    root = Browser(world)
    assert "No teams yet" in root.html("/admin/teams")
    team_of(world, "ada")
    assert "bob" in root.done("/admin/teams/tile/add", user="bob")
    assert "no user carl" in root.refused(404, "/admin/teams/tile/add", user="carl").casefold()
    assert "bob" not in root.done("/admin/teams/tile/remove", user="bob")
    assert "No teams yet" in root.done("/admin/teams/tile/delete")
    assert world.services.teams.teams() == []
