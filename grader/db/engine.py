"""Connections and transactions on the database that the board and the ledger share.

SQLite in write-ahead mode by default; PostgreSQL through psycopg 3. Every failure of the database
becomes a `BoardError`.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InvalidatePoolError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

LOCK_TIMEOUT_S = 30.0
"""How long a writer waits for another writer."""

PING_AFTER_S = 1.0
"""A connection to PostgreSQL that was idle for longer is tried before it is used."""

SCHEMA_TABLE = "grade_board"
"""The table that marks a database as ours."""

LockName = Literal["schema", "submit", "admin", "result"]

_LOCK_IDS: dict[LockName, int] = {
    "schema": 0x6772616465_01,
    "submit": 0x6772616465_02,
    "admin": 0x6772616465_03,
    "result": 0x6772616465_04,
}
"""PostgreSQL advisory lock ids: "grade" in ASCII, then one byte. Servers of different versions may
share a database, so an id never changes."""


_WRITE_LOCKS: WeakKeyDictionary[Engine, threading.RLock] = WeakKeyDictionary()


_DISK_FULL_AT_S: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()
"""When a transaction last failed since the disk was full, by the monotonic clock."""


_POSTGRES_DISK_FULL = "53100"
"""The SQLSTATE ``disk_full``."""


class BoardError(Exception):
    """The database cannot be opened, read or written. The text says why, and what to do."""


class DiskFull(BoardError):
    """The database has no room on its disk. Nothing of the transaction was stored."""


class MissingBoardError(BoardError):
    """There is no board at this place: nothing was submitted yet."""


def open_engine(url: str, *, create: bool) -> Engine:
    """An SQLAlchemy engine for a database URL. Does not connect yet.

    `create` makes a missing SQLite file and its folder; without it, the file stays as it is. Raises
    `BoardError` for an invalid URL, and for a missing file when `create` is false.
    """
    parsed = parse_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise BoardError(
            f"a board is an SQLite file or in PostgreSQL, not in {parsed.get_backend_name()!r}; "
            "write sqlite:////absolute/path.sqlite3 or postgresql://user@host/database"
        )
    file = _sqlite_file(parsed)
    if file is not None and not create and not file.exists():
        raise missing_board(str(file))
    if file is not None:
        _create_private_file(file)
    with translate_errors(parsed):
        try:
            return _create_engine(parsed, create)
        except ValueError as error:
            raise BoardError(f"{safe_url(parsed)}: an option is wrong: {error}") from None


def missing_board(place: str) -> MissingBoardError:
    """The error for a board that does not exist."""
    return MissingBoardError(f"there is no board at {place} yet; grade submit makes it")


def parse_url(text: str) -> URL:
    """Parse a database URL. Raises `BoardError` if it is invalid."""
    try:
        parsed = make_url(text)
        (parsed.host or "").encode("idna")  # the driver does this on connect
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


def safe_url(url: URL) -> str:
    """A database URL for messages, its password hidden."""
    return url.render_as_string(hide_password=True)


@contextmanager
def connect(engine: Engine) -> Iterator[Connection]:
    """A connection for reading. Raises `BoardError` for any failure of the database.

    On PostgreSQL each statement is a transaction of its own, which saves two messages; it sees
    what is committed when it begins either way.
    """
    with _noting_full_disk(engine), translate_errors(engine.url), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


@contextmanager
def transaction(engine: Engine, lock: LockName | None = None) -> Iterator[Connection]:
    """A write transaction: committed at the end, rolled back by an exception.

    SQLite holds its one write lock from the start (BEGIN IMMEDIATE), so reads stay valid until the
    commit. PostgreSQL only excludes transactions with the same `lock`. Raises `BoardError` for any
    failure of the database.
    """
    with (
        _noting_full_disk(engine),
        translate_errors(engine.url),
        _write_lock(engine),
        engine.connect() as connection,
    ):
        connection = connection.execution_options(grade_writes=True)
        with connection.begin():
            if lock is not None:
                acquire_lock(connection, lock)
            yield connection


def acquire_lock(connection: Connection, lock: LockName) -> None:
    """Hold an advisory lock until the transaction ends. SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": _LOCK_IDS[lock]})


def free_bytes(connection: Connection) -> int | None:
    """How much the database can still grow. None if that is not known: PostgreSQL does not say it.

    An SQLite file has the free room of its file system, and the pages that were freed within it.
    """
    file = _sqlite_file(connection.engine.url)
    if file is None:
        return None
    disk = os.statvfs(file.parent)
    pages = connection.scalar(text("PRAGMA freelist_count"))
    page_bytes = connection.scalar(text("PRAGMA page_size"))
    return disk.f_bavail * disk.f_frsize + int(pages or 0) * int(page_bytes or 0)


def database_bytes(connection: Connection) -> int:
    """The size of the database, without its write-ahead log."""
    if connection.dialect.name == "postgresql":
        return int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)
    pages = connection.scalar(text("PRAGMA page_count"))
    return int(pages or 0) * int(connection.scalar(text("PRAGMA page_size")) or 0)


