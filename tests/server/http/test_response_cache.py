"""Shared answers: they are up to date, cost few database reads, and leak nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from grader.board import BoardError
from grader.server.http import response_cache
from grader.server.http.etag import CacheableResponse, Regions, share
from grader.server.http.response_cache import MAX_AGE_S, MAX_ENTRIES, ResponseCache
from grader.server.pages import board_routes
from grader.server.services.access import list_submissions
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.standings import GpuLeaderboard
from tests.server.conftest import H100, World
from tests.server.site import Site
from tests.server.site import site as site
from tests.waiting import PATIENCE_S

ADA = User(1, "ada", "competitor")


class App:
    """An application and its database: one number, which every page shows."""

    def __init__(self) -> None:
        self.number = 1
        self.time_s = 0.0
        self.reads = 0
        self.made: list[str] = []
        self.is_away = False
        self.read_may_end = threading.Event()
        self.read_may_end.set()
        self.cache = ResponseCache(self.answer, {"boards": self.read_version}, lambda: self.time_s)

    def read_version(self) -> object:
        """The number, as the database has it when the read begins."""
        self.reads += 1
        version = self.number
        assert self.read_may_end.wait(PATIENCE_S)
        if self.is_away:
            raise BoardError("away")
        return version

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application behind the cache."""
        request = Request(scope)
        path = request.url.path
        self.made.append(path)
        await asyncio.sleep(0.01)
        content = f"{path} {self.number} {request.headers.get('host')}".encode()
        reply = CacheableResponse(content, "text/plain")
        if path == "/gone" and self.number > 1:
            await PlainTextResponse("gone", 404)(scope, receive, send)
            return
        if path != "/own":
            share(request, reply, regions=_no_regions if path == "/new" else None)
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
        """Status, body, and the route that the log would name."""
        all_headers = {"host": "here"} | (headers or {})
        scope: Scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in all_headers.items()],
            "state": {"caller": caller},
        }
        found: list[Message] = []

        async def sending(message: Message) -> None:
            if send is not None:
                await send(message)
            found.append(message)

        await self.cache(scope, _nothing, sending)
        body = b"".join(message.get("body", b"") for message in found)
        return found[0]["status"], body.decode(), scope.get("route")


def _no_regions(_request: Request) -> Regions:
    return {}


async def _nothing() -> Message:
    raise AssertionError("no page reads a body")


@pytest.fixture
def app() -> App:
    return App()


def run(what: Any) -> Any:
    return asyncio.run(asyncio.wait_for(what, 20))


def test_an_unchanged_answer_is_not_made_again(app: App) -> None:
    async def main() -> None:
        for _ in range(5):
            assert await app.get() == (200, "/ 1 here", "the route")

    run(main())
    assert len(app.made) == 2, "once without a version, and once with one"


def test_the_next_request_after_a_change_gets_it(app: App) -> None:
    async def main() -> None:
        for number in range(1, 6):
            app.number = number
            for _ in range(3):
                assert (await app.get())[1] == f"/ {number} here"

    run(main())
    assert len(app.made) == 6


