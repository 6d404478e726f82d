"""Access control: every route and role in one table; throttling, CSRF, limits, hostile input."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest

from grader.fleet import Worker
from grader.server.services import Conflict
from grader.server.services.accounts import User
from grader.server.services.sign_in import Person
from grader.server.settings import Settings
from tests.server.conftest import H100, KERNEL, SEED, World, statements
from tests.waiting import PATIENCE_S

FORM = {"data": {"problem": "softmax"}, "files": {"file": ("kernel.py", KERNEL)}}
BATCH = {"json": {"problem": "softmax", "items": [{"key": "a", "source": "x = 1"}]}}
HOLD = {"json": {"token": "0" * 32}}


def nothing(world: World) -> int:
    return 1


def queued(world: World) -> int:
    return world.submitted("ada")


def done(world: World) -> int:
    for job in world.services.ledger.queue():
        world.services.ledger.cancel(job.submission_id, "root")
    return world.graded("ada")


def batch(world: World) -> int:
    return world.batch("ada")


def held(world: World) -> int:
    for job in world.services.ledger.queue():
        world.services.ledger.cancel(job.submission_id, "root")
    number = queued(world)
    for _ in range(3):
        world.clock.move(1000)
        world.services.ledger.fail(world.lease(), "no sandbox")
    return number


def user(world: World) -> int:
    """The number of a new token of the user `eve`, who is not banned."""
    accounts, admin = world.services.accounts, world.services.admin
    if accounts.user("eve") is None:
        accounts.add_user("eve")
    account = accounts.user("eve")
    assert account is not None
    if account.banned_at is not None:
        admin.unban("eve", "root")
    accounts.new_token("eve")
    return accounts.tokens("eve")[-1].id


def own_token(world: World) -> int:
    """The number of a new token of the user `ada`."""
    world.services.accounts.new_token("ada")
    return world.services.accounts.tokens("ada")[-1].id


def group(world: World) -> int:
    """Make the group `course` with the member `eve` anew."""
    user(world)
    groups = world.services.groups
    if any(one.name == "course" for one in groups.groups()):
        groups.remove("course", "root")
    groups.add("course", "root")
    groups.add_member("course", "eve", "root")
    return 1


def empty_group(world: World) -> int:
    """Make the group `course` anew, without members."""
    group(world)
    world.services.groups.remove_member("course", "eve", "root")
    return 1


def invitation(world: World) -> int:
    """The number of a new invitation."""
    world.services.invitations.add(None, 1, None, "root")
    return world.services.invitations.invitations()[0].id


def no_teams(world: World) -> int:
    """Leave everyone without a team."""
    teams = world.services.teams
    for one in teams.teams():
        for member in one.members:
            teams.remove_member(one.name, member, "root")
    return 1


def team(world: World) -> int:
    """Make the team `tile` of `ada` anew, and the user `eve` who is in none."""
    user(world)
    no_teams(world)
    world.services.teams.add("tile", account(world, "ada"))
    return 1


def eve_in_team(world: World) -> int:
    """Make the team `tile` of `ada` and `eve` anew."""
    team(world)
    world.services.teams.add_member("tile", "eve", "root")
    return 1


def account(world: World, name: str) -> User:
    found = world.services.accounts.whoami(world.tokens[name])
    assert found is not None
    return found


def linked(world: World) -> int:
    """The number of a new identity of the user `eve`."""
    person = Person("https://github.com", str(user(world)))
    world.services.sign_ins.link_by_admin("eve", person, "root")
    return world.services.sign_ins.identities("eve")[-1].id


def banned(world: World) -> int:
    number = user(world)
    world.services.admin.ban("eve", "", "root")
    return number


def announcement(world: World) -> int:
    world.services.announcements.add("lunch", world.clock() + timedelta(days=1), "root")
    return world.services.announcements.newest(1)[0].id


def farm(world: World) -> int:
    """A worker that is not drained."""
    world.services.ledger.announce(Worker("farm/a", "http", "cpu", None, 1))
    with suppress(Conflict):
        world.services.admin.undrain_worker("farm/a", "root")
    return 1


def drained(world: World) -> int:
    farm(world)
    world.services.admin.drain_worker("farm/a", "root")
    return 1


def rejudge(world: World) -> int:
    """The number of a rejudge whose only grading is done."""
    number = done(world)
    admin = world.services.admin
    for old in admin.rejudges.rejudges():
        if old.state == "preview":
            admin.rejudges.drop(old.id, "root")
    digest = world.problem.digest
    started = admin.rejudges.start("softmax", digest, [number], reason="", by="root")
    world.grade()
    return started


@dataclass(frozen=True)
class Access:
    """A route, how it is called, and its status without a token, for the owner, for another
    competitor, for a worker and for an admin."""

    method: str
    path: str
    statuses: tuple[int, int, int, int, int]
    prepare: Callable[[World], int] = nothing
    """Creates the requested object for each caller. Returns its number."""
    call: dict[str, Any] | None = None
    fill: dict[str, str] | None = None
    """Values of the path's parameters, except numbers."""