def seconds_since_disk_full(engine: Engine) -> float:
    """How long ago a transaction of this process failed with `DiskFull`; infinity for never."""
    return time.monotonic() - _DISK_FULL_AT_S.get(engine, -math.inf)


@contextmanager
def _noting_full_disk(engine: Engine) -> Iterator[None]:
    try:
        yield
    except DiskFull:
        _DISK_FULL_AT_S[engine] = time.monotonic()
        raise


@contextmanager
def _write_lock(engine: Engine) -> Iterator[None]:
    """Serialize the writing threads of this process.

    Without it, SQLite polls with growing pauses, so a thread can lose to the others for seconds.
    """
    lock = _WRITE_LOCKS.get(engine)
    held = lock is not None and lock.acquire(timeout=LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        if lock is not None and held:
            lock.release()


@contextmanager
def translate_errors(url: URL) -> Iterator[None]:
    """Turn a failure of the database into a `BoardError` of one line that says what to do."""
    try:
        yield
    except (ModuleNotFoundError, SQLAlchemyError) as error:
        kind = DiskFull if _is_disk_full(error) else BoardError
        raise kind(_explain(error, safe_url(url))) from None


def _is_disk_full(error: ModuleNotFoundError | SQLAlchemyError) -> bool:
    """Whether the disk is full. SQLite says otherwise if only its index of the log cannot grow."""
    if not isinstance(error, DBAPIError):
        return False
    return (
        "database or disk is full" in str(error.orig)
        or getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE
        or getattr(error.orig, "sqlstate", None) == _POSTGRES_DISK_FULL
    )


def _explain(error: ModuleNotFoundError | SQLAlchemyError, place: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{place} needs {error.name}, which is not installed: pip install '.[postgres]'"
    if isinstance(error, OperationalError):
        return f"the board at {place} cannot be used: {_explain_operational(error)}"
    if isinstance(error, DBAPIError):
        cause = str(error.orig).splitlines()[0]
        if "not a database" in cause or "malformed" in cause:
            cause += "; move the file away or name another place with --db or GRADE_DB"
        return f"the board at {place} is broken: {cause}"
    return f"the board at {place} cannot be used: {error}"


def _explain_operational(error: OperationalError) -> str:
    cause = str(error.orig).splitlines()[0]
    if _is_disk_full(error):
        return f"{cause}; make room on that disk; nothing was recorded"
    for sign, advice in (
        ("locked", "another process has been writing for too long; try again"),
        ("readonly", "this user may not write it; name another place with --db"),
        ("unable to open", "check that its folder exists and is writable, or use --db"),
        ("no such column", "another grade made it; name another place with --db"),
    ):
        if sign in cause:
            return f"{cause}; {advice}"
    return cause


def _sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database; None for one in memory, and for other databases."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database)).absolute()


def _create_private_file(file: Path) -> None:
    """Create a missing database file and its folder, readable by their owner only: a board holds
    seeds and competitors' sources."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BoardError(
            f"the board's folder {file.parent} cannot be made ({error.strerror}); "
            "name another place with --db or GRADE_DB"
        ) from None
    # SQLite reports any other problem with the file.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))


def _create_engine(url: URL, create: bool) -> Engine:
    if url.get_backend_name() != "sqlite":
        # Our transactions are written for READ COMMITTED, whatever the server's default is.
        engine = create_engine(url, isolation_level="READ COMMITTED")
        event.listen(engine, "checkin", _note_checkin)
        event.listen(engine, "checkout", partial(_ping_idle, engine))
        return engine
    if _sqlite_file(url) is None:
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        engine = create_engine(url, connect_args={"timeout": LOCK_TIMEOUT_S})
    _WRITE_LOCKS[engine] = threading.RLock()
    event.listen(engine, "connect", _configure_sqlite)
    if create:
        event.listen(engine, "connect", _enable_wal)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _note_checkin(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info["idle_since"] = time.monotonic()


def _ping_idle(
    engine: Engine, connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: object
) -> None:
    """Replace all connections if one that was idle has been closed, such as by a restart.

    One that was used just now is not tried: a message for each use would double the messages.
    """
    if time.monotonic() - record.info.get("idle_since", math.inf) < PING_AFTER_S:
        return
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError(str(error)) from None


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Stop the driver from beginning transactions; `_begin_sqlite` does that.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON").close()


def _enable_wal(connection: sqlite3.Connection, _record: object) -> None:
    """Switch a board or an empty file to write-ahead mode; leave other programs' files alone."""
    # If two processes switch a new file at once, SQLite reports "locked" despite its timeout.
    for attempt in range(50):
        try:
            held = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name for (name,) in held.fetchall()}
            if not tables or SCHEMA_TABLE in tables:
                connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.05)


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that reads first fails at once if another has written before its write.
    immediate = connection.get_execution_options().get("grade_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
