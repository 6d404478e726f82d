"""The board's tables, how they come to be, and what to tell when a database fails."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

SCHEMA = "1"
"""Version of the tables below. A board of another version is refused, never guessed at."""

LOCK_WAIT_S = 30.0
"""How long to wait for another process that is writing."""

metadata = MetaData()

about = Table(
    "grade_board",
    metadata,
    Column("key", String(40), primary_key=True),
    Column("value", String(200), nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("created_at", String(40), nullable=False),
    Column("user", String(40), nullable=False),
    Column("problem", String(64), nullable=False),
    Column("problem_digest", String(64), nullable=False),
    Column("gpu", String(200)),
    Column("verdict", String(40), nullable=False),
    Column("ranked", Boolean, nullable=False),
    Column("score_us", Float),
    Column("ci_low_us", Float),
    Column("ci_high_us", Float),
    Column("language", String(20), nullable=False),
    Column("report", Text, nullable=False),
    Column("source_sha256", String(64), nullable=False),
    Column("source", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

by_rank = Index(
    "results_by_rank",
    results.c.problem_digest,
    results.c.gpu,
    results.c.ranked,
    results.c.score_us,
)


class BoardError(Exception):
    """The board cannot be opened, read or written. The text says why, and what to do."""


def connect(url: URL, *, create: bool) -> Engine:
    """An engine for the board at `url`, its tables checked, or made where there are none.

    Raises `BoardError`; without `create` also for an SQLite file that is not there.
    """
    file = _file(url)
    if file is not None and not create and not file.exists():
        raise BoardError(f"there is no board at {file} yet; grade submit makes it")
    if file is not None:
        _make_folder(file.parent)
    with explained(url):
        engine = _engine(url)
        _prepare(engine, url)
    return engine


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn a failure of the database into one line that says what to do."""
    place = url.render_as_string(hide_password=True)
    try:
        yield
    except ModuleNotFoundError as error:
        raise BoardError(
            f"{place} needs the Python package {error.name}, which is not installed"
        ) from None
    except OperationalError as error:
        raise BoardError(f"the board at {place} cannot be used: {_advice(error)}") from None
    except DBAPIError as error:
        cause = str(error.orig).splitlines()[0]
        if "not a database" in cause or "malformed" in cause:
            cause += "; move the file away or name another place with --db or GRADE_DB"
        raise BoardError(f"the board at {place} is broken: {cause}") from None
    except SQLAlchemyError as error:
        raise BoardError(f"the board at {place} cannot be used: {error}") from None


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


def _make_folder(folder: Path) -> None:
    """A board holds seeds and competitors' sources, so a folder we make is for its owner only."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BoardError(
            f"the board's folder {folder} cannot be made ({error.strerror}); "
            "name another place with --db or GRADE_DB"
        ) from None


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url)
    if _file(url) is None:
        return create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_S})

    @event.listens_for(engine, "connect")
    def write_ahead(connection: Any, _record: Any) -> None:
        # Two processes that both switch a new file over may find it locked, whatever the timeout.
        for attempt in range(50):
            try:
                connection.execute("PRAGMA journal_mode=WAL").close()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == 49:
                    raise
                time.sleep(0.05)

    return engine


def _prepare(engine: Engine, url: URL) -> None:
    """Make the tables where there are none; refuse a database that is not ours."""
    place = url.render_as_string(hide_password=True)
    tables = set(inspect(engine).get_table_names())
    if tables and about.name not in tables:
        raise BoardError(
            f"{place} is a database of something else (it holds {', '.join(sorted(tables)[:3])}); "
            "name another place with --db or GRADE_DB"
        )
    if results.name not in tables:
        _create(engine)
    with engine.connect() as connection:
        version = connection.scalar(select(about.c.value).where(about.c.key == "schema"))
    if version != SCHEMA:
        raise BoardError(
            f"the board at {place} is of version {version}, and this grade reads version {SCHEMA}; "
            "use the grade that made it, or name another place with --db"
        )


def _create(engine: Engine) -> None:
    """Make the tables, each step harmless when another process has just taken it."""
    with engine.connect() as connection:
        connection.execute(CreateTable(about, if_not_exists=True))
        try:
            connection.execute(insert(about).values(key="schema", value=SCHEMA))
            connection.commit()
        except IntegrityError:
            connection.rollback()
        connection.execute(CreateTable(results, if_not_exists=True))
        connection.execute(CreateIndex(by_rank, if_not_exists=True))
        if engine.dialect.name == "sqlite":
            for change in ("UPDATE", "DELETE"):
                connection.execute(
                    text(
                        f"CREATE TRIGGER IF NOT EXISTS results_no_{change.lower()} "
                        f"BEFORE {change} ON results "
                        "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
                    )
                )
        connection.commit()
