from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from grader.board import BoardError
from grader.db import engine as db
from grader.db.engine import DiskFull
from grader.db.tables import blobs, jobs, submissions
from grader.fleet import DiskNearlyFull, Ledger, State
from grader.report import Report
from tests.db.full_disk import LARGE, Disk
from tests.db.full_disk import disk as disk
from tests.fleet.conftest import Clock, enqueue
from tests.fleet.conftest import clock as clock
from tests.fleet.conftest import ledger as ledger
from tests.fleet.conftest import report_of as report_of
from tests.fleet.conftest import url as url

LARGE_SOURCE = "#" * LARGE
SMALL_DISK = os.statvfs_result((4096, 1024, 9, 9, 3, *[0] * 5))
SMALL_DISK_BYTES = 3 * 1024
"""What it has free for users other than root."""


@pytest.fixture
def database(disk: Disk) -> Iterator[Ledger]:
    """A ledger on a disk that can be filled."""
    opened = Ledger.open(disk.url, Clock())
    yield opened
    opened.close()


def counts(ledger: Ledger) -> list[int | None]:
    with ledger._engine.connect() as connection:
        tables = (blobs, submissions, jobs)
        return [connection.scalar(select(func.count()).select_from(table)) for table in tables]


def test_a_submission_to_a_full_disk_stores_nothing(disk: Disk, database: Ledger) -> None:
    ledger = database
    enqueue(ledger)
    before = counts(ledger)
    assert ledger.seconds_since_disk_full() == float("inf")
    disk.fill(ledger._engine)
    with pytest.raises(DiskFull, match="make room on that disk; nothing was recorded"):
        enqueue(ledger, source=LARGE_SOURCE)
    assert counts(ledger) == before
    assert ledger.seconds_since_disk_full() < 60
    job = ledger.job(1)
    assert job is not None
    assert job.state is State.QUEUED, "it can still be read"
    free = ledger.free_bytes()
    assert not disk.tells or (free is not None and free < LARGE)
    disk.empty(ledger._engine)
    assert enqueue(ledger, source=LARGE_SOURCE) > 1
    assert counts(ledger) == [2, 2, 2]


def test_a_result_that_a_full_disk_refused_can_be_stored_later(
    disk: Disk, database: Ledger, report_of: Callable[..., Report]
) -> None:
    ledger = database
    number = enqueue(ledger, source=LARGE_SOURCE)
    lease = ledger.claim("w", lease_s=60)
    assert lease is not None
    assert ledger.begin(lease)
    disk.fill(ledger._engine)
    with pytest.raises(DiskFull):
        ledger.finish(lease, report_of(LARGE_SOURCE))
    job = ledger.job(number)
    assert job is not None
    assert (job.state, job.result_id) == (State.RUNNING, None)
    disk.empty(ledger._engine)
    assert ledger.finish(lease, report_of(LARGE_SOURCE)) is not None


def test_submissions_are_refused_before_the_disk_is_full(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ledger.storage().database_bytes > 0
    monkeypatch.setattr(os, "statvfs", lambda _: SMALL_DISK)
    enqueue(ledger, min_free_bytes=SMALL_DISK_BYTES, idempotency_key="first")
    if ledger._engine.dialect.name == "postgresql":
        assert ledger.free_bytes() is None
        enqueue(ledger, min_free_bytes=1 << 60)
        return
    free = ledger.free_bytes()
    assert free is not None
    assert SMALL_DISK_BYTES <= free < 100_000, "pages may have been freed within the file"
    before = counts(ledger)
    with pytest.raises(DiskNearlyFull, match="disk is nearly full, so it takes no submissions"):
        enqueue(ledger, min_free_bytes=free + 1)
    assert counts(ledger) == before
    assert enqueue(ledger, min_free_bytes=free + 1, idempotency_key="first") == 1, "it is stored"


def test_freed_pages_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/board.sqlite3")
    enqueue(ledger, source=LARGE_SOURCE)
    monkeypatch.setattr(os, "statvfs", lambda _: SMALL_DISK)
    with ledger._engine.connect() as connection:
        assert db.free_bytes(connection) == SMALL_DISK_BYTES
        size = db.database_bytes(connection)
        connection.exec_driver_sql("UPDATE blobs SET content = x''")
        free = db.free_bytes(connection)
        assert free is not None
        assert 0.9 * LARGE < free - SMALL_DISK_BYTES < 1.1 * LARGE
        assert db.database_bytes(connection) == size
    ledger.close()


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (sqlite3.SQLITE_IOERR_SHMSIZE, "disk I/O error", DiskFull),
        (sqlite3.SQLITE_IOERR_READ, "disk I/O error", BoardError),
    ],
)
def test_a_log_whose_index_cannot_grow(code: int, text: str, kind: type[BoardError]) -> None:
    cause = sqlite3.OperationalError(text)
    cause.sqlite_errorcode = code
    with pytest.raises(BoardError) as caught, db.translate_errors(make_url("sqlite://")):
        raise OperationalError("INSERT", {}, cause)
    assert type(caught.value) is kind