EVERYONE = (200, 200, 200, 200, 200)
OWNERS = (401, 200, 404, 403, 200)
OWNERS_ONLY = (401, 200, 404, 403, 404)
"""What not even an admin may do for another user."""
ADMINS = (401, 403, 403, 403, 200)
CHANGES = (401, 403, 403, 403, 204)
"""What an admin changes, without an answer."""
FORMS = (401, 403, 403, 403, 303)
"""A form that redirects to a page of admins."""
WORKERS = (401, 403, 403, 200, 200)
API = "/api/v1"
EVE = {"name": "eve"}
TILE = {"team": "tile", "name": "eve"}
COURSE = {"group": "course", "name": "eve"}
GITHUB = {"provider": "github"}
FARM = {"name": "farm/a"}
SOFTMAX = {"name": "softmax", "problem": "softmax"}
STARTER = {"name": "softmax", "language": "cuda"}
PRESENCE = {"json": {"worker": "w", "device": "cpu", "slots": 1}}

TABLE = [
    Access("GET", f"{API}/openapi.json", EVERYONE),
    Access("GET", "/healthz", EVERYONE),
    Access("GET", "/metrics", EVERYONE),
    Access("GET", "/static", (200,) * 5),
    # Competitors.
    Access("POST", f"{API}/submissions", (401, 202, 202, 403, 202), call=FORM),
    Access("POST", f"{API}/batches", (401, 202, 202, 403, 202), call=BATCH),
    Access("GET", f"{API}/batches", (401, 200, 200, 403, 200)),
    Access("GET", f"{API}/batches/{{number}}", OWNERS, batch),
    Access("GET", f"{API}/batches/{{number}}/results", OWNERS, batch),
    Access("DELETE", f"{API}/batches/{{number}}", (401, 204, 404, 403, 204), batch),
    Access("GET", f"{API}/verdicts", EVERYONE),
    Access("GET", f"{API}/submissions", EVERYONE),
    Access("GET", f"{API}/submissions/{{number}}", EVERYONE, done),
    Access("GET", f"{API}/submissions/{{number}}/source", (403, 200, 403, 403, 200), done),
    Access("GET", f"{API}/submissions/{{number}}/events", EVERYONE, done),
    Access("DELETE", f"{API}/submissions/{{number}}", (401, 204, 403, 403, 204), queued),
    Access("DELETE", f"{API}/submissions/{{number}}", (401, 409, 403, 403, 204), done),
    Access("POST", f"{API}/submissions/{{number}}/withdraw", (401, 204, 403, 403, 403), done),
    Access("POST", f"{API}/submissions/{{number}}/restore", (401, 204, 403, 403, 403), done),
    Access("GET", f"{API}/problems", EVERYONE),
    Access("GET", f"{API}/problems/{{name}}", EVERYONE, fill=SOFTMAX),
    Access("GET", f"{API}/problems/{{name}}/versions", EVERYONE, fill=SOFTMAX),
    Access("GET", f"{API}/leaderboards/{{name}}", EVERYONE, fill=SOFTMAX),
    Access("GET", f"{API}/queue", EVERYONE),
    Access("GET", f"{API}/me", (401, 200, 200, 200, 200)),
    Access("GET", f"{API}/me/tokens", (401, 200, 200, 403, 200)),
    Access("POST", f"{API}/me/tokens", (401, 201, 201, 403, 201), call={"json": {}}),
    Access("POST", f"{API}/me/tokens/{{number}}/rotate", OWNERS_ONLY, own_token),
    Access("DELETE", f"{API}/me/tokens/{{number}}", OWNERS_ONLY, own_token),
    Access("POST", f"{API}/teams", (401, 201, 201, 403, 201), no_teams, {"json": {"name": "tile"}}),
    Access("GET", f"{API}/teams/{{team}}", (404, 200, 404, 404, 200), team, fill=TILE),
    Access("POST", f"{API}/me/team/codes", (401, 201, 404, 403, 404), team),
    # The code is wrong; tests/server/api/test_teams.py has right ones.
    Access("POST", f"{API}/me/team", (401, 422, 422, 403, 422), team, {"json": {"code": "x"}}),
    Access("DELETE", f"{API}/me/team", (401, 204, 404, 403, 404), team),
    # Admins.
    Access("GET", f"{API}/admin/users", ADMINS),
    Access("POST", f"{API}/admin/users", (401, 403, 403, 403, 201), call={"json": {"name": "new"}}),
    Access("GET", f"{API}/admin/users/{{name}}/tokens", ADMINS, user, fill=EVE),
    Access(
        "POST",
        f"{API}/admin/users/{{name}}/tokens",
        (401, 403, 403, 403, 201),
        user,
        {"json": {}},
        EVE,
    ),
    Access("DELETE", f"{API}/admin/users/{{name}}/tokens", ADMINS, user, fill=EVE),
    Access("DELETE", f"{API}/admin/tokens/{{number}}", ADMINS, user),
    Access(
        "POST",
        f"{API}/admin/users/{{name}}/ban",
        (401, 403, 403, 403, 204),
        user,
        {"json": {"reason": "test"}},
        EVE,
    ),
    Access("GET", f"{API}/admin/users/{{name}}/identities", ADMINS, user, fill=EVE),
    Access(
        "POST",
        f"{API}/admin/users/{{name}}/identities",
        (401, 403, 403, 403, 404),
        user,
        {"json": {"provider": "github", "subject": "1"}},
        EVE,
    ),
    Access(
        "DELETE",
        f"{API}/admin/users/{{name}}/identities/{{number}}",
        CHANGES,
        linked,
        fill=EVE,
    ),
    Access("GET", f"{API}/admin/users/{{name}}/graded", ADMINS, user, fill=EVE),
    Access("POST", f"{API}/admin/users/{{name}}/hold", ADMINS, user, fill=EVE),
    Access("POST", f"{API}/admin/users/{{name}}/unhold", ADMINS, user, fill=EVE),
    Access(
        "POST", f"{API}/admin/users/{{name}}/unban", (401, 403, 403, 403, 204), banned, fill=EVE
    ),
    Access("GET", f"{API}/admin/boards/{{problem}}", ADMINS, fill=SOFTMAX),
    Access("PUT", f"{API}/admin/boards/{{problem}}", ADMINS, call={"json": {}}, fill=SOFTMAX),
    Access("GET", f"{API}/admin/boards/{{problem}}/versions", ADMINS, fill=SOFTMAX),
    Access("GET", f"{API}/admin/held", ADMINS),
    Access("POST", f"{API}/admin/submissions/{{number}}/release", (401, 403, 403, 403, 204), held),
    Access("DELETE", f"{API}/admin/submissions/{{number}}", ADMINS, done),
    Access("GET", f"{API}/admin/rejudges", ADMINS),
    Access(
        "POST",
        f"{API}/admin/rejudges",
        (401, 403, 403, 403, 201),
        done,
        {"json": {"problem": "softmax"}},
    ),
    Access("GET", f"{API}/admin/rejudges/{{number}}", ADMINS, rejudge),
    Access("POST", f"{API}/admin/rejudges/{{number}}/apply", ADMINS, rejudge),
    Access("POST", f"{API}/admin/rejudges/{{number}}/drop", (401, 403, 403, 403, 204), rejudge),
    Access("GET", f"{API}/admin/workers", ADMINS),
    Access(
        "POST", f"{API}/admin/workers/{{name}}/drain", (401, 403, 403, 403, 204), farm, fill=FARM
    ),
    Access(
        "POST",
        f"{API}/admin/workers/{{name}}/undrain",
        (401, 403, 403, 403, 204),
        drained,
        fill=FARM,
    ),
    # This server has no folder of problems.
    Access("GET", f"{API}/admin/problems/reload", (401, 403, 403, 403, 409)),
    Access("POST", f"{API}/admin/problems/reload", (401, 403, 403, 403, 409), call={"json": {}}),
    Access("GET", f"{API}/admin/similar/{{problem}}", ADMINS, fill=SOFTMAX),
    Access("GET", f"{API}/admin/audit", ADMINS),
    Access("GET", f"{API}/admin/groups", ADMINS),
    Access(
        "POST", f"{API}/admin/groups", (401, 403, 403, 403, 204), call={"json": {"name": "one"}}
    ),
    Access("DELETE", f"{API}/admin/groups/{{group}}", CHANGES, group, fill=COURSE),
    Access("PUT", f"{API}/admin/groups/{{group}}/members/{{name}}", CHANGES, group, fill=COURSE),
    Access("DELETE", f"{API}/admin/groups/{{group}}/members/{{name}}", CHANGES, group, fill=COURSE),
    Access("GET", f"{API}/admin/teams", ADMINS),
    Access("DELETE", f"{API}/admin/teams/{{team}}", CHANGES, team, fill=TILE),
    Access("PUT", f"{API}/admin/teams/{{team}}/members/{{name}}", CHANGES, team, fill=TILE),
    Access(
        "DELETE", f"{API}/admin/teams/{{team}}/members/{{name}}", CHANGES, eve_in_team, fill=TILE
    ),
    Access("GET", f"{API}/admin/invitations", ADMINS),
    Access("POST", f"{API}/admin/invitations", (401, 403, 403, 403, 201), call={"json": {}}),
    Access("DELETE", f"{API}/admin/invitations/{{number}}", CHANGES, invitation),
    # Workers.
    Access("POST", f"{API}/work/seen", (401, 403, 403, 200, 200), call=PRESENCE),
    Access(
        "POST",
        f"{API}/work/claim",
        (401, 403, 403, 204, 204),
        call={"json": {"worker": "w", "problems": {}, "lease_s": 30, "languages": None}},
    ),
    Access("POST", f"{API}/work/{{number}}/begin", WORKERS, queued, HOLD),
    Access(
        "POST",
        f"{API}/work/{{number}}/heartbeat",
        WORKERS,
        queued,
        {"json": {"token": "0" * 32, "lease_s": 30}},
    ),
    Access("POST", f"{API}/work/{{number}}/finish", (401, 403, 403, 422, 422), queued, HOLD),
    Access(
        "POST",
        f"{API}/work/{{number}}/fail",
        WORKERS,
        queued,
        {"json": {"token": "0" * 32, "reason": "test"}},
    ),
    Access("POST", f"{API}/work/{{number}}/give-back", WORKERS, queued, HOLD),
    # Pages. A request with a token in a header is not from a browser, so no CSRF token is needed.
    Access("GET", "/", EVERYONE),
    Access("GET", "/problems/{name}", EVERYONE, fill=SOFTMAX),
    Access("GET", "/leaderboards/{name}", EVERYONE, fill=SOFTMAX),
    Access("GET", "/verdicts", EVERYONE),
    Access("GET", "/preview.png", EVERYONE),
    Access("GET", "/problems/{name}/preview.png", EVERYONE, fill=SOFTMAX),
    Access("GET", "/leaderboards/{name}/preview.png", EVERYONE, fill=SOFTMAX),
    Access("GET", "/submissions/{number}/preview.png", EVERYONE, done),
    Access("GET", "/submissions/{number}", EVERYONE, done),
    Access("GET", "/submissions/{number}/state", EVERYONE, done),
    Access("GET", "/submissions/{number}/compare", (303,) * 5, done, {"params": {"other": 1}}),
    Access("GET", "/submissions/{number}/compare/{other}", EVERYONE, done),
    Access("GET", "/compare", (303,) * 5, call={"params": {"pick": [1, 2]}}),
    Access("GET", "/rules", EVERYONE),
    Access("GET", "/api", EVERYONE),
    Access("GET", "/users/{name}", EVERYONE, done, fill={"name": "ada"}),
    Access("GET", "/queue", EVERYONE),
    Access("GET", "/problems/{name}/starters/{language}", EVERYONE, fill=STARTER),
    Access("GET", "/submit", (303, 200, 200, 200, 200)),
    Access("POST", "/submit", (401, 303, 303, 403, 303), call=FORM),
    Access("POST", "/submissions/{number}/cancel", (401, 303, 403, 403, 303), queued),
    Access("POST", "/submissions/{number}/withdraw", (401, 303, 403, 403, 403), done),
    Access("POST", "/submissions/{number}/restore", (401, 303, 403, 403, 403), done),
    Access("GET", "/login", EVERYONE),
    Access("POST", "/login", (401,) * 5, call={"data": {"token": "x"}}),
    Access("POST", "/logout", (303,) * 5),
    # There is no provider; tests/server/pages/test_sign_in.py has two.
    Access("GET", "/login/with/{provider}", (404,) * 5, fill=GITHUB),
    Access("POST", "/login/with/{provider}", (401, 404, 404, 404, 404), fill=GITHUB),
    Access("GET", "/login/with/{provider}/callback", (404,) * 5, fill=GITHUB),
    Access("GET", "/login/name", (422,) * 5),
    Access("POST", "/login/name", (422,) * 5),
    # The code is wrong; tests/server/pages/test_join.py has right ones.
    Access("GET", "/join/{code}", (422,) * 5, fill={"code": "x"}),
    Access("POST", "/join/{code}", (422,) * 5, fill={"code": "x"}),
    Access("POST", "/join/{code}/group", (401, 422, 422, 422, 422), fill={"code": "x"}),
    Access("GET", "/teams/{name}", (404, 200, 404, 404, 200), team, fill={"name": "tile"}),
    Access("POST", "/account/team", (401, 303, 303, 403, 303), no_teams, {"data": {"name": "a"}}),
    Access("POST", "/account/team/codes", (401, 200, 404, 403, 404), team),
    Access("POST", "/account/team/join", (401, 422, 422, 403, 422), team, {"data": {"code": "x"}}),
    Access("POST", "/account/team/leave", (401, 303, 404, 403, 404), team),
    Access("POST", "/account/tokens", (401, 200, 200, 403, 200)),
    Access("POST", "/account/tokens/{number}/rotate", OWNERS_ONLY, own_token),
    Access("POST", "/account/tokens/{number}/revoke", (401, 303, 404, 403, 404), own_token),
    Access("POST", "/account/identities/{number}/unlink", (401, 404, 404, 404, 404), linked),
    # Pages of admins.
    Access("GET", "/admin", ADMINS),
    Access("GET", "/admin/held", ADMINS, held),
    Access("POST", "/admin/submissions/{number}/release", FORMS, held),
    Access("POST", "/admin/submissions/{number}/delete", FORMS, held),
    Access("GET", "/admin/boards", ADMINS),
    Access("GET", "/admin/boards/{name}", ADMINS, fill=SOFTMAX),
    Access("POST", "/admin/boards/{name}", FORMS, fill=SOFTMAX),
    Access("GET", "/admin/workers", ADMINS),
    Access("POST", "/admin/workers/drain", FORMS, farm, {"data": FARM}),
    Access("POST", "/admin/workers/undrain", FORMS, drained, {"data": FARM}),
    Access("GET", "/admin/problems", ADMINS),
    Access("POST", "/admin/problems/reload", (401, 403, 403, 403, 409)),
    Access("GET", "/admin/similar/{name}", ADMINS, fill=SOFTMAX),
    Access("GET", "/admin/announcements", ADMINS),
    Access(
        "POST",
        "/admin/announcements",
        FORMS,
        call={"data": {"text": "lunch", "until": "2090-01-01T12:00"}},
    ),
    Access("POST", "/admin/announcements/{number}/end", FORMS, announcement),
    Access("GET", "/admin/audit", ADMINS),
    Access("GET", "/admin/groups", ADMINS, group),
    Access("POST", "/admin/groups", FORMS, call={"data": {"name": "another"}}),
    Access("POST", "/admin/groups/{name}/delete", FORMS, group, fill={"name": "course"}),
    Access(
        "POST",
        "/admin/groups/{name}/add",
        FORMS,
        empty_group,
        {"data": {"user": "eve"}},
        {"name": "course"},
    ),
    Access(
        "POST",
        "/admin/groups/{name}/remove",
        FORMS,
        group,
        {"data": {"user": "eve"}},
        {"name": "course"},
    ),
    Access("GET", "/admin/teams", ADMINS, team),
    Access("POST", "/admin/teams/{name}/delete", FORMS, team, fill={"name": "tile"}),
    Access(
        "POST", "/admin/teams/{name}/add", FORMS, team, {"data": {"user": "eve"}}, {"name": "tile"}
    ),
    Access(
        "POST",
        "/admin/teams/{name}/remove",
        FORMS,
        eve_in_team,
        {"data": {"user": "eve"}},
        {"name": "tile"},
    ),
    Access("POST", "/admin/invitations", ADMINS, call={"data": {"uses": "2"}}),
    Access("POST", "/admin/invitations/{number}/revoke", FORMS, invitation),
    Access("GET", "/admin/users", ADMINS),
    Access("POST", "/admin/users", ADMINS, call={"data": {"name": "newer"}}),
    Access("GET", "/admin/users/{name}", ADMINS, user, fill=EVE),
    Access("POST", "/admin/users/{name}/tokens", ADMINS, user, fill=EVE),
    Access("POST", "/admin/users/{name}/tokens/revoke", FORMS, user, fill=EVE),
    Access("POST", "/admin/users/{name}/tokens/{number}/revoke", FORMS, user, fill=EVE),
    Access("POST", "/admin/users/{name}/tokens/{number}/rotate", ADMINS, user, fill=EVE),
    Access(
        "POST",
        "/admin/users/{name}/identities",
        (401, 403, 403, 403, 404),
        user,
        {"data": {"provider": "github", "subject": "1"}},
        EVE,
    ),
    Access("POST", "/admin/users/{name}/identities/{number}/unlink", FORMS, linked, fill=EVE),
    Access("POST", "/admin/users/{name}/ban", FORMS, user, fill=EVE),
    Access("POST", "/admin/users/{name}/unban", FORMS, banned, fill=EVE),
    Access("POST", "/admin/users/{name}/hold", FORMS, user, fill=EVE),
    Access("POST", "/admin/users/{name}/unhold", FORMS, user, fill=EVE),
    Access("GET", "/admin/rejudges", ADMINS),
    Access("POST", "/admin/rejudges", FORMS, done, {"data": {"problem": "softmax"}}),
    Access("GET", "/admin/rejudges/{number}", ADMINS, rejudge),
    Access("POST", "/admin/rejudges/{number}/apply", FORMS, rejudge),
    Access("POST", "/admin/rejudges/{number}/drop", FORMS, rejudge),
]

