"""The queue's page: the first jobs, one's own, the expected wait, and what others may see of it."""

from __future__ import annotations

import re
from datetime import timedelta

from grader.fleet import Worker
from grader.judge import Progress
from grader.server.pages.templates import STATIC
from grader.server.services.admin_service import BoardSettings
from grader.server.services.queue_snapshot import SHOWN_JOBS
from tests.server.conftest import H100, World, statements
from tests.server.examples import queue_submission
from tests.server.site import Site, words

PLACE = re.compile(r'<td class="num">(\d+)</td>')


def queue_jobs(world: World, count: int, users: int = 30) -> list[int]:
    """Queue jobs of users in turn. Returns their numbers."""
    ledger, problem = world.services.ledger, world.problem
    names = [f"user{number % users:02}" for number in range(count)]
    return [queue_submission(ledger, problem, name) for name in names]


def of(html: str, heading: str) -> str:
    """The part of a page below a heading."""
    return html.partition(f"<h2>{heading}</h2>")[2].partition("</table>")[0]


def test_a_long_queue_shows_the_first_jobs_and_ones_own(world: World) -> None:
    site = Site(world, {})
    queue_jobs(world, 70, users=70)
    own = queue_submission(world.services.ledger, world.problem, "ada")
    queue_jobs(world, 5)
    anonymous = site.page("/queue")
    assert PLACE.findall(anonymous) == [str(place) for place in range(1, SHOWN_JOBS + 1)]
    assert "0 being graded, 76 waiting." in words(anonymous)
    assert "26 more wait behind these." in words(anonymous)
    assert "Yours" not in anonymous
    assert f"/submissions/{own}" not in anonymous
    browser = site.browser("ada")
    for headers in ({}, {"HX-Request": "true"}):
        for _ in range(3):  # made, made for all, and kept
            page = browser.get("/queue", headers=headers).text
            assert PLACE.findall(of(page, "Yours")) == ["71"]
            assert f"/submissions/{own}" in of(page, "Yours")
            assert PLACE.findall(of(page, "Now")) == PLACE.findall(anonymous)
            assert ("<html" in page) == (not headers)


def test_a_kept_page_is_not_one_users_own(world: World) -> None:
    site = Site(world, {})
    for user in ("ada", "bob"):
        queue_submission(world.services.ledger, world.problem, user)
    people = ("ada", "bob", "root", None)
    browsers = {name: site.browser(name) for name in people}
    for _ in range(3):
        for name, browser in browsers.items():
            answer = browser.get("/queue")
            head = answer.text.partition("</header>")[0]
            seen = {other for other in ("ada", "bob", "root") if f'href="/users/{other}"' in head}
            assert seen == ({name} - {None})
            assert ("Log in" in head) == (name is None)
            own = of(answer.text, "Yours")
            assert own.count('href="/submissions/') == (name in ("ada", "bob"))
            fields = set(re.findall('name="csrf" value="([0-9a-f]+)"', answer.text))
            assert len(fields) == (name is not None)
            kept = answer.headers["cache-control"] != "no-store"
            assert kept == ("etag" in answer.headers) == (name is None)
    answers = [browsers[user].get("/queue") for user in ("ada", "bob")]
    tokens = [re.findall('name="csrf" value="([0-9a-f]+)"', one.text)[0] for one in answers]
    assert tokens[0] != tokens[1]
    reply = browsers["ada"].post("/logout", data={"csrf": tokens[0]}, headers={"Origin": world.url})
    assert reply.status_code == 303, "the field of a kept page is valid"


def test_the_page_is_up_to_date_at_once(world: World) -> None:
    site = Site(world, {})
    browsers = [site.browser(), site.browser("bob")]

    def waiting() -> set[str]:
        texts = [browser.get("/queue").text for browser in browsers for _ in range(3)]
        return {found[0] for text in texts if (found := re.findall(r"\d+ being .* waiting", text))}

    assert waiting() == {"0 being graded, 0 waiting"}
    first = queue_submission(world.services.ledger, world.problem, "ada")
    queue_submission(world.services.ledger, world.problem, "ada")
    assert waiting() == {"0 being graded, 2 waiting"}
    world.lease()
    assert waiting() == {"1 being graded, 1 waiting"}
    assert world.services.ledger.cancel(first, "ada")
    assert waiting() == {"0 being graded, 1 waiting"}
    world.grade()
    assert waiting() == {"0 being graded, 0 waiting"}


