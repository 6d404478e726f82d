"""A full disk: what the server answers, and what becomes of results meanwhile."""

from __future__ import annotations

import errno
import hashlib
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import UploadFile

from grader.fleet import State
from grader.fleet.dispatch import Dispatcher
from grader.fleet.grading_engine import Task
from grader.fleet.remote_ledger import RemoteLedger
from grader.report import Report
from grader.server import app as app_module
from grader.server.http.auth import COOKIE
from grader.server.settings import Settings
from tests.db.full_disk import LARGE, Disk
from tests.db.full_disk import disk as disk
from tests.fleet.fake import FakeEngine
from tests.server.conftest import KERNEL, World
from tests.waiting import until

LARGE_KERNEL = KERNEL + b"#" * LARGE


@pytest.fixture
def database(disk: Disk) -> str:
    return disk.url


@pytest.fixture
def settings() -> Settings:
    return Settings(min_free_bytes=1 << 16, submissions_per_minute=2, poll_s=0.02)


def error(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_a_submission_is_refused_and_health_says_why(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.services.ledger._engine
    number = world.submitted("ada")
    assert world.client().get("/healthz").status_code == 200
    disk.fill(engine)
    for _ in range(3):  # more than the user may submit in a minute: refused ones do not count
        reply = world.submit("ada", content=LARGE_KERNEL)
        assert error(reply) == (507, "disk_full")
        assert int(reply.headers["Retry-After"]) > 0
        assert "disk is" in reply.json()["error"]["message"]
        assert "board.sqlite3" not in reply.text
    assert world.client("ada").get(f"/api/v1/submissions/{number}").json()["state"] == "queued"
    assert len(world.services.ledger.queue()) == 1
    reply = world.client().get("/healthz")
    assert error(reply) == (503, "disk_full")
    assert "make room on it" in reply.json()["error"]["message"]
    metrics = dict(
        line.rsplit(" ", 1)
        for line in world.client().get("/metrics").text.splitlines()
        if line[:1] != "#"
    )
    assert float(metrics["grade_database_bytes"]) > 0
    assert float(metrics["grade_source_bytes"]) == len(KERNEL)
    assert ("grade_disk_free_bytes" in metrics) == disk.url.startswith("sqlite")
    if disk.tells:
        assert float(metrics["grade_disk_free_bytes"]) < LARGE
    disk.empty(engine)
    assert world.submit("ada", content=LARGE_KERNEL).status_code == 202
    monkeypatch.setattr(app_module, "DISK_FULL_S", 0.0)
    assert world.client().get("/healthz").status_code == 200


def test_the_form_says_it_too(world: World, disk: Disk) -> None:
    session = world.services.accounts.open_session(world.tokens["ada"])
    disk.fill(world.services.ledger._engine)
    reply = world.client().post(
        "/submit",
        data={"problem": "softmax", "csrf": hashlib.sha256(f"csrf{session}".encode()).hexdigest()},
        files={"file": ("kernel.py", LARGE_KERNEL)},
        headers={"Accept": "text/html", "Origin": world.url, "Cookie": f"{COOKIE}={session}"},
    )
    assert reply.status_code == 507
    assert "disk is" in reply.text
    disk.empty(world.services.ledger._engine)


@pytest.mark.parametrize("via", ["local", "http"])
def test_results_are_delivered_once_there_is_room(
    world: World, disk: Disk, caplog: pytest.LogCaptureFixture, via: str
) -> None:
    """Of the server's own slots, and of a pulling worker."""
    ledger = world.services.ledger
    number = world.submitted("ada", content=LARGE_KERNEL)
    worker = RemoteLedger(world.url, world.tokens["wilma"])
    engine = FakeEngine()
    source = ledger if via == "local" else worker
    problems = {"softmax": world.problem.folder}
    dispatcher = Dispatcher(source, engine, problems, "host", tick_s=0.01)
    dispatcher.start()
    with closing(worker):
        try:
            task = engine.task()
            until(lambda: state_of(world, number) is State.RUNNING)
            disk.fill(ledger._engine)
            with caplog.at_level(logging.WARNING):
                engine.end(report_for(world, task))
                until(lambda: f"could not report on submission {number}" in caplog.text)
            assert state_of(world, number) is State.RUNNING
            disk.empty(ledger._engine)
            until(lambda: state_of(world, number) is State.DONE)
        finally:
            dispatcher.drain(0)
    job = ledger.job(number)
    assert job is not None
    assert (job.failures, job.deaths) == (0, 0)
    assert ledger.board.count("softmax") == 1
    assert not [record for record in caplog.records if record.exc_info]


def state_of(world: World, number: int) -> State:
    job = world.services.ledger.job(number)
    assert job is not None
    return job.state


def report_for(world: World, task: Task) -> Report:
    return world.make_report(
        problem_digest=task.digest,
        submission_sha256=hashlib.sha256(task.source).hexdigest(),
        submission_name=task.name,
    )


class TestFloor:
    @pytest.fixture
    def database(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/server.sqlite3"

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(min_free_bytes=1 << 60)

    def test_submissions_are_refused_before_the_disk_is_full(self, world: World) -> None:
        reply = world.submit("ada")
        assert error(reply) == (507, "disk_full")
        assert "nearly full, so it takes no submissions" in reply.json()["error"]["message"]
        assert world.services.ledger.queue() == []
        reply = world.client().get("/healthz")
        assert error(reply) == (503, "disk_full")
        assert "1,152,921,504,606,846,976 must be" in reply.json()["error"]["message"]


class TestTemporaryFiles:
    @pytest.fixture
    def database(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/server.sqlite3"

    def test_an_upload_that_cannot_be_spooled(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def write(_self: UploadFile, _data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(UploadFile, "write", write)
        assert error(world.submit("ada")) == (507, "disk_full")