def test_a_request_during_a_read_waits_for_the_next_read(app: App) -> None:
    async def main() -> None:
        await app.get()
        await app.get()
        app.read_may_end.clear()
        before = asyncio.create_task(app.get())
        while app.reads < 3:
            await asyncio.sleep(0.001)
        app.number = 2  # the running read has returned 1 already
        after = [asyncio.create_task(app.get()) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert app.reads == 3
        app.read_may_end.set()
        assert (await before)[1] == "/ 1 here"
        assert {one[1] for one in await asyncio.gather(*after)} == {"/ 2 here"}

    run(main())
    assert len(app.made) == 3, "twenty requests for a changed answer cost one"
    assert app.reads <= 6


def test_an_answer_expires(app: App) -> None:
    async def main() -> None:
        for _ in range(3):
            await app.get()
        app.time_s += MAX_AGE_S
        await app.get()

    run(main())
    assert len(app.made) == 3


def test_only_the_same_public_request_gets_a_kept_answer(app: App) -> None:
    async def main() -> None:
        for _ in range(3):
            assert (await app.get("/own"))[1] == "/own 1 here"
            assert (await app.get())[1] == "/ 1 here"
            assert (await app.get(headers={"host": "there"}))[1] == "/ 1 there"
        made = len(app.made)
        await app.get(caller=ADA)
        await app.get(method="POST")
        assert len(app.made) == made + 2
        assert await app.get(method="HEAD") == (200, "/ 1 here", "the route")
        assert len(app.made) == made + 2
        app.number = 2
        await app.get(caller=ADA)
        assert (await app.get())[1] == "/ 2 here"

    run(main())
    assert app.made.count("/own") == 3


def test_an_answer_that_is_gone_is_dropped(app: App) -> None:
    async def main() -> None:
        for _ in range(3):
            assert (await app.get("/gone"))[0] == 200
        app.number = 2
        for _ in range(3):
            assert (await app.get("/gone"))[:2] == (404, "gone")
        app.number = 1
        assert (await app.get("/gone"))[0] == 200

    run(main())


def test_a_slow_reader_does_not_block_others(app: App) -> None:
    async def main() -> None:
        await app.get()
        stuck = asyncio.Event()

        async def never(message: Message) -> None:
            stuck.set()
            await asyncio.Event().wait()

        slow = asyncio.create_task(app.get(send=never))
        await stuck.wait()
        app.number = 2
        assert (await app.get())[1] == "/ 2 here"
        slow.cancel()

    run(main())


def test_without_the_database_the_application_answers(app: App) -> None:
    async def main() -> None:
        for _ in range(3):
            await app.get()
        made = len(app.made)
        app.is_away = True
        assert (await app.get())[0] == 200
        assert len(app.made) == made + 1
        app.is_away = False
        assert (await app.get())[1] == "/ 1 here"

    run(main())


def test_the_number_of_entries_is_bounded(app: App) -> None:
    async def main() -> None:
        for number in range(3 * MAX_ENTRIES):
            await app.get(f"/{number}")

    run(main())
    assert len(app.cache._entries) == MAX_ENTRIES


def test_an_entry_that_is_evicted_during_a_read_is_still_sent(app: App) -> None:
    async def main() -> None:
        await app.get()
        await app.get()
        app.read_may_end.clear()
        waiting = asyncio.create_task(app.get())
        while app.reads < 3:
            await asyncio.sleep(0.001)
        await asyncio.gather(*(app.get(f"/{number}") for number in range(MAX_ENTRIES)))
        app.read_may_end.set()
        assert (await waiting)[:2] == (200, "/ 1 here")
        assert len(app.cache._entries) == MAX_ENTRIES

    run(main())


@pytest.mark.parametrize("caller", [None, ADA], ids=["anonymous", "signed in"])
def test_a_crowd_at_a_new_page_makes_it_twice(app: App, caller: User | None) -> None:
    async def main() -> None:
        crowd = await asyncio.gather(*(app.get("/new", caller=caller) for _ in range(20)))
        assert {(status, body) for status, body, _ in crowd} == {(200, "/new 1 here")}
        # Once for the first request, and once with the version that was read before.
        assert len(app.made) == 2

    run(main())


def test_a_slow_first_reader_does_not_block_others(app: App) -> None:
    async def main() -> None:
        stuck = asyncio.Event()

        async def never(message: Message) -> None:
            stuck.set()
            await asyncio.Event().wait()

        slow = asyncio.create_task(app.get(send=never))
        assert (await asyncio.wait_for(app.get(), PATIENCE_S / 2))[1] == "/ 1 here"
        assert stuck.is_set()
        slow.cancel()

    run(main())


def test_a_crowd_waits_for_no_first_request_that_fails(app: App) -> None:
    async def main() -> None:
        async def broken(message: Message) -> None:
            raise OSError("the reader left")

        first = asyncio.create_task(app.get("/own", send=broken))
        await asyncio.sleep(0)
        assert (await asyncio.wait_for(app.get("/own"), PATIENCE_S))[1] == "/own 1 here"
        with pytest.raises(OSError, match="left"):
            await first
        assert not app.cache._first

    run(main())


def test_a_crowd_at_a_missing_page_costs_one_call_each(app: App) -> None:
    async def main() -> None:
        for _ in range(2):
            await app.get("/gone")
        app.number, before = 2, len(app.made)
        crowd = await asyncio.gather(*(app.get("/gone") for _ in range(20)))
        assert {status for status, *_ in crowd} == {404}
        assert len(app.made) - before <= 21

    run(main())


PATHS = (
    "/",
    "/leaderboards/softmax",
    "/leaderboards/softmax?language=python",
    "/problems/softmax",
    "/api/v1/leaderboards/softmax",
)


@pytest.mark.parametrize("path", PATHS)
def test_pages_and_the_api_are_up_to_date_at_once(world: World, path: str) -> None:
    client, admin = world.client(), world.services.admin

    def settled() -> str:
        """The content, which is the same for repeated requests."""
        seen = {
            answer.text if (answer := client.get(path)).status_code == 200 else "refused"
            for _ in range(3)
        }
        assert len(seen) == 1
        return seen.pop()

    world.graded("ada", score_us=30.0)
    contents = [settled()]
    number = world.graded("bob", score_us=20.0)
    contents.append(settled())
    deadline = world.services.now() + timedelta(minutes=1)
    admin.set_board("softmax", BoardSettings(deadline=deadline), "root")
    contents.append(settled())
    world.clock.move(61)
    contents.append(settled())
    assert admin.delete(number, "root") == "deleted"
    contents.append(settled())
    admin.set_board("softmax", BoardSettings(hidden=True), "root")
    contents.append(settled())
    assert len(set(contents)) == len(contents), "each of these changes is visible"
    refused = contents[-1] == "refused"
    assert refused if path != "/" else "Softmax over rows" not in contents[-1]


def test_what_readers_type_is_kept_in_no_cache(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the pages of one known filter are shared."""
    put: list[Any] = []
    keep = ResponseCache._put

    def noted(cache: ResponseCache, key: Any, entry: Any) -> None:
        put.append(key[-1])
        keep(cache, key, entry)

    monkeypatch.setattr(ResponseCache, "_put", noted)
    client, fragments = world.client(), world.app.state.fragment_cache._entries
    client.get("/")
    before = len(fragments)
    for query in ("q=a", "x=1", "topic=x", "topic=fusion&x=1", "dtype=fp32&topic=fusion"):
        assert client.get(f"/?{query}").status_code == 200
    assert set(put) == {b""}
    assert len(fragments) - before == 1, "topic=fusion, beside what no filter is"
    for _ in range(3):
        client.get("/?topic=first+kernels")
    assert set(put) == {b"", b"topic=first+kernels"}


def test_a_submission_page_is_up_to_date(world: World) -> None:
    client, admin = world.client(), world.services.admin
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
    admin.set_board("softmax", BoardSettings(publish_sources=True), "root")
    published = settled()[1]
    assert "out.copy_" in published
    assert "out.copy_" not in behind[1]
    admin.set_board("softmax", BoardSettings(), "root")
    assert "out.copy_" not in settled()[1]
    waiting = world.submitted("bob")
    path = f"/submissions/{waiting}"
    assert "25.00" not in settled()[1]
    world.grade(score_us=25.0, score_ci_us=(24.0, 26.0))
    assert "25.00" in settled()[1]
    assert admin.delete(waiting, "root") == "deleted"
    assert settled()[0] == 404


def test_a_users_page_is_made_anew_for_that_users_submissions_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.graded("ada")
    made = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["user"])
        return list_submissions(*args, **kwargs)

    monkeypatch.setattr(board_routes, "list_submissions", counted)
    monkeypatch.setattr(response_cache, "MAX_AGE_S", 1e9)
    readers = [world.client(name) for name in (None, "bob")]

    def pages() -> set[int]:
        return {reader.get("/users/ada").text.count("/submissions/") for reader in readers}

    assert pages() == {2}
    pages()
    made.clear()
    number = world.submitted("bob")
    assert pages() == {2}
    assert made == []
    world.submitted("ada")
    assert pages() == {4}
    assert made == ["ada"]
    assert world.client("bob").delete(f"/api/v1/submissions/{number}").status_code == 204
    assert pages() == {4}
    assert made == ["ada"]
    world.grade(score_us=10.0)
    assert pages() == {4}
    assert made == ["ada", "ada"]


def test_a_page_contains_the_host_of_its_request(site: Site) -> None:
    client = site.browser()
    for host in 3 * ("one.example", "two.example"):
        text = client.get("/problems/softmax", headers={"Host": host}).text
        assert f"http://{host}" in text
        assert ({"one.example", "two.example"} - {host}).pop() not in text


def test_a_crowd_costs_one_read_of_the_leaderboard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.graded("ada", score_us=30.0)
    path = "/leaderboards/softmax"
    world.client().get(path)

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE_S) as client:
            return list(await asyncio.gather(*(client.get(path) for _ in range(50))))

    reads = []
    ranked = world.services.submissions.ranked
    monkeypatch.setattr(
        type(world.services.submissions),
        "ranked",
        lambda queries, digest, as_of: reads.append(digest) or ranked(digest, as_of),  # type: ignore[func-returns-value]
    )
    world.graded("bob", score_us=20.0)
    answers = run(crowd())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert "bob" in answers[0].text
    assert len(reads) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_deletion_is_visible_at_once_while_an_admin_loads_the_page(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The admin's request renders the same fragments; others must not get the old ones."""
    number = world.graded("bob", score_us=30.0, score_ci_us=(29.0, 31.0))
    world.graded("ada", score_us=40.0, score_ci_us=(39.0, 41.0))
    public, admin = world.client(), world.client("root")
    shown = "bob" if path != "/problems/softmax" else "30.00"
    assert shown in public.get(path).text
    assert shown in public.get(path).text
    ranked = world.services.submissions.ranked

    def slowly(queries: object, digest: str, as_of: datetime | None) -> list[Any]:
        found = ranked(digest, as_of)
        started.set()
        time.sleep(0.2)
        return found

    started = threading.Event()

    monkeypatch.setattr(type(world.services.submissions), "ranked", slowly)
    assert world.services.admin.delete(number, "root") == "deleted"
    loading = threading.Thread(target=admin.get, args=(path,))
    loading.start()
    assert started.wait(PATIENCE_S)
    assert shown not in public.get(path).text
    loading.join()


def test_kept_answers_do_not_keep_old_leaderboards_alive(site: Site) -> None:
    """A leaderboard of thousands is large, and many answers are kept."""
    world, leaderboards = site.world, site.world.services.standings
    digest = world.problem.digest
    client = site.browser()
    numbers = [site.marks["best"], site.marks["leader"]]
    old: list[weakref.ref[GpuLeaderboard]] = []
    for number in numbers:
        site.set_board(note=f"note {number}")
        old += map(weakref.ref, leaderboards.snapshot()(digest, None))
        for path in (*PATHS, f"/submissions/{number}"):
            client.get(path)
            client.get(path)
        world.graded("root", gpu=H100, score_us=1000.0 + number)
    leaderboards.snapshot()(digest, None)
    gc.collect()
    assert old
    assert not [ref for ref in old if ref() is not None]


def test_a_kept_answer_is_counted_and_has_the_headers(world: World) -> None:
    """The cache is behind the other middleware."""
    client = world.client()
    answers = [client.get("/leaderboards/softmax") for _ in range(3)]
    assert all(answer.headers["x-frame-options"] == "DENY" for answer in answers)
    metrics = client.get("/metrics").text
    name = (
        'grade_http_request_seconds_count{method="GET",route="/leaderboards/{name}",status="200"}'
    )
    assert f"{name} 3.0" in metrics
