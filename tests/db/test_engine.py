"""Connections to PostgreSQL: reads outside transactions, and those that it has closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from grader.board import BoardError
from grader.db import engine as engines
from grader.db.engine import connect, open_engine, transaction

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.parametrize("url", ["postgres"], indirect=True),
]


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    opened = open_engine(url, create=True)
    yield opened
    opened.dispose()


PID = text("SELECT pg_backend_pid()")


def kill(url: str, pids: list[int]) -> None:
    """End these connections, as the database's restart does."""
    other = open_engine(url, create=False)
    with connect(other) as connection:
        for pid in pids:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
    other.dispose()


def test_an_idle_connection_that_was_closed_is_replaced(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(engine) as first, connect(engine) as second:
        pids = [first.scalar(PID), second.scalar(PID)]
    kill(url, pids)
    monkeypatch.setattr(engines, "PING_AFTER_S", 0.0)
    for _ in range(3):
        with connect(engine) as connection:
            assert connection.scalar(PID) not in pids


def test_a_connection_used_just_now_is_not_tried(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PING_AFTER_S", 3600.0)
    with connect(engine) as connection:
        pid = connection.scalar(PID)
    kill(url, [pid])
    with pytest.raises(BoardError), connect(engine) as connection:
        connection.scalar(PID)
    with connect(engine) as connection:  # the failure has emptied the pool
        assert connection.scalar(PID) != pid


def test_only_a_write_opens_a_transaction(engine: Engine) -> None:
    with connect(engine) as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.autocommit is True
    with transaction(engine) as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.autocommit is False, "the setting of a read ends with it"
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
    with pytest.raises(RuntimeError), transaction(engine) as connection:
        connection.execute(text("INSERT INTO t VALUES (1)"))
        raise RuntimeError
    with connect(engine) as connection:
        assert connection.scalar(text("SELECT count(*) FROM t")) == 0
