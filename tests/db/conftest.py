"""Empty databases, in SQLite and PostgreSQL."""

from __future__ import annotations

import atexit
import os
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from grader.db.engine import SCHEMA_TABLE, open_engine
from grader.db.migrate import upgrade
from grader.db.tables import metadata


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database: an SQLite file, or a new PostgreSQL schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.sqlite3"
    else:
        with postgres_schema() as made:
            yield made


def migrate_by_copy(url: str) -> None:
    """Put a migrated database at the URL of an SQLite file, which is not there yet, or of an empty
    PostgreSQL schema, if an earlier test has left one. To run all migrations for each of two
    thousand tests takes minutes."""
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).write_bytes(_migrated())
        return
    name = str(make_url(url).query["options"]).removeprefix(SEARCH_PATH)
    _MIGRATED.add(name)
    if _SPARE:
        with _postgres().connect() as connection:
            connection.execute(text(f"DROP SCHEMA {name}"))
            connection.execute(text(f"ALTER SCHEMA {_SPARE.pop()} RENAME TO {name}"))


def engine_in_memory() -> Engine:
    """An engine over a new SQLite database in memory, migrated by a copy too."""
    engine = open_engine("sqlite://", create=True)
    with _driver_connection(_migrated_in_memory()) as source, _driver_connection(engine) as target:
        source.backup(target)
    return engine


@cache
def _migrated_in_memory() -> Engine:
    engine = open_engine("sqlite://", create=True)
    upgrade(engine)
    return engine


@contextmanager
def _driver_connection(engine: Engine) -> Iterator[sqlite3.Connection]:
    """The one connection to a database in memory."""
    with closing(engine.raw_connection()) as connection:
        raw = connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        yield raw


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "migrated.sqlite3")
        engine = open_engine(f"sqlite:///{file}", create=True)
        upgrade(engine)
        engine.dispose()
        return file.read_bytes()


@contextmanager
def postgres_schema() -> Iterator[str]:
    """The URL of a new PostgreSQL schema."""
    name = f"test_{uuid.uuid4().hex}"
    with _postgres().connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
        own = _postgres_url().update_query_dict({"options": SEARCH_PATH + name})
        yield own.render_as_string(hide_password=False)
        if name in _MIGRATED and _empty(connection, name):
            _SPARE.append(name)
        else:
            _drop(connection, name)


SEARCH_PATH = "-csearch_path="

VERSION_TABLE = "alembic_version"

_MIGRATED: set[str] = set()
"""PostgreSQL schemas of `migrate_by_copy`. Tests of migrations have others."""

_SPARE: list[str] = []
"""Migrated PostgreSQL schemas without rows."""


def _postgres_url() -> URL:
    return make_url(os.environ["GRADE_TEST_POSTGRES"]).set(drivername="postgresql+psycopg")


@cache
def _postgres() -> Engine:
    return create_engine(_postgres_url(), isolation_level="AUTOCOMMIT")


def _empty(connection: Connection, schema: str) -> bool:
    """Make a migrated schema as it was before a test. False if the test has changed its tables, or
    holds a lock."""
    tables = [one.name for one in reversed(metadata.sorted_tables) if one.name != SCHEMA_TABLE]
    if set(inspect(connection).get_table_names(schema)) != {*tables, SCHEMA_TABLE, VERSION_TABLE}:
        return False
    try:
        connection.execute(text("SET lock_timeout = '5s'"))
        for table in tables:
            connection.execute(text(f"DELETE FROM {schema}.{table}"))
    except DBAPIError:
        return False
    sequences = f"pg_class WHERE relkind = 'S' AND relnamespace = '{schema}'::regnamespace"
    connection.execute(text(f"SELECT setval(oid, 1, false) FROM {sequences}"))
    return True


def _drop(connection: Connection, schema: str) -> None:
    connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))


@atexit.register
def _drop_spare_schemas() -> None:
    if _SPARE:
        with _postgres().connect() as connection:
            for name in _SPARE:
                _drop(connection, name)
        _postgres().dispose()
