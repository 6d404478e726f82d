"""The admins' pages: what each shows and does, its CSRF check, and its entry in the audit log.

tests/server/test_access.py has each page's status for each role.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from grader.fleet.job import State, Worker
from grader.server.http.auth import COOKIE
from tests.server.conftest import H100, World
from tests.server.site import check, words


class Browser:
    """A browser without scripts in which a user is logged in, and which sends forms."""

    def __init__(self, world: World, name: str = "root") -> None:
        self.client = world.client()
        self.client.headers["Accept"] = "text/html"
        answer = self.client.post("/login", data={"token": world.tokens[name]})
        assert answer.status_code == 303

    def get(self, path: str) -> str:
        """The visible text of a page, after asserting that it is well-formed."""
        return words(self.html(path))

    def html(self, path: str) -> str:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        check(answer.text)
        return answer.text

    def post(self, path: str, csrf: str | None = None, **form: str) -> httpx.Response:
        """Send a form, with the session's CSRF token unless another is given."""
        own = hashlib.sha256(f"csrf{self.client.cookies[COOKIE]}".encode()).hexdigest()
        data = {"csrf": own if csrf is None else csrf, **form}
        origin = {"Origin": str(self.client.base_url).rstrip("/")}
        return self.client.post(path, data=data, headers=origin)

    def done(self, path: str, **form: str) -> str:
        """Send a form that succeeds. Returns the page that it leads to."""
        answer = self.post(path, **form)
        assert answer.status_code == 303, answer.text
        return self.get(answer.headers["location"])

    def refused(self, status: int, path: str, **form: str) -> str:
        """Send a form that is refused. Returns the page that says why."""
        answer = self.post(path, **form)
        assert answer.status_code == status, answer.text
        return words(answer.text)


@pytest.fixture
def root(world: World) -> Browser:
    return Browser(world)


def held(world: World) -> int:
    """The number of a submission whose grading is held."""
    number = world.submitted("ada")
    for _ in range(3):
        assert world.services.ledger.fail(world.lease(), "no GPU")
        world.clock.move(100)
    return number


def acts(world: World) -> list[tuple[str, str, str]]:
    """The audit log, newest first: actor, action, subject."""
    return [(act.actor, act.action, act.subject) for act in world.services.admin.audit()]


def test_only_admins_see_the_link(world: World, root: Browser) -> None:
    assert 'href="/admin"' in root.html("/")
    assert 'href="/admin"' not in Browser(world, "ada").client.get("/").text
    assert 'href="/admin"' not in world.client().get("/").text


def test_a_page_says_that_others_may_not_see_it(world: World) -> None:
    refusal = Browser(world, "ada").client.get("/admin")
    assert refusal.status_code == 403
    assert "Not allowed" in words(refusal.text)
    stranger = world.client().get("/admin", headers={"Accept": "text/html"})
    assert stranger.status_code == 401
    assert "Log in first" in words(stranger.text)


