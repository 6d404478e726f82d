"""Databases whose disk can be filled: by SQLite's own limit, on a real small file system, and in
PostgreSQL."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from tests.db.conftest import postgres_schema

LARGE = 1_000_000
"""Bytes that a full database has no room for, also not in its write-ahead log."""

_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file "base/1": No space left on device'
        USING ERRCODE = 'disk_full', HINT = 'Check free disk space.';
END $$
"""


@dataclass
class Disk:
    """The disk of a database. Both functions take the engine of the code under test."""

    url: str
    fill: Callable[[Engine], None]
    empty: Callable[[Engine], None]
    tells: bool
    """Whether a full one says what it has free."""


@pytest.fixture(
    params=["limit", "tmpfs", pytest.param("postgres", marks=pytest.mark.postgres)],
)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk with room. Some need to be root."""
    if request.param == "limit":
        yield _limited(tmp_path)
    elif request.param == "tmpfs":
        yield from _tmpfs(tmp_path)
    else:
        yield from _postgres()


def _limited(folder: Path) -> Disk:
    """SQLite fails with the same error at its own limit of pages as at a full disk."""
    pages = 1 << 30

    def limit(connection: object, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}").close()  # type: ignore[attr-defined]

    def change(engine: Engine, to: int) -> None:
        nonlocal pages
        pages = to  # fewer than there are: no more than there are
        if not event.contains(engine, "checkout", limit):
            event.listen(engine, "checkout", limit)

    return Disk(
        f"sqlite:///{folder}/board.sqlite3",
        lambda engine: change(engine, 1),
        lambda engine: change(engine, 1 << 30),
        tells=False,
    )


def _tmpfs(folder: Path) -> Iterator[Disk]:
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "grade-test", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    ballast = place / "ballast"

    def fill(_engine: Engine) -> None:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert os.statvfs(place).f_bavail == 0

    try:
        yield Disk(
            f"sqlite:///{place}/board.sqlite3",
            fill,
            lambda _engine: ballast.unlink(),
            tells=True,
        )
    finally:
        # Lazily, since a test may have left a connection open.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _postgres() -> Iterator[Disk]:
    """PostgreSQL's own error for a full disk, raised where rows would be added."""
    tables = ("blobs", "results")

    def fill(engine: Engine) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(_REFUSE)
            for table in tables:
                connection.exec_driver_sql(
                    f"CREATE TRIGGER refuse BEFORE INSERT ON {table} "
                    "FOR EACH ROW EXECUTE FUNCTION refuse()"
                )

    def empty(engine: Engine) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP FUNCTION refuse CASCADE")

    with postgres_schema() as made:
        yield Disk(made, fill, empty, tells=False)
