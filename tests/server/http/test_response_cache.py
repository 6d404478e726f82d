"""Answers that are kept for everyone: they are right, they are few looks at the database, and
nobody gets another's.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from grader.board import BoardError
from grader.server.http.etag import Answer, share
from grader.server.http.response_cache import AGE_S, MOST, Front
from grader.server.services.admin_service import BoardSettings
from grader.server.services.standings import Race
from tests.server.conftest import H100, World
from tests.server.site import Site
from tests.server.site import site as site
from tests.waiting import PATIENCE_S


class Desk:
    """An application and its database: one number, which every page shows."""

    def __init__(self) -> None:
        self.number = 1
        self.time_s = 0.0
        self.looks = 0
        self.made: list[str] = []
        self.away = False
        self.look_may_end = threading.Event()
        self.look_may_end.set()
        self.front = Front(self.answer, self.look, lambda: self.time_s)

    def look(self) -> object:
        """What Front asks the database."""
        self.looks += 1
        seen = self.number
        assert self.look_may_end.wait(PATIENCE_S)
        if self.away:
            raise BoardError("away")
        return seen

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application behind it."""
        request = Request(scope)
        path = request.url.path
        self.made.append(path)
        await asyncio.sleep(0.01)
        content = f"{path} {self.number} {request.headers.get('host')}".encode()
        reply = Answer(content, "text/plain")
        if path == "/gone" and self.number > 1:
            await PlainTextResponse("gone", 404)(scope, receive, send)
            return
        if path != "/own":
            share(request, reply)
        scope["route"] = "the route"
        await reply.to(request)(scope, receive, send)

    async def get(
        self,
        path: str = "/",
        method: str = "GET",
        caller: object = None,
        headers: dict[str, str] | None = None,
        send: Callable[[Message], Any] | None = None,
    ) -> tuple[int, str, Any]:
        """Status, body, and the route that the log will name."""
        told = {"host": "here"} | (headers or {})
        scope: Scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in told.items()],
            "state": {"caller": caller},
        }
        found: list[Message] = []

        async def sending(message: Message) -> None:
            if send is not None:
                await send(message)
            found.append(message)

        await self.front(scope, _nothing, sending)
        body = b"".join(message.get("body", b"") for message in found)
        return found[0]["status"], body.decode(), scope.get("route")


async def _nothing() -> Message:
    raise AssertionError("no page reads a body")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def run(what: Any) -> Any:
    return asyncio.run(asyncio.wait_for(what, 20))


def test_what_has_not_changed_is_made_no_more(desk: Desk) -> None:
    async def main() -> None:
        for _ in range(5):
            assert await desk.get() == (200, "/ 1 here", "the route")

    run(main())
    assert len(desk.made) == 2, "once, and once after a look"


def test_a_change_is_seen_by_the_next_one_who_asks(desk: Desk) -> None:
    async def main() -> None:
        for number in range(1, 6):
            desk.number = number
            for _ in range(3):
                assert (await desk.get())[1] == f"/ {number} here"

    run(main())
    assert len(desk.made) == 6


