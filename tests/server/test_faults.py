"""Faults of the server: no secret and no traceback in the answer, 503 if the database is away; and
the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from grader.board import BoardError
from grader.fleet import Job
from grader.server.http import logs
from grader.server.services.job_events import JobEvents
from tests.server.api.test_events import events
from tests.server.conftest import World
from tests.waiting import until


class TestDatabase:
    def test_an_unavailable_database_is_answered_with_503(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: object) -> None:
            raise BoardError("the board at /srv/secret/place cannot be used: disk I/O error")

        for part, name in (
            (world.services.accounts, "users_of"),
            (world.services.submissions, "states"),
            (world.services.submissions, "summary"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(part, name, away)
                path = "/healthz" if name == "states" else "/api/v1/submissions/1"
                reply = world.client("ada").get(path)
                assert reply.status_code == 503
                assert reply.headers["Retry-After"]
                assert reply.json()["error"]["code"] == "unavailable"
                assert "secret" not in reply.text

    def test_event_streams_survive_it(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        number = world.submitted("ada")
        calls = []
        look = JobEvents._read

        def sometimes(job_events: JobEvents, numbers: set[int]) -> dict[int, Job | None]:
            calls.append(numbers)
            if len(calls) % 2:
                raise BoardError("locked")
            return look(job_events, numbers)

        monkeypatch.setattr(JobEvents, "_read", sometimes)
        with world.client("ada").stream("GET", f"/api/v1/submissions/{number}/events") as reply:
            stream = events(reply)
            assert next(stream)[1]["state"] == "queued"
            world.grade()
            assert [name for name, _ in stream][-1] == "done"


def test_an_exception_is_answered_without_its_text(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(world.services.submissions, "summary", broken)
    with caplog.at_level(logging.ERROR):
        reply = world.client("ada").get("/api/v1/submissions/1")
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal"
    assert "secret" not in reply.text
    assert "RuntimeError: secret" in caplog.text
    assert "default-src" in reply.headers["Content-Security-Policy"]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The log in JSON, during the test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    written = io.StringIO()
    logs.configure(written)
    yield written
    root.handlers[:] = before
    root.setLevel(level)


def test_a_record_is_one_line(stream: io.StringIO) -> None:
    log = logging.getLogger("test")
    log.info("two\nlines \x1b[31m \u202e %s", "x" * 10_000, extra={"path": "/a\n{b}"})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"].startswith("two\nlines \\x1b[31m \\u202e xxx")
    assert len(first["message"]) <= logs.LINE_CHARS
    assert (first["level"], first["logger"], first["path"]) == ("info", "test", "/a\n{b}")
    assert second["trace"].endswith("ValueError: why")


def test_a_request_is_logged_without_query_and_headers(world: World, stream: io.StringIO) -> None:
    client = world.client("ada")
    client.get("/api/v1/submissions?user=QUERY", headers={"X-Odd": "HEADER"})
    client.get("/api/v1/%1b[31m")
    # A request is logged after its reply is sent.
    until(lambda: stream.getvalue().count("\n") >= 2)
    text = stream.getvalue()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["path"], line["user"]) for line in lines] == [
        ("/api/v1/submissions", "ada"),
        ("/api/v1/\\x1b[31m", "ada"),
    ]
    for secret in ("QUERY", "HEADER", world.tokens["ada"]):
        assert secret not in text
