"""A ledger on either database, with a clock that tests turn by hand."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from grader.fleet import Ledger
from grader.report import Report
from grader.submission import Submission

DIGEST = "d" * 64


@dataclass
class Clock:
    """Stands still until it is moved."""

    time: datetime = field(default_factory=lambda: datetime(2030, 1, 1, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database: a file, or a schema of its own in PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.sqlite3"
        return
    server = make_url(os.environ["GRADE_TEST_POSTGRES"]).set(drivername="postgresql+psycopg")
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
        own = server.update_query_dict({"options": f"-csearch_path={name}"})
        yield own.render_as_string(hide_password=False)
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(url: str, clock: Clock) -> Iterator[Ledger]:
    opened = Ledger.open(url, clock)
    yield opened
    opened.close()


def a_submission(text: str = "def softmax(x, out): ...") -> Submission:
    return Submission("kernel.py", "python", text.encode())


def hand_in(ledger: Ledger, user: str = "ada", source: str = "x = 1", **more: Any) -> int:
    return ledger.submit(user, "softmax", DIGEST, a_submission(source), **more)


@pytest.fixture
def report_of(make_report: Callable[..., Report]) -> Callable[..., Report]:
    """A factory of the reports of `hand_in(..., source)`."""

    def make(source: str = "x = 1", **changes: Any) -> Report:
        return make_report(submission_sha256=a_submission(source).sha256, **changes)

    return make