FORMS = [
    "submissions/1/release", "submissions/1/delete", "boards/softmax", "users",
    "users/ada/tokens", "users/ada/tokens/revoke", "users/ada/tokens/1/revoke",
    "users/ada/tokens/1/rotate", "users/ada/ban", "users/ada/unban", "users/ada/hold",
    "users/ada/unhold", "users/ada/identities", "users/ada/identities/1/unlink",
    "rejudges", "rejudges/1/apply", "rejudges/1/drop",
    "announcements", "announcements/1/end", "groups", "groups/ada/add", "groups/ada/remove",
    "groups/ada/delete", "invitations", "invitations/1/revoke", "teams/ada/add",
    "teams/ada/remove", "teams/ada/delete",
    "workers/drain", "workers/undrain", "problems/reload",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_form_without_the_sessions_csrf_token_changes_nothing(
    world: World, root: Browser, form: str
) -> None:
    held(world)
    before, other = acts(world), Browser(world, "ada")
    foreign = hashlib.sha256(f"csrf{other.client.cookies[COOKIE]}".encode()).hexdigest()
    for csrf in ("", "0" * 64, foreign):
        answer = root.post(f"/admin/{form}", csrf=csrf, name="eve", problem="softmax")
        assert answer.status_code == 403
        assert "from another site" in words(answer.text)
    elsewhere = {"Origin": "https://elsewhere.example"}
    assert root.client.post(f"/admin/{form}", headers=elsewhere).status_code == 403
    assert acts(world) == before


def test_every_form_is_in_the_csrf_test(world: World) -> None:
    from tests.server.test_access import TABLE

    posts = {row.path for row in TABLE if row.method == "POST" and row.path.startswith("/admin/")}
    shape = re.compile(r"softmax|ada|(?<=/)\d+")
    tested = {shape.sub("*", f"/admin/{form}") for form in FORMS}
    assert tested == {re.sub(r"\{\w+\}", "*", path) for path in posts}


# Held submissions and boards ----------------------------------------------------------------------


def test_a_held_grading_is_released_or_rejected(world: World, root: Browser) -> None:
    assert "Nothing is held" in root.get("/admin/held")
    number = held(world)
    shown = root.get("/admin/held")
    assert f"{number} ada softmax Grading: no GPU 3 failures" in shown
    assert "Held 1" in root.get("/admin")
    assert "Nothing is held" in root.done(f"/admin/submissions/{number}/release")
    assert world.services.ledger.job(number).state is State.QUEUED  # type: ignore[union-attr]
    assert "is not held" in root.refused(409, f"/admin/submissions/{number}/release")
    root.done(f"/admin/submissions/{number}/delete")
    assert world.services.ledger.job(number).state is State.CANCELLED  # type: ignore[union-attr]
    assert "deleted already" in root.refused(404, f"/admin/submissions/{number}/delete")
    kinds = [("root", "cancel", str(number)), ("root", "release", str(number))]
    assert acts(world)[:2] == kinds


def test_a_boards_settings_are_shown_and_set(world: World, root: Browser) -> None:
    form = {"deadline": "2031-05-01T21:59", "note": "Prizes at the <b>meeting</b>"}
    shown = root.done("/admin/boards/softmax", hidden="true", **form)
    assert "Softmax over rows" in shown
    board = world.services.admin.board("softmax")
    assert board.deadline == datetime(2031, 5, 1, 21, 59, tzinfo=UTC)
    assert (board.hidden, board.publish_sources, board.note) == (True, False, form["note"])
    page = root.html("/admin/boards/softmax")
    assert 'value="2031-05-01T21:59"' in page
    assert "&lt;b&gt;meeting" in page
    assert re.search(r'id="hidden"[^>]* checked', page)
    assert "1 May 2031, 21:59 UTC hidden private" in root.get("/admin/boards")
    root.done("/admin/boards/softmax", publish_sources="true")
    board = world.services.admin.board("softmax")
    assert (board.deadline, board.hidden, board.publish_sources) == (None, False, True)
    assert acts(world)[0] == ("root", "board set", "softmax")


@pytest.mark.parametrize("deadline", ["soon", "2031-05-01T21:59+02:00", "2031-13-01T00:00"])
def test_a_deadline_that_is_no_time_is_refused(world: World, root: Browser, deadline: str) -> None:
    text = root.refused(422, "/admin/boards/softmax", deadline=deadline)
    assert "Deadline: write " in text
    assert world.services.admin.board("softmax").deadline is None


def test_a_board_that_is_not_there_is_not_found(root: Browser) -> None:
    assert root.client.get("/admin/boards/nothing").status_code == 404
    assert "no such problem" in root.refused(404, "/admin/boards/nothing")


def test_a_boards_page_lists_the_versions_of_its_problem(world: World, root: Browser) -> None:
    world.graded("ada")
    assert "Version 1 , the current one" in root.get("/admin/boards/softmax")


def test_a_daily_limit_is_set_and_shown(world: World, root: Browser) -> None:
    root.done("/admin/boards/softmax", daily_limit="20")
    assert world.services.admin.board("softmax").daily_limit == 20
    assert 'name="daily_limit" value="20"' in root.html("/admin/boards/softmax")
    world.submitted("ada")
    ada = Browser(world, "ada")
    assert "Softmax over rows: 19 of 20 left" in ada.get("/submit")
    assert "20 left" not in root.get("/submit"), "admins have no limit"
    for page in ("/problems/softmax", "/leaderboards/softmax"):
        assert "At most 20 submissions a user within 24 hours" in ada.get(page)
    for wrong in ("0", "-1", "2.5", "1e3", "100001", "9" * 40):
        refused = root.refused(422, "/admin/boards/softmax", daily_limit=wrong)
        assert "daily_limit: write a whole number" in refused.casefold()
    root.done("/admin/boards/softmax")
    assert world.services.admin.board("softmax").daily_limit is None
    assert "left" not in ada.get("/submit")


def test_a_board_opens_for_everyone_at_its_time(world: World, root: Browser) -> None:
    number = world.graded("ada")
    others = [world.client(name) for name in (None, "ada")]
    opens = world.clock() + timedelta(hours=1)
    form = {"opens_at": opens.strftime("%Y-%m-%dT%H:%M:%S")}
    shown = root.done("/admin/boards/softmax", **form)
    assert "Softmax over rows" in shown
    assert f'value="{form["opens_at"].removesuffix(":00")}"' in root.html("/admin/boards/softmax")
    assert "none opens in" in root.get("/admin/boards")
    for _ in range(2):
        for client in others:
            assert client.get("/leaderboards/softmax").status_code == 404
            assert "Softmax over rows" not in client.get("/").text
        assert others[0].get(f"/submissions/{number}").status_code == 404
        assert world.submit("ada").status_code == 404
        assert "Only admins see this board" in root.client.get("/leaderboards/softmax").text
        world.clock.move(1700)
    world.clock.move(210)
    for client in others:
        assert client.get("/leaderboards/softmax").status_code == 200
        assert "Softmax over rows" in client.get("/").text
    assert world.submit("ada").status_code == 202
    assert "Only admins" not in root.client.get("/leaderboards/softmax").text


# Announcements ------------------------------------------------------------------------------------


def test_an_announcement_is_shown_until_its_moment(world: World, root: Browser) -> None:
    pages = ("/", "/problems/softmax", "/leaderboards/softmax")
    readers = [world.client(), Browser(world, "ada").client]

    def shown() -> set[bool]:
        found = [reader.get(page).text for reader in readers for page in pages for _ in range(2)]
        assert not any("<b>" in text for text in found)
        return {"Lunch at &lt;b&gt;noon" in text for text in found}

    assert shown() == {False}
    until = world.clock() + timedelta(hours=1)
    form = {"text": "Lunch at <b>noon", "until": until.strftime("%Y-%m-%dT%H:%M:%S")}
    assert "Lunch at <b>noon root" in root.done("/admin/announcements", **form)
    assert shown() == {True}
    world.clock.move(3599)
    assert shown() == {True}
    world.clock.move(2)
    assert shown() == {False}
    assert "over" in root.get("/admin/announcements").split()
    form["until"] = "2090-01-01T00:00"
    root.done("/admin/announcements", **form)
    assert shown() == {True}
    root.done("/admin/announcements/2/end")
    assert shown() == {False}
    assert "is not shown" in root.refused(409, "/admin/announcements/2/end")
    root.refused(409, f"/admin/announcements/{2**70}/end")
    assert acts(world)[0] == ("root", "announce end", "2")
    assert acts(world)[1] == ("root", "announce", "2")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"text": "x", "until": ""}, "until"),
        ({"text": "x", "until": "2001-01-01T00:00"}, "has not passed"),
        ({"text": "x", "until": "noon"}, "write a time in UTC"),
        ({"text": " ", "until": "2090-01-01T00:00"}, "has a text"),
        ({"text": "x" * 301, "until": "2090-01-01T00:00"}, "text"),
    ],
)
def test_an_announcement_without_text_or_end_is_refused(
    world: World, root: Browser, form: dict[str, str], reason: str
) -> None:
    assert reason in root.refused(422, "/admin/announcements", **form).casefold().replace(
        "utc", "UTC"
    )
    assert world.services.announcements.newest(9) == []


