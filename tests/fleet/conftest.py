"""A ledger on SQLite and on PostgreSQL, with a clock that tests move by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grader.fleet import Ledger
from grader.report import Report
from grader.submission import Submission
from tests.db.conftest import migrate_by_copy
from tests.db.conftest import url as url

DIGEST = "d" * 64


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    time: datetime = field(default_factory=lambda: datetime(2030, 1, 1, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(url: str, clock: Clock) -> Iterator[Ledger]:
    migrate_by_copy(url)
    opened = Ledger.open(url, clock)
    yield opened
    opened.close()


def a_submission(text: str = "def softmax(x, out): ...") -> Submission:
    return Submission("kernel.py", "python", text.encode())


def enqueue(ledger: Ledger, user: str = "ada", source: str = "x = 1", **more: Any) -> int:
    return ledger.submit(user, "softmax", DIGEST, a_submission(source), **more)


@pytest.fixture
def report_of(make_report: Callable[..., Report]) -> Callable[..., Report]:
    """A factory of reports for `enqueue(..., source)`."""

    def make(source: str = "x = 1", **changes: Any) -> Report:
        return make_report(submission_sha256=a_submission(source).sha256, **changes)

    return make
