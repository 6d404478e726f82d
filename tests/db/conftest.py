"""Empty databases, in SQLite and PostgreSQL."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from grader.db.engine import open_engine
from grader.db.migrate import upgrade


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database: an SQLite file, or a new PostgreSQL schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.sqlite3"
    else:
        with postgres_schema() as made:
            yield made


def migrate_by_copy(url: str) -> None:
    """Put a migrated database at the URL of an SQLite file, which is not there yet. To run all
    migrations for each of two thousand tests takes minutes. Does nothing for PostgreSQL."""
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).write_bytes(_migrated())


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
    server = make_url(os.environ["GRADE_TEST_POSTGRES"]).set(drivername="postgresql+psycopg")
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
        own = server.update_query_dict({"options": f"-csearch_path={name}"})
        yield own.render_as_string(hide_password=False)
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()