# Users and tokens ---------------------------------------------------------------------------------


def token_on(answer: httpx.Response) -> str:
    """The token that a page shows."""
    assert answer.status_code == 200, answer.text
    check(answer.text)
    (token,) = re.findall(r"grade_[\w-]{43}", answer.text)
    return str(token)


def test_a_token_is_shown_once_and_lets_its_user_in(world: World, root: Browser) -> None:
    answer = root.post("/admin/users", name="grace", role="worker")
    assert answer.headers["cache-control"] == "no-store"
    token = token_on(answer)
    assert world.client(token=token).get("/api/v1/me").json() == {
        "name": "grace",
        "role": "worker",
        "team": None,
    }
    for page in ("/admin/users", "/admin/users/grace", "/admin/audit"):
        assert token not in root.html(page)
    assert "grace worker active" in root.get("/admin/users")
    assert "is taken" in root.refused(409, "/admin/users", name="Grace")
    root.refused(422, "/admin/users", name="a/b")
    root.refused(422, "/admin/users", name="eve", role="emperor")
    assert acts(world)[0] == ("root", "user add", "grace")


def test_a_token_is_rotated_and_revoked(world: World, root: Browser) -> None:
    old = world.tokens["ada"]
    session = Browser(world, "ada")
    (first,) = world.services.accounts.tokens("ada")
    new = token_on(root.post(f"/admin/users/ada/tokens/{first.id}/rotate"))
    assert world.client(token=old).get("/api/v1/me").status_code == 401
    assert "Log in" in words(session.client.get("/").text)
    assert world.client(token=new).get("/api/v1/me").status_code == 200
    assert [token.label for token in world.services.accounts.tokens("ada")] == ["first", "first"]
    assert "or it is revoked" in root.refused(404, f"/admin/users/ada/tokens/{first.id}/rotate")
    more = token_on(root.post("/admin/users/ada/tokens", label="laptop"))
    number = world.services.accounts.tokens("ada")[-1].id
    assert "no token" in root.refused(404, f"/admin/users/bob/tokens/{number}/revoke")
    assert f"{number} laptop" in root.done(f"/admin/users/ada/tokens/{number}/revoke")
    assert world.client(token=more).get("/api/v1/me").status_code == 401
    root.done("/admin/users/ada/tokens/revoke")
    assert world.client(token=new).get("/api/v1/me").status_code == 401
    assert "last token of an admin" in root.refused(409, "/admin/users/root/tokens/revoke")
    assert [act[1] for act in acts(world)[:4]] == [
        "token revoke", "token revoke", "token new", "token rotate",
    ]  # fmt: skip


