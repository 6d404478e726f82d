from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from grader.judge import Progress
from grader.server.http.auth import COOKIE
from grader.server.services.admin_service import BoardSettings
from grader.server.settings import Settings
from tests.server.conftest import World
from tests.waiting import PATIENCE_S


def events(reply: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and data of each event of a stream."""
    name = ""
    for line in reply.iter_lines():
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            yield name, json.loads(line.removeprefix("data:"))


def test_a_stream_has_each_change_and_ends_with_done(world: World) -> None:
    number = world.submitted("ada")
    with world.client("ada").stream("GET", f"/api/v1/submissions/{number}/events") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        stream = events(reply)
        assert next(stream)[1] == {"id": number, "state": "queued", "position": 1, "progress": None}
        lease = world.lease()
        between = {"id": number, "state": "leased", "position": None, "progress": None}
        assert next(data for _, data in stream if data != between)["state"] == "running"
        step = Progress("test", "tiny", 0, 2)
        world.services.ledger.heartbeat(lease, 60, step)
        name, data = next(stream)
        assert (name, data["progress"]["case"]) == ("state", "tiny")
        world.services.ledger.finish(lease, world.report(lease))
        assert list(stream) == [
            (
                "done",
                {
                    "id": number,
                    "state": "done",
                    "verdict": "accepted",
                    "reason": "all 2 cases passed",
                    "score_us": 50.0,
                    "rank": 1,
                },
            )
        ]


def test_a_stream_of_a_done_submission_has_only_done(world: World) -> None:
    number = world.graded("ada")
    reply = world.client("ada").get(f"/api/v1/submissions/{number}/events")
    assert [name for name, _ in events(reply)] == ["done"]


def test_cancelling_ends_the_stream(world: World) -> None:
    number = world.submitted("ada")
    assert world.client("ada").delete(f"/api/v1/submissions/{number}").status_code == 204
    reply = world.client("ada").get(f"/api/v1/submissions/{number}/events")
    [(name, data)] = events(reply)
    assert (name, data["state"], data["verdict"]) == ("done", "cancelled", None)


def test_one_poller_serves_all_listeners_and_stops_with_the_last(world: World) -> None:
    number = world.submitted("ada")
    job_events = world.services.events
    ended: list[str] = []

    def listen() -> None:
        reply = world.client("ada").get(f"/api/v1/submissions/{number}/events")
        ended.extend(name for name, _ in events(reply) if name == "done")

    threads = [threading.Thread(target=listen) for _ in range(5)]
    for thread in threads:
        thread.start()
    while job_events.listeners < 5:
        pass
    assert job_events._task is not None  # one poller for all
    world.grade()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == ["done"] * 5
    while job_events.listeners or job_events._task:
        pass


def test_a_closed_stream_is_removed(world: World) -> None:
    number = world.submitted("ada")
    job_events = world.services.events
    with world.client("ada").stream("GET", f"/api/v1/submissions/{number}/events") as reply:
        stream = events(reply)
        next(stream)
        assert job_events.listeners == 1
    while job_events.listeners or job_events._task:
        pass


def test_hiding_the_board_ends_the_stream(world: World, caplog: pytest.LogCaptureFixture) -> None:
    number = world.submitted("ada")
    address = f"/api/v1/submissions/{number}/events"
    with world.client("bob").stream("GET", address) as reply:
        stream = events(reply)
        assert next(stream)[1]["state"] == "queued"
        world.services.admin.set_board("softmax", BoardSettings(hidden=True), "root")
        world.grade()
        assert [data for _, data in stream] == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("how", ["ban", "revoke", "log out"])
def test_losing_access_ends_the_stream(world: World, how: str) -> None:
    number = world.submitted("bob")
    accounts = world.services.accounts
    session = accounts.open_session(world.tokens["ada"])
    assert isinstance(session, str)
    client = world.client() if how == "log out" else world.client("ada")
    if how == "log out":
        client.cookies.set(COOKIE, session)
    with client.stream("GET", f"/api/v1/submissions/{number}/events") as reply:
        stream = events(reply)
        assert next(stream)[1]["state"] == "queued"
        if how == "ban":
            world.services.admin.ban("ada", "sold the answers", "root")
        elif how == "revoke":
            accounts.revoke("ada")
        else:
            accounts.close_session(session)
        world.lease()
        assert list(stream) == []


def test_hidden_progress_sends_no_event(world: World) -> None:
    """The number of events would give away the progress."""
    deadline = world.clock() + timedelta(days=1)
    world.services.admin.set_board("softmax", BoardSettings(deadline=deadline), "root")
    number = world.submitted("ada")
    lease = world.lease()
    address = f"/api/v1/submissions/{number}/events"
    mine, others = world.client("ada"), world.client("bob")
    with mine.stream("GET", address) as own, others.stream("GET", address) as other:
        own_events, other_events = events(own), events(other)
        assert next(other_events)[1]["state"] == next(own_events)[1]["state"] == "running"
        for index in range(3):
            world.services.ledger.heartbeat(lease, 60, Progress("benchmark", "wide", index, 3))
            assert next(own_events)[1]["progress"]["index"] == index
        world.services.ledger.finish(lease, world.report(lease))
        assert [name for name, _ in other_events] == ["done"]


@pytest.mark.parametrize("limits", [{"listeners": 1}, {"listeners_per_address": 1}])
class TestFull:
    @pytest.fixture
    def settings(self, limits: dict[str, Any]) -> Settings:
        return Settings(**limits, poll_s=0.02)

    def test_one_stream_too_many_is_refused(self, world: World) -> None:
        number = world.submitted("ada")
        address = f"/api/v1/submissions/{number}/events"
        with world.client("ada").stream("GET", address) as reply:
            stream = events(reply)
            next(stream)
            refused = world.client("ada").get(address)
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
            assert refused.json()["error"]["code"] == "too_many_listeners"
        while world.services.events.listeners:
            pass
        with world.client("ada").stream("GET", address) as reply:
            assert reply.status_code == 200


def test_shutdown_ends_the_streams(world: World) -> None:
    number = world.submitted("ada")
    with world.client("ada").stream("GET", f"/api/v1/submissions/{number}/events") as reply:
        stream = events(reply)
        next(stream)
        world.services.events.close()
        assert list(stream) == []