def test_who_asks_during_a_look_gets_the_one_after(desk: Desk) -> None:
    async def main() -> None:
        await desk.get()
        await desk.get()
        desk.look_may_end.clear()
        before = asyncio.create_task(desk.get())
        while desk.looks < 3:
            await asyncio.sleep(0.001)
        desk.number = 2  # the look that runs has seen 1 already
        after = [asyncio.create_task(desk.get()) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert desk.looks == 3
        desk.look_may_end.set()
        assert (await before)[1] == "/ 1 here"
        assert {one[1] for one in await asyncio.gather(*after)} == {"/ 2 here"}

    run(main())
    assert len(desk.made) == 3, "twenty who wait for a change are one reader"
    assert desk.looks <= 6


def test_it_grows_old(desk: Desk) -> None:
    async def main() -> None:
        for _ in range(3):
            await desk.get()
        desk.time_s += AGE_S
        await desk.get()

    run(main())
    assert len(desk.made) == 3


def test_nobody_gets_what_is_anothers(desk: Desk) -> None:
    async def main() -> None:
        for _ in range(3):
            assert (await desk.get("/own"))[1] == "/own 1 here"
            assert (await desk.get())[1] == "/ 1 here"
            assert (await desk.get(headers={"host": "there"}))[1] == "/ 1 there"
        made = len(desk.made)
        await desk.get(caller="ada")
        await desk.get(method="POST")
        assert len(desk.made) == made + 2
        assert await desk.get(method="HEAD") == (200, "/ 1 here", "the route")
        assert len(desk.made) == made + 2
        desk.number = 2
        await desk.get(caller="ada")
        assert (await desk.get())[1] == "/ 2 here"

    run(main())
    assert desk.made.count("/own") == 3


def test_what_is_gone_is_kept_no_more(desk: Desk) -> None:
    async def main() -> None:
        for _ in range(3):
            assert (await desk.get("/gone"))[0] == 200
        desk.number = 2
        for _ in range(3):
            assert (await desk.get("/gone"))[:2] == (404, "gone")
        desk.number = 1
        assert (await desk.get("/gone"))[0] == 200

    run(main())


def test_one_who_reads_slowly_holds_up_nobody(desk: Desk) -> None:
    async def main() -> None:
        await desk.get()
        stuck = asyncio.Event()

        async def never(message: Message) -> None:
            stuck.set()
            await asyncio.Event().wait()

        slow = asyncio.create_task(desk.get(send=never))
        await stuck.wait()
        desk.number = 2
        assert (await desk.get())[1] == "/ 2 here"
        slow.cancel()

    run(main())


def test_without_the_database_the_application_answers(desk: Desk) -> None:
    async def main() -> None:
        for _ in range(3):
            await desk.get()
        made = len(desk.made)
        desk.away = True
        assert (await desk.get())[0] == 200
        assert len(desk.made) == made + 1
        desk.away = False
        assert (await desk.get())[1] == "/ 1 here"

    run(main())


def test_only_so_many_are_kept(desk: Desk) -> None:
    async def main() -> None:
        for number in range(3 * MOST):
            await desk.get(f"/{number}")

    run(main())
    assert len(desk.front._kept) == MOST


def test_what_is_put_out_while_it_is_looked_at_is_still_sent(desk: Desk) -> None:
    async def main() -> None:
        await desk.get()
        await desk.get()
        desk.look_may_end.clear()
        waiting = asyncio.create_task(desk.get())
        while desk.looks < 3:
            await asyncio.sleep(0.001)
        await asyncio.gather(*(desk.get(f"/{number}") for number in range(MOST)))
        desk.look_may_end.set()
        assert (await waiting)[:2] == (200, "/ 1 here")
        assert len(desk.front._kept) == MOST

    run(main())


def test_a_crowd_at_what_is_gone_asks_once_each(desk: Desk) -> None:
    async def main() -> None:
        for _ in range(2):
            await desk.get("/gone")
        desk.number, before = 2, len(desk.made)
        crowd = await asyncio.gather(*(desk.get("/gone") for _ in range(20)))
        assert {status for status, *_ in crowd} == {404}
        assert len(desk.made) - before <= 21

    run(main())


PATHS = ("/", "/leaderboards/softmax", "/problems/softmax", "/api/v1/leaderboards/softmax")


@pytest.mark.parametrize("path", PATHS)
def test_pages_and_the_api_are_right_at_once(world: World, path: str) -> None:
    client, office = world.client(), world.services.office

    def settled() -> str:
        """What is shown, which stays the same when it is asked for again."""
        seen = {
            answer.text if (answer := client.get(path)).status_code == 200 else "refused"
            for _ in range(3)
        }
        assert len(seen) == 1
        return seen.pop()

    world.graded("ada", score_us=30.0)
    seen = [settled()]
    number = world.graded("bob", score_us=20.0)
    seen.append(settled())
    deadline = world.services.now() + timedelta(minutes=1)
    office.set_board("softmax", BoardSettings(deadline=deadline), "root")
    seen.append(settled())
    world.clock.move(61)
    seen.append(settled())
    assert office.delete(number, "root") == "deleted"
    seen.append(settled())
    office.set_board("softmax", BoardSettings(hidden=True), "root")
    seen.append(settled())
    assert len(set(seen)) == len(seen), "each of these changes is seen"
    assert seen[-1] == "refused" if path != "/" else "softmax" not in seen[-1]


def test_a_submission_is_shown_as_it_is_now(world: World) -> None:
    client, office = world.client(), world.services.office
    number = world.graded("ada", score_us=30.0, score_ci_us=(29.0, 31.0))
    path = f"/submissions/{number}"

    def settled() -> tuple[int, str]:
        seen = {(answer := client.get(path)).status_code: answer.text for _ in range(3)}
        return seen.popitem()

    before = settled()
    world.graded("bob", score_us=20.0, score_ci_us=(19.0, 21.0))
    behind = settled()
    assert behind != before
    assert behind[0] == 200
    office.set_board("softmax", BoardSettings(publish_sources=True), "root")
    published = settled()[1]
    assert "out.copy_" in published
    assert "out.copy_" not in behind[1]
    office.set_board("softmax", BoardSettings(), "root")
    assert "out.copy_" not in settled()[1]
    waiting = world.submitted("bob")
    path = f"/submissions/{waiting}"
    assert "25.00" not in settled()[1]
    world.grade(score_us=25.0, score_ci_us=(24.0, 26.0))
    assert "25.00" in settled()[1]
    assert office.delete(waiting, "root") == "deleted"
    assert settled()[0] == 404


def test_a_page_tells_the_address_that_it_was_asked_at(site: Site) -> None:
    client = site.browser()
    for host in 3 * ("one.example", "two.example"):
        text = client.get("/problems/softmax", headers={"Host": host}).text
        assert f"http://{host}" in text
        assert ({"one.example", "two.example"} - {host}).pop() not in text


def test_a_crowd_in_the_real_server_is_one_reader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.graded("ada", score_us=30.0)
    path = "/leaderboards/softmax"
    world.client().get(path)

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE_S) as client:
            return list(await asyncio.gather(*(client.get(path) for _ in range(50))))

    reads = []
    ranked = world.services.shelf.ranked
    monkeypatch.setattr(
        type(world.services.shelf),
        "ranked",
        lambda shelf, digest: reads.append(digest) or ranked(digest),  # type: ignore[func-returns-value]
    )
    world.graded("bob", score_us=20.0)
    answers = run(crowd())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert "bob" in answers[0].text
    assert len(reads) == 1


