"""Invitations and groups over HTTP: their pages, and what those who are in no group see."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from grader.server.services.container import Services
from grader.server.services.invitations import NOT_VALID
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server.conftest import KERNEL, World, every_problem
from tests.server.pages.test_admin_pages import Browser
from tests.server.pages.test_sign_in import browser, go, me
from tests.server.pages.test_sign_in import provider as provider
from tests.server.provider import Provider
from tests.server.site import Site, check, words
from tests.server.site import site as site


@pytest.fixture
def course(site: Site) -> Site:
    """A board of the group `course`, whose only member is ada."""
    groups = site.world.services.groups
    groups.add("course", "root")
    groups.add_member("course", "ada", "root")
    site.set_board(group="course")
    return site


def invite(world: World, group: str | None = "course", uses: int = 1) -> str:
    return world.services.invitations.add(group, uses, None, "root")


def test_a_code_makes_an_account_and_shows_its_token(course: Site) -> None:
    world = course.world
    code = invite(world)
    client = browser(world)
    page = client.get(f"/join/{code}")
    assert "in the group course" in words(page.text)
    refused = client.post(f"/join/{code}", data={"name": "ada"})
    assert refused.status_code == 409
    check(refused.text)
    assert "is taken" in refused.text
    done = client.post(f"/join/{code}", data={"name": " Jane "})
    check(done.text)
    assert done.headers["cache-control"] == "no-store"
    [token] = re.findall(r"grade_[\w-]{43}", done.text)
    assert world.client(token=token).get("/api/v1/me").json()["name"] == "Jane"
    assert me(client) == "Jane"
    assert client.get("/leaderboards/softmax").status_code == 200
    again = browser(world).get(f"/join/{code}")
    assert again.status_code == 422
    assert NOT_VALID in words(again.text).replace("This", "this")


def test_a_user_joins_a_group(course: Site) -> None:
    world = course.world
    code = invite(world)
    bob = Browser(world, "bob")
    assert "Join as bob" in bob.get(f"/join/{code}")
    assert bob.client.get("/leaderboards/softmax").status_code == 404
    assert bob.post(f"/join/{code}/group", csrf="x").status_code == 403
    assert "Softmax" in bob.done(f"/join/{code}/group")
    assert bob.client.get("/leaderboards/softmax").status_code == 200
    spare = invite(world, uses=2)
    assert "already" in bob.refused(409, f"/join/{spare}/group")
    assert "log out" in bob.refused(409, f"/join/{spare}", name="second")
    assert world.services.invitations.find(spare).used == 0


def test_the_code_is_not_in_the_log(course: Site, caplog: pytest.LogCaptureFixture) -> None:
    code = invite(course.world)
    with caplog.at_level(logging.INFO):
        browser(course.world).get(f"/join/{code}")
    paths = [getattr(record, "path", "") for record in caplog.records]
    assert "/join/…" in paths
    assert not any(code in path for path in paths)


def test_a_board_of_a_group_is_as_hidden_as_a_hidden_one(course: Site) -> None:
    """Whatever a stranger asks for, the answers are those of a board that is hidden."""
    numbers = sorted(course.marks.values())
    paths = [
        "/", "/queue", "/verdicts", "/problems/softmax", "/leaderboards/softmax", "/users/grace",
        "/submit", "/submit?problem=softmax",
        "/api/v1/problems", "/api/v1/problems/softmax", "/api/v1/problems/softmax/versions",
        "/api/v1/leaderboards/softmax", "/api/v1/queue", "/api/v1/verdicts",
        "/api/v1/submissions?problem=softmax", "/api/v1/submissions?user=grace",
        *(f"/submissions/{number}" for number in numbers),
        *(f"/api/v1/submissions/{number}" for number in numbers),
        *(f"/api/v1/submissions/{number}/source" for number in numbers),
    ]  # fmt: skip

    def answers(name: str | None) -> list[tuple[int, str]]:
        client = course.browser(name)
        found = [client.get(path) for path in paths for _ in range(2)]
        return [(one.status_code, re.sub(r'"[0-9a-f]{64}"', "", one.text)) for one in found]

    strangers = (None, "bob", "wilma")
    of_a_group = [answers(name) for name in strangers]
    member = course.browser("ada")
    assert member.get("/leaderboards/softmax").status_code == 200
    assert of_a_group == [answers(name) for name in strangers], "what a member reads is not kept"
    course.set_board(hidden=True)
    for name, before in zip(strangers, of_a_group, strict=True):
        after = answers(name)
        for index, path in enumerate(paths):
            assert before[2 * index][0] == after[2 * index][0], (name, path)
            assert words_of(before[2 * index][1]) == words_of(after[2 * index][1]), (name, path)
    assert member.get("/leaderboards/softmax").status_code == 404


def words_of(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def test_members_see_and_submit_to_their_board(course: Site) -> None:
    world = course.world
    for path in ("/leaderboards/softmax", "/problems/softmax"):
        page = course.page(path, "ada")
        assert "Only the group course and admins see this board." in words(page)
    assert "Softmax over rows" in words(course.page("/", "ada"))
    assert "Softmax over rows" not in words(course.page("/", "bob"))
    assert "Softmax over rows" not in words(course.page("/"))
    assert world.submit("ada").status_code == 202
    assert world.submit("bob").status_code == 404
    assert world.submit("root").status_code == 202
    batch = {"problem": "softmax", "items": [{"key": "a", "source": KERNEL.decode()}]}
    assert world.client("bob").post("/api/v1/batches", json=batch).status_code == 404
    assert world.client("ada").post("/api/v1/batches", json=batch).status_code == 202
    world.services.groups.remove_member("course", "ada", "root")
    assert world.submit("ada").status_code == 404
    assert world.client("ada").get("/api/v1/leaderboards/softmax").status_code == 404


def test_admins_manage_groups_and_invitations(course: Site) -> None:
    world = course.world
    root = Browser(world)
    assert "course" in root.get("/admin/groups")
    assert "second" in root.done("/admin/groups", name="second")
    assert "bob" in root.done("/admin/groups/second/add", user="bob")
    root.done("/admin/groups/second/remove", user="bob")
    shown = root.post("/admin/invitations", group="course", uses="2", until="2031-01-01T10:00")
    check(shown.text)
    code = re.findall(rf"{world.url}/join/([0-9a-f]{{32}})", shown.text)[0]
    assert world.services.invitations.find(code).uses == 2
    listed = root.html("/admin/groups")
    assert "0 of 2" in listed
    assert code not in listed
    number = world.services.invitations.invitations()[0].id
    assert "revoked" in root.done(f"/admin/invitations/{number}/revoke")
    assert "change that first" in root.refused(409, "/admin/groups/course/delete")
    assert re.search("<option selected>course", root.html("/admin/boards/softmax"))
    root.done("/admin/boards/softmax", group="")
    assert world.services.admin.board("softmax").group is None
    root.done("/admin/groups/course/delete")
    root.done("/admin/boards/softmax", group="second")
    assert world.services.admin.board("softmax").group == "second"
    assert "no group third" in root.refused(404, "/admin/boards/softmax", group="third")


class TestInvited:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(requests_per_minute=10_000, sign_up="invited")

    @pytest.fixture
    def services(self, settings: Settings, database: str, provider: Provider) -> Iterator[Services]:
        offered = {"university": provider.settings()}
        migrate_by_copy(database)
        opened = Services.open(database, every_problem(), settings, Clock(), offered)
        yield opened
        opened.close()

    def test_a_sign_up_with_another_site_needs_a_code(self, world: World) -> None:
        world.services.groups.add("course", "root")
        code = invite(world)
        client = browser(world)
        assert "/login/with/university" in client.get(f"/join/{code}").text
        form = go(client, "/login/with/university")
        assert f'value="{code}"' in form.text, "the browser came with it"
        for wrong in ("", "wrong"):
            reply = client.post("/login/name", data={"name": "jane", "code": wrong})
            assert reply.status_code == 409
            assert "invitation" in words(reply.text)
        done = client.post("/login/name", data={"name": "jane", "code": f" {code} "})
        assert done.status_code == 303
        assert me(client) == "jane"
        assert world.services.groups.groups()[0].members == ["jane"]
        assert "grade_invitation" not in client.cookies
        assert browser(world).get(f"/join/{code}").status_code == 422
