"""The database that the board and the ledger share: how to reach it, write to it, and what to tell
when it fails.

SQLite in write-ahead mode unless a URL says otherwise; PostgreSQL through psycopg 3.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

LOCK_WAIT_S = 30.0
"""How long to wait for another process that is writing."""

ABOUT = "grade_board"
"""The table by which a database is known for ours."""

Lock = Literal["schema", "submit", "office", "result"]

_LOCKS: dict[Lock, int] = {
    "schema": 0x6772616465_01,
    "submit": 0x6772616465_02,
    "office": 0x6772616465_03,
    "result": 0x6772616465_04,
}
"""PostgreSQL's numbers of our advisory locks: "grade" in ASCII, and one byte."""


_TURNS: WeakKeyDictionary[Engine, threading.RLock] = WeakKeyDictionary()


class BoardError(Exception):
    """The board cannot be opened, read or written. The text says why, and what to do."""


def engine_of(url: str, *, create: bool) -> Engine:
    """An engine for a database URL; nothing is checked or made in the database yet.

    The folder of an SQLite file is made where it is missing. Raises `BoardError` when the URL makes
    no sense; without `create`, which leaves the file as it is, also where there is none.
    """
    parsed = url_of(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise BoardError(
            f"a board is an SQLite file or in PostgreSQL, not in {parsed.get_backend_name()!r}; "
            "write sqlite:////absolute/path.sqlite3 or postgresql://user@host/database"
        )
    file = _file(parsed)
    if file is not None and not create and not file.exists():
        raise no_board(str(file))
    if file is not None:
        _make_private(file)
    with explained(parsed):
        try:
            return _engine(parsed, create)
        except ValueError as error:
            place = parsed.render_as_string(hide_password=True)
            raise BoardError(f"{place}: one of its options is wrong: {error}") from None


def no_board(place: str) -> BoardError:
    """What to raise where there is no board to read."""
    return BoardError(f"there is no board at {place} yet; grade submit makes it")


def url_of(text: str) -> URL:
    """A database URL, parsed. Raises `BoardError` when it makes no sense."""
    try:
        parsed = make_url(text)
        (parsed.host or "").encode("idna")  # as the driver will, when it looks the name up
    except ArgumentError:
        raise BoardError(
            f"{text!r} is no database URL; for a file, write sqlite:////absolute/path.sqlite3"
        ) from None
    except ValueError:  # its text, and the URL, may hold a part of a password
        raise BoardError(
            "the database URL has a wrong host or port; write postgresql://user@host:5432/database "
            "(in a password, @ is %40, : is %3A and / is %2F)"
        ) from None
    return parsed


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection to read with. Raises `BoardError` for any failure of the database."""
    with explained(engine.url), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine, lock: Lock | None = None) -> Iterator[Connection]:
    """A transaction to write in: committed at the end, rolled back by an exception.

    On SQLite it holds the one write lock from its first moment (BEGIN IMMEDIATE), so what it reads
    stays true until it has written. On PostgreSQL only those that name the same `lock` exclude each
    other. Raises `BoardError` for any failure of the database.
    """
    with explained(engine.url), _turn(engine), engine.connect() as connection:
        connection = connection.execution_options(grade_writes=True)
        with connection.begin():
            if lock is not None:
                exclude(connection, lock)
            yield connection


def exclude(connection: Connection, lock: Lock) -> None:
    """Let nobody else who names the same lock on, until the transaction ends. On SQLite nobody else
    writes anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": _LOCKS[lock]})


@contextmanager
def _turn(engine: Engine) -> Iterator[None]:
    """The writing threads of one process wait for each other here. SQLite would let them sleep and
    look again, longer each time, so that one may find the others before it for seconds."""
    lock = _TURNS.get(engine)
    held = lock is not None and lock.acquire(timeout=LOCK_WAIT_S)
    try:
        yield
    finally:
        if lock is not None and held:
            lock.release()


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn a failure of the database into one line that says what to do."""
    try:
        yield
    except (ModuleNotFoundError, SQLAlchemyError) as error:
        raise BoardError(_explanation(error, url.render_as_string(hide_password=True))) from None


def _explanation(error: ModuleNotFoundError | SQLAlchemyError, place: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{place} needs {error.name}, which is not installed: pip install '.[postgres]'"
    if isinstance(error, OperationalError):
        return f"the board at {place} cannot be used: {_advice(error)}"
    if isinstance(error, DBAPIError):
        cause = str(error.orig).splitlines()[0]
        if "not a database" in cause or "malformed" in cause:
            cause += "; move the file away or name another place with --db or GRADE_DB"
        return f"the board at {place} is broken: {cause}"
    return f"the board at {place} cannot be used: {error}"


def _advice(error: OperationalError) -> str:
    cause = str(error.orig).splitlines()[0]
    for sign, advice in (
        ("locked", "another process is writing to it for very long; try again"),
        ("readonly", "it may not be written by this user; name another place with --db"),
        ("unable to open", "check that its folder exists and may be written, or use --db"),
        ("full", "make room on that disk; nothing was recorded"),
        ("no such column", "it was made by another grade; name another place with --db"),
    ):
        if sign in cause:
            return f"{cause}; {advice}"
    return cause


def _file(url: URL) -> Path | None:
    """Where an SQLite board is on disk; None for one in memory and for other databases."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database)).absolute()


def _make_private(file: Path) -> None:
    """Make a board's file, and its folder, where they are missing. A board holds seeds and
    competitors' sources, so what we make is for its owner only."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BoardError(
            f"the board's folder {file.parent} cannot be made ({error.strerror}); "
            "name another place with --db or GRADE_DB"
        ) from None
    # Whatever else is wrong with the place, SQLite will say.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))


def _engine(url: URL, create: bool) -> Engine:
    if url.get_backend_name() != "sqlite":
        # What we do is right under READ COMMITTED, whatever the server's default is.
        return create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True)
    if _file(url) is None:
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_S})
    _TURNS[engine] = threading.RLock()
    event.listen(engine, "connect", _prepare_sqlite)
    if create:
        event.listen(engine, "connect", _write_ahead)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver would begin transactions where it sees fit; `_begin_sqlite` does instead.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON").close()


def _write_ahead(connection: sqlite3.Connection, _record: object) -> None:
    """Switch a board over, and a new file; one of something else stays as it is."""
    # Two processes that both switch a new file over may find it locked, whatever the timeout.
    for attempt in range(50):
        try:
            held = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name for (name,) in held.fetchall()}
            if not tables or ABOUT in tables:
                connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.05)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later would fail at once, without waiting, when
    # another has written in between.
    immediate = connection.get_execution_options().get("grade_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