def test_a_user_is_banned_and_let_in_again(world: World, root: Browser) -> None:
    world.graded("ada")
    shown = root.done("/admin/users/ada/ban", reason="sold <the> answers")
    assert "sold <the> answers" in shown
    assert "ada competitor banned sold <the> answers" in root.get("/admin/users")
    assert world.client("ada").get("/api/v1/me").status_code == 403
    assert "Banned" not in root.done("/admin/users/ada/unban")
    assert world.client("ada").get("/api/v1/me").status_code == 200
    assert "is not banned" in root.refused(409, "/admin/users/ada/unban")
    assert "cannot ban yourself" in root.refused(409, "/admin/users/root/ban")
    root.refused(404, "/admin/users/eve/ban")
    assert root.client.get("/admin/users/eve").status_code == 404


def test_what_a_users_workers_graded_is_held(world: World, root: Browser) -> None:
    world.submitted("ada")
    lease = world.services.ledger.claim("wilma/host", lease_s=60, gpu=H100)
    assert lease is not None
    world.services.ledger.begin(lease)
    world.services.ledger.finish(lease, world.report(lease))
    assert "1 results are not held" in root.get("/admin/users/wilma")
    assert "0 results are not held" in root.done("/admin/users/wilma/hold")
    assert "Result: result of the worker wilma/host, held by root" in root.get("/admin/held")
    assert "1 results are not held" in root.done("/admin/users/wilma/unhold")


def test_a_name_with_special_characters_has_a_page(world: World, root: Browser) -> None:
    answer = root.post("/admin/users", name="a?b #%2F&c")
    token_on(answer)
    (address,) = set(re.findall(r'href="(/admin/users/[^"]+)"', answer.text))
    assert "a?b #%2F&c" in root.get(address)
    assert "Banned" in root.done(f"{address}/ban")


# Workers, rejudges, audit -------------------------------------------------------------------------


def test_workers_are_listed_with_their_state(world: World, root: Browser) -> None:
    assert "No worker was connected" in root.get("/admin/workers")
    world.services.ledger.announce(Worker("farm/old", "http", "cpu", None, 2))
    world.clock.move(3600)
    world.services.ledger.announce(Worker("farm/new", "http", "cuda", H100, 1))
    shown = root.get("/admin/workers")
    assert f"farm/new http {H100} connected {H100} 0 of 1" in shown
    assert "farm/old http CPU gone CPU 0 of 2" in shown