CALLERS = [None, "ada", "bob", "wilma", "root"]


def routes(world: World, *, heads: bool = False) -> set[tuple[str, str]]:
    """Method and path of every route of the application; with `heads`, also of HEAD requests."""
    found: set[tuple[str, str]] = set()
    for route in world.app.routes:
        contexts = getattr(route, "effective_route_contexts", None)
        everything: list[Any] = contexts() if contexts else [route]
        for one in everything:
            path = re.sub(r":\w+}", "}", one.path)
            for method in getattr(one, "methods", None) or {"GET"}:
                if heads or method != "HEAD":
                    found.add((method, path))
    return found


def test_the_table_has_every_route(world: World) -> None:
    assert routes(world) == {(row.method, row.path) for row in TABLE}


class TestTable:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(
            requests_per_minute=100_000,
            submissions_per_minute=10_000,
            failures_per_minute=10_000,
            max_in_flight=10_000,
            poll_s=0.02,
        )

    def call(
        self, world: World, client: httpx.Client, row: Access, *, prepare: bool = False
    ) -> httpx.Response:
        number = row.prepare(world) if prepare else 999
        names = {"number": str(number), "other": str(number)} | (row.fill or {})
        path = row.path.format(**names)
        path = "/static/grade.css" if path == "/static" else path
        return client.request(row.method, path, **row.call or {})

    def test_each_role_gets_what_the_table_says_and_no_secret(self, world: World) -> None:
        clients = {name: world.client(name) for name in CALLERS}
        secrets = {str(SEED), *world.tokens.values()}
        expected, found, leaks = {}, {}, []
        for index, row in enumerate(TABLE):
            key = f"{index} {row.method} {row.path}"
            expected[key] = row.statuses
            replies = {
                name: self.call(world, client, row, prepare=True)
                for name, client in clients.items()
            }
            found[key] = tuple(reply.status_code for reply in replies.values())
            for name, reply in replies.items():
                shown = reply.text + str(reply.headers)
                if any(secret in shown for secret in secrets):
                    leaks.append((row, name))
                if name not in ("ada", "root") and KERNEL.decode().splitlines()[1] in shown:
                    leaks.append((row, name))
        assert found == expected
        assert leaks == []

    def test_a_bad_token_opens_nothing(self, world: World) -> None:
        client = world.client(token="grade_" + "x" * 43)
        found = {row.path: self.call(world, client, row).status_code for row in TABLE}
        assert set(found.values()) == {401}

    def test_a_banned_user_gets_the_reason_everywhere(self, world: World) -> None:
        world.tokens["mallory"] = world.services.accounts.add_user("mallory")
        world.services.admin.ban("mallory", "sold the answers", "root")
        client = world.client("mallory")
        for row in TABLE:
            reply = self.call(world, client, row)
            assert reply.status_code == 403, row
            assert "sold the answers" in reply.json()["error"]["message"]

    def test_every_answer_has_the_headers(self, world: World) -> None:
        for row in TABLE:
            for name in (None, "root"):
                headers = self.call(world, world.client(name), row).headers
                policy = headers["Content-Security-Policy"]
                assert "default-src 'self'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert headers["X-Content-Type-Options"] == "nosniff"
                assert headers["Referrer-Policy"] == "same-origin"
                assert "server" not in headers

    def test_every_error_of_the_api_has_one_form(self, world: World) -> None:
        for row in TABLE:
            if row.path.startswith(API):
                reply = self.call(world, world.client(), row)
                if reply.is_error:
                    error = reply.json()["error"]
                    assert set(error) == {"code", "message"}
                    assert "\n" not in error["message"]