def test_jobs_of_hidden_boards_and_held_jobs_are_not_shown(world: World) -> None:
    site = Site(world, {})
    ledger = world.services.ledger
    held = queue_submission(ledger, world.problem, "ada")
    for _ in range(3):
        lease = world.lease()
        assert ledger.fail(lease, "broken")
        world.clock.move(61)
    number = queue_submission(ledger, world.problem, "ada")
    for name in ("ada", "bob", None, "root"):
        page = site.page("/queue", name)
        assert f"/submissions/{number}" in page
        assert f"/submissions/{held}" not in page
    world.services.admin.set_board("softmax", BoardSettings(hidden=True), "root")
    for name in ("ada", "bob", None):
        assert "/submissions/" not in site.page("/queue", name)
    assert f"/submissions/{number}" in site.page("/queue", "root")


def test_ones_own_progress_is_secret_before_the_deadline(world: World) -> None:
    deadline = world.clock() + timedelta(days=1)
    world.services.admin.set_board("softmax", BoardSettings(deadline=deadline), "root")
    site = Site(world, {})
    queue_submission(world.services.ledger, world.problem, "ada")
    world.services.ledger.heartbeat(
        world.lease(), 60, Progress("benchmark", "widest", 2, 5, "passed")
    )
    browsers = {name: site.browser(name) for name in ("ada", "bob", "root", None)}
    for _ in range(3):
        for name, browser in browsers.items():
            assert ("timing" in browser.get("/queue").text) == (name in ("ada", "root"))
    assert "timing" not in of(browsers["ada"].get("/queue").text, "Now")


def test_the_expected_wait(world: World) -> None:
    site, ledger = Site(world, {}), world.services.ledger
    for seconds in (50.0, 60.0, 900.0):
        world.graded("bob", stages_s={"total": seconds})
    queue_jobs(world, 5)
    queue_submission(ledger, world.problem, "ada")
    queue_submission(ledger, world.problem, "ada", gpu="A100")
    own = words(of_page := site.page("/queue", "ada"))
    assert len(re.findall("unknown", of(of_page, "Yours"))) == 2, "there is no worker"
    assert "no worker is connected" in own
    ledger.announce(Worker("w", "local", "cuda", H100, 2))
    world.clock.move(1)
    queue_jobs(world, 1)
    rows = of(site.page("/queue", "ada"), "Yours").split("<tr>")[2:]
    assert "about 3\N{NO-BREAK SPACE}min" in rows[0], "place 6 x 60 s / 2 slots"
    assert "unknown" in rows[1]
    assert "no worker has a GPU of the type A100" in rows[1]


def test_the_number_of_queries_does_not_depend_on_the_queue(world: World) -> None:
    client, counts = world.client("root"), []  # an admin's page is not kept
    for more in (3, 80):
        queue_jobs(world, more)
        client.get("/queue")
        with statements(world) as seen:
            assert client.get("/queue").status_code == 200
        counts.append(len(seen))
    assert counts[0] == counts[1]
    assert counts[0] <= 12


def test_a_kept_page_costs_its_version_and_the_caller(world: World) -> None:
    site = Site(world, {})
    queue_jobs(world, 80)
    queue_submission(world.services.ledger, world.problem, "ada")
    browser = site.browser("ada")
    for _ in range(3):
        browser.get("/queue")
    with statements(world) as seen:
        assert "Yours" in browser.get("/queue").text
    queries = [one for one in seen if not one.startswith("BEGIN")]
    assert len(queries) == 3, "the session; the boards with their version, and the queue's"


def test_the_page_refreshes_itself_slowly(world: World) -> None:
    page = Site(world, {}).page("/queue")
    (seconds,) = re.findall(r'data-refresh-s="(\d+)"', page)
    assert int(seconds) >= 10
    assert 'hx-trigger="refresh"' in page
    assert "every " not in page
    (seconds,) = re.findall(r'http-equiv="refresh" content="(\d+)"', page)
    assert int(seconds) >= 10
    script = (STATIC / "grade.js").read_text()
    assert "document.hidden" in script
    assert "Math.random" in script


def test_pages_of_others_are_shared_and_ones_own_is_not(world: World) -> None:
    number = world.graded("ada", score_us=30.0)
    deadline = world.clock() + timedelta(days=1)
    world.services.admin.set_board("softmax", BoardSettings(deadline=deadline), "root")
    site = Site(world, {})
    browsers = {name: site.browser(name) for name in ("bob", "ada", None)}
    for _ in range(3):
        for name, browser in browsers.items():
            assert ("Accepted" in browser.get("/users/ada").text) == (name == "ada")
            page = browser.get(f"/submissions/{number}").text
            assert ("out.copy_" in page) == (name == "ada")
            table = browser.get("/leaderboards/softmax").text
            assert ('<span class="tag">you</span>' in table) == (name == "ada")
            assert (">Log in</a>" in table) == (name is None)