def test_a_worker_is_drained_and_undrained(world: World, root: Browser) -> None:
    world.services.ledger.announce(Worker("w", "http", "cuda", H100, 1))
    world.submitted("ada")
    world.submitted("bob")
    lease = world.lease()
    assert "w http" in root.done("/admin/workers/drain", name="w")
    assert "connected finishing, then drained" in root.get("/admin/workers")
    assert world.services.ledger.claim("w", lease_s=60, gpu=H100) is None
    assert "There is no worker now" in root.client.get("/queue").text
    assert "every connected worker is drained" in root.client.get("/queue").text
    assert "1 slots, 1 drained" in root.get("/admin")
    world.services.ledger.finish(lease, world.report(lease))
    assert "connected drained" in root.get("/admin/workers")
    assert "drained already" in root.refused(409, "/admin/workers/drain", name="w")
    assert world.submit("ada", gpu="H100").status_code == 422
    root.done("/admin/workers/undrain", name="w")
    assert world.services.ledger.claim("w", lease_s=60, gpu=H100) is not None
    assert acts(world)[:2] == [("root", "worker undrain", "w"), ("root", "worker drain", "w")]
    assert "no worker nobody" in root.refused(404, "/admin/workers/drain", name="nobody")


def test_a_rejudge_is_previewed_and_applied(world: World, root: Browser) -> None:
    number = world.graded("ada", score_us=50.0, score_ci_us=(49, 51))
    shown = root.done("/admin/rejudges", problem="softmax", reason="the clock")
    assert "1 are still to be graded" in shown
    assert "Apply: the" not in shown
    assert "still has 1 to grade" in root.refused(409, "/admin/rejudges/1/apply")
    world.grade(score_us=70.0, score_ci_us=(69, 71))
    shown = root.get("/admin/rejudges/1")
    assert f"{number} ada Accepted 50" in shown
    assert "Accepted 70" in shown
    assert "rank 1" in shown
    assert "State applied" in root.done("/admin/rejudges/1/apply")
    (standing,) = world.client().get("/api/v1/leaderboards/softmax").json()["entries"]
    assert standing["score_us"] == 70.0
    assert "is applied already" in root.refused(409, "/admin/rejudges/1/drop")
    assert "1 softmax applied 1 of 1 the clock" in root.get("/admin/rejudges")
    assert acts(world)[0] == ("root", "rejudge apply", "1")
    assert root.client.get("/admin/rejudges/9").status_code == 404


def test_a_rejudge_is_dropped(world: World, root: Browser) -> None:
    number = world.graded("ada")
    form = {"problem": "softmax", "which": "submissions", "submissions": f" {number}, "}
    root.done("/admin/rejudges", **form)
    assert "State dropped" in root.done("/admin/rejudges/1/drop")
    assert world.services.ledger.queue() == []


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"which": "submissions"}, "write 1 to 1000 numbers"),
        ({"which": "submissions", "submissions": "17 x"}, "write 1 to 1000 numbers"),
        ({"which": "submissions", "submissions": "9" * 5000}, "write 1 to 1000 numbers"),
        ({"which": "submissions", "submissions": "1 " * 1001}, "write 1 to 1000 numbers"),
        ({"which": "submissions", "submissions": "999"}, "no such submission"),
        ({"which": "worker", "worker": " "}, "name a worker"),
        ({"which": "worker", "worker": "farm"}, "is of a worker farm"),
        ({"which": "all"}, "which"),
    ],
)
def test_a_rejudge_of_nothing_is_refused(
    world: World, root: Browser, form: dict[str, str], reason: str
) -> None:
    world.graded("ada")
    text = root.refused(422, "/admin/rejudges", problem="softmax", **form)
    assert reason.casefold() in text.casefold()
    assert world.services.admin.rejudges.rejudges() == []


def test_the_audit_log_has_pages(world: World, root: Browser) -> None:
    for number in range(60):
        world.services.accounts.new_token("ada", f"label {number}", by="root")
    first = root.html("/admin/audit")
    assert "label 59" in first
    assert "label 9 " not in words(first)
    (before,) = re.findall(r'href="\?before=(\d+)"', first)
    assert "label 9" in root.get(f"/admin/audit?before={before}")
    assert root.client.get("/admin/audit?before=x").status_code == 422