def test_unknown_paths(world: World) -> None:
    root = world.client("root")
    for path in ("/api/v1/nowhere", "/api/v1/submissions/1/x", "/api/v2/me"):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            reply = root.request(method, path)
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "not_found"


def test_a_wrong_method(world: World) -> None:
    reply = world.client("root").put("/api/v1/submissions")
    assert reply.status_code == 405
    assert reply.json()["error"]["code"] == "wrong_method"


# Tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic YWRhOnB3",
        "grade_x",
        "Bearer " + "x" * 5000,
        b"Bearer \xff\xfe",
        "Bearer ' OR 1=1 --",
        "Bearer \x00",
    ],
)
def test_malformed_tokens_are_refused(world: World, authorization: str | bytes) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(world.url).port or 0)) as raw:
        line = authorization.encode() if isinstance(authorization, str) else authorization
        raw.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: " + line + b"\r\n\r\n")
        raw.settimeout(PATIENCE_S)
        assert raw.recv(12)[-3:] in (b"401", b"400")


class TestGuessing:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(failures_per_minute=3)

    def test_guesses_are_throttled(self, world: World) -> None:
        guesses = [world.client(token=f"guess{n}") for n in range(4)]
        assert [one.get("/api/v1/me").status_code for one in guesses[:3]] == [401] * 3
        reply = guesses[3].get("/api/v1/me")
        assert reply.status_code == 429
        assert 0 < int(reply.headers["Retry-After"]) <= 60

    def test_a_valid_token_is_let_in_beside_guesses(self, world: World) -> None:
        for n in range(10):
            world.client(token=f"guess{n}").get("/api/v1/me")
            for name in ("ada", "wilma"):
                assert world.client(name).get("/api/v1/me").status_code == 200
        assert world.client(token="guess").get("/api/v1/me").status_code == 429
        cookie = {"Cookie": f"grade_session={session(world, 'bob')}"}
        assert world.client().get("/api/v1/me", headers=cookie).json()["name"] == "bob"
        assert world.client().get("/api/v1/problems").status_code == 200

    def test_a_wrong_token_costs_one_query_at_most(self, world: World) -> None:
        def api(token: str) -> httpx.Response:
            return world.client(token=token).get("/api/v1/me")

        def form(token: str) -> httpx.Response:
            return world.client().post("/login", data={"token": token})

        for call in (api, form):
            for n in range(5):
                token = f"guess{n} {call.__name__}"
                with statements(world) as seen:
                    call(token)
                assert [("FROM tokens" in one) for one in seen if one != "BEGIN"] == [True]
                with statements(world) as seen:
                    call(token)
                assert seen == []

    def test_cookies_are_throttled_too(self, world: World) -> None:
        for n in range(3):
            reply = world.client().get("/api/v1/me", headers={"Cookie": f"grade_session=guess{n}"})
            assert reply.status_code == 401
            assert "grade_session=;" in reply.headers["Set-Cookie"]
        cookie = {"Cookie": "grade_session=guess"}
        reply = world.client().get("/", headers=cookie)
        assert reply.status_code == 429
        # The browser drops the cookie, and may read on without one.
        assert "grade_session=;" in reply.headers["Set-Cookie"]
        assert world.client().get("/").status_code == 200

    def test_the_login_page_is_throttled_too(self, world: World) -> None:
        for n in range(3):
            reply = world.client().post("/login", data={"token": f"guess{n}"})
            assert reply.status_code == 401
        assert world.client().post("/login", data={"token": "guess"}).status_code == 429
        right = {"token": world.tokens["ada"]}
        assert world.client().post("/login", data=right).status_code == 303

    def test_a_banned_user_gets_the_reason_and_is_not_throttled(self, world: World) -> None:
        opened = [session(world, "ada") for _ in range(5)]
        world.services.admin.ban("ada", "sold the answers", "root")
        for cookie in opened:
            headers = {"Cookie": f"grade_session={cookie}", "Accept": "text/html"}
            reply = world.client().get("/", headers=headers)
            assert reply.status_code == 403
            assert "You are banned: sold the answers." in reply.text
            assert "grade_session=;" in reply.headers["Set-Cookie"]
        for _ in range(5):
            reply = world.client().post("/login", data={"token": world.tokens["ada"]})
            assert reply.status_code == 403
            assert "sold the answers" in reply.text
        assert world.client("bob").get("/api/v1/me").status_code == 200

    def test_a_client_with_a_revoked_token_does_not_lock_out_others(self, world: World) -> None:
        old = world.client(token=world.services.accounts.new_token("wilma"))
        world.services.accounts.revoke(world.services.accounts.tokens("wilma")[-1].id)
        for _ in range(10):
            assert old.get("/api/v1/me").status_code == 401
        assert world.client("ada").get("/api/v1/me").status_code == 200