@pytest.mark.parametrize("path", PATHS)
def test_strangers_see_a_deletion_at_once_while_an_admin_looks_too(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The admin's look makes the same parts of pages; strangers shall not have the old ones."""
    number = world.graded("bob", score_us=30.0, score_ci_us=(29.0, 31.0))
    world.graded("ada", score_us=40.0, score_ci_us=(39.0, 41.0))
    stranger, admin = world.client(), world.client("root")
    told = "bob" if path != "/problems/softmax" else "30.00"
    assert told in stranger.get(path).text
    assert told in stranger.get(path).text
    ranked = world.services.shelf.ranked

    def slowly(shelf: object, digest: str) -> list[Any]:
        found = ranked(digest)
        begun.set()
        time.sleep(0.2)
        return found

    begun = threading.Event()

    monkeypatch.setattr(type(world.services.shelf), "ranked", slowly)
    assert world.services.office.delete(number, "root") == "deleted"
    looking = threading.Thread(target=admin.get, args=(path,))
    looking.start()
    assert begun.wait(PATIENCE_S)
    assert told not in stranger.get(path).text
    looking.join()


def test_what_is_kept_holds_no_board_that_has_changed(site: Site) -> None:
    """A board of thousands is large, and pages are kept of many moments."""
    world, races = site.world, site.world.services.races
    digest = world.problem.digest
    client = site.browser()
    numbers = [site.marks["best"], site.marks["leader"]]
    old: list[weakref.ref[Race]] = []
    for number in numbers:
        site.set_board(note=f"note {number}")
        old += map(weakref.ref, races.now()(digest))
        for path in (*PATHS, f"/submissions/{number}"):
            client.get(path)
            client.get(path)
        world.graded("root", gpu=H100, score_us=1000.0 + number)
    races.now()(digest)
    gc.collect()
    assert old
    assert not [ref for ref in old if ref() is not None]


def test_front_is_where_it_must_be(world: World) -> None:
    """Behind the gate: a caller is known, requests are counted, and headers are ours."""
    client = world.client()
    answers = [client.get("/leaderboards/softmax") for _ in range(3)]
    assert all(answer.headers["x-frame-options"] == "DENY" for answer in answers)
    metrics = client.get("/metrics").text
    name = (
        'grade_http_request_seconds_count{method="GET",route="/leaderboards/{name}",status="200"}'
    )
    assert f"{name} 3.0" in metrics