class TestFlood:
    """Requests of workers are not counted, so only look-ups in vain limit guesses there."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(requests_per_minute=30)

    def test_lookups_at_the_addresses_of_workers_are_limited(self, world: World) -> None:
        def claim(client: httpx.Client) -> int:
            wish = {"worker": "w", "problems": {}}
            return client.post("/api/v1/work/claim", json=wish).status_code

        wilma = world.client("wilma")
        assert claim(wilma) == 204
        with statements(world) as seen:
            for n in range(50):
                assert claim(world.client(token=f"guess{n}")) in (401, 429)
        assert sum("FROM tokens" in one for one in seen) == 30
        assert claim(wilma) == 204


class TestRates:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(requests_per_minute=30, submissions_per_minute=2, max_in_flight=100)

    def test_of_an_address(self, world: World) -> None:
        client = world.client()
        statuses = [client.get("/healthz").status_code for _ in range(31)]
        assert statuses == [200] * 30 + [429]

    def test_a_host_of_many_gpus_is_not_slowed_down(self, world: World) -> None:
        def claim(name: str) -> int:
            wish = {"worker": "w", "problems": {}}
            return world.client(name).post("/api/v1/work/claim", json=wish).status_code

        assert [claim("wilma") for _ in range(40)] == [204] * 40
        assert [claim("ada") for _ in range(31)] == [403] * 30 + [429]
        assert claim("wilma") == 204
        assert world.client("wilma").get("/api/v1/me").status_code == 429

    @pytest.mark.parametrize("who", ["banned", "stranger"])
    def test_who_is_let_in_nowhere_is_counted_everywhere(self, world: World, who: str) -> None:
        token = world.services.accounts.add_user("mallory", "worker")
        world.services.admin.ban("mallory", "forged results", "root")
        client = world.client(token=token if who == "banned" else "guess")
        statuses = [client.post("/api/v1/work/claim", json={}).status_code for _ in range(31)]
        assert statuses == [403 if who == "banned" else 401] * 30 + [429]

    def test_of_a_user(self, world: World) -> None:
        assert [world.submit("ada").status_code for _ in range(2)] == [202, 202]
        reply = world.submit("ada")
        assert reply.status_code == 429
        assert reply.headers["Retry-After"]
        assert world.submit("bob").status_code == 202

    def test_a_refused_submission_costs_nothing(self, world: World) -> None:
        for _ in range(3):
            assert world.submit("ada", file="kernel.txt").status_code == 415
            assert world.submit("ada", problem="nothing").status_code == 404
        assert [world.submit("ada").status_code for _ in range(3)] == [202, 202, 429]


# Browsers ----------------------------------------------------------------------------------------


def session(world: World, name: str) -> str:
    opened = world.services.accounts.open_session(world.tokens[name])
    assert isinstance(opened, str)
    return opened


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[", None]
)
def test_another_site_cannot_use_a_session(world: World, origin: str | None) -> None:
    headers = {"Cookie": f"grade_session={session(world, 'ada')}"}
    headers |= {"Origin": origin} if origin else {}
    reply = world.client().post("/api/v1/submissions", headers=headers, **FORM)  # type: ignore[arg-type]
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "cross_site"
    assert world.services.ledger.queue() == []


def test_our_own_pages_can(world: World) -> None:
    headers = {"Cookie": f"grade_session={session(world, 'ada')}", "Origin": world.url}
    reply = world.client().post("/api/v1/submissions", headers=headers, **FORM)  # type: ignore[arg-type]
    assert reply.status_code == 202


def test_a_session_ends_with_its_token(world: World) -> None:
    headers = {"Cookie": f"grade_session={session(world, 'ada')}"}
    assert world.client().get("/api/v1/me", headers=headers).status_code == 200
    world.services.accounts.revoke("ada")
    assert world.client().get("/api/v1/me", headers=headers).status_code == 401


# Bodies ------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused(world: World) -> None:
    large = b"x" * (world.services.settings.body_bytes + 1)
    reply = world.submit("ada", content=large)
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "too_large"


def test_a_body_of_unknown_length_is_limited(world: World) -> None:
    def chunks() -> Any:
        for _ in range(200):
            yield b" " * 100_000

    headers = {"Content-Type": "application/json"}
    reply = world.client("root").post("/api/v1/admin/users", content=chunks(), headers=headers)
    assert reply.status_code == 413


@pytest.mark.parametrize(
    ("name", "path", "limit"),
    [
        ("ada", "/api/v1/work/1/finish", "small_body_bytes"),
        ("root", "/api/v1/admin/users", "small_body_bytes"),
        ("wilma", "/api/v1/work/1/finish", "report_bytes"),
    ],
)
def test_json_bodies_are_limited(world: World, name: str, path: str, limit: str) -> None:
    content = b'"' + b" " * getattr(world.services.settings, limit) + b'"'
    headers = {"Content-Type": "application/json"}
    reply = world.client(name).post(path, content=content, headers=headers)
    assert reply.status_code == 413
    reply = world.client(name).post(path, content=content[2:], headers=headers)
    assert reply.status_code == 422


def test_bodies_without_a_token_are_limited(world: World) -> None:
    reply = world.client().post("/login", content=b"x" * ((64 << 10) + 1))
    assert reply.status_code == 413


def test_a_source_over_the_problems_limit(world: World) -> None:
    limit = world.problem.spec.limits.source_bytes
    assert world.submit("ada", content=b"#" * (limit + 1)).status_code == 413
    assert world.submit("ada", content=b"#" * limit).status_code == 202


class TestSlow:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(body_s=0.5)

    def test_a_slow_body_is_cut_off(self, world: World) -> None:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", httpx.URL(world.url).port or 0)) as raw:
            raw.settimeout(PATIENCE_S)
            raw.sendall(
                b"POST /api/v1/submissions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
                b"Content-Type: multipart/form-data; boundary=b\r\n"
                b"Authorization: Bearer " + world.tokens["ada"].encode() + b"\r\n\r\n--b"
            )
            answer = raw.recv(4096)
            assert b" 408 " in answer
            assert b"too_slow" in answer
            while chunk := raw.recv(4096):
                answer += chunk
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("host", ["[", "[::1", "a<b>:x", "", "x:99999999", "\u00ff"])
def test_malformed_hosts_cause_no_500(world: World, host: str) -> None:
    for path in ("/problems/softmax", "/login"):
        with socket.create_connection(("127.0.0.1", httpx.URL(world.url).port or 0)) as raw:
            raw.settimeout(PATIENCE_S)
            text = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n"
            raw.sendall(text.encode("latin-1"))
            answer = raw.recv(65536)
            assert b" 500 " not in answer[:20]
            assert b"<b>" not in answer


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "99999999999999999999"])
def test_malformed_lengths_cause_no_500(world: World, length: str) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(world.url).port or 0)) as raw:
        raw.settimeout(PATIENCE_S)
        raw.sendall(f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        raw.shutdown(socket.SHUT_WR)
        assert b" 500 " not in raw.recv(4096)


# Text --------------------------------------------------------------------------------------------

HOSTILE = [
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "softmax/..;/admin",
    "softmax%00",
    "softmax' OR '1'='1",
    "softmax; DROP TABLE results",
    "\u202esoftmax",
    "%ff%fe",
    "x" * 3000,
]


PATHS = [
    "/api/v1/problems/{}",
    "/api/v1/leaderboards/{}",
    "/api/v1/submissions/{}",
    "/api/v1/admin/boards/{}",
    "/api/v1/admin/users/{}/tokens",
    "/static/{}",
    "/problems/{}",
    "/leaderboards/{}",
    "/submissions/{}",
    "/users/{}",
]


@pytest.mark.parametrize("path", PATHS)
def test_hostile_names_are_refused(world: World, path: str) -> None:
    root = world.client("root")
    for text in HOSTILE:
        reply = root.get(path.format(text))
        assert reply.status_code in (400, 404, 405, 422), f"{text}: {reply.text}"
        assert "root:x:" not in reply.text


def test_a_file_name_has_no_path(world: World) -> None:
    for name in ("../../x.py", "/etc/cron.d/x.py", "..\\..\\x.py", 'a"b\r\nX: y.py', "\u202ex.py"):
        number = world.submitted("ada", file=name)
        job = world.services.ledger.job(number)
        assert job is not None
        assert "/" not in job.name.replace("\\u202e", "")
        assert job.name.isprintable()
        reply = world.client("ada").get(f"/api/v1/submissions/{number}/source")
        disposition = f'attachment; filename="submission-{number}.py"'
        assert reply.headers["Content-Disposition"] == disposition
        assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert world.client("ada").delete(f"/api/v1/submissions/{number}").status_code == 204


def test_malformed_numbers(world: World) -> None:
    root = world.client("root")
    for number in ("0", "-1", "2147483648", "9" * 30, "9" * 5000, "1.5", "x", "1e3", "%20"):
        for path in ("submissions/{}", "submissions/{}/source", "submissions/{}/events"):
            reply = root.get("/api/v1/" + path.format(number))
            assert reply.status_code in (404, 422)
        assert root.get(f"/api/v1/submissions?before={number}").status_code in (200, 422)
        assert root.delete(f"/api/v1/admin/submissions/{number}").status_code in (404, 409, 422)


def test_a_gpu_type_that_does_not_exist(world: World) -> None:
    reply = world.submit("ada", gpu="B200")
    assert reply.status_code == 422
    assert H100 not in reply.text
