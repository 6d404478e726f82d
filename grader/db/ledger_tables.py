"""The ledger's tables, beside the board's in one database, and how a database comes to have them.

Alembic's migrations lie in `grader.db.migrations`: revision 1 makes the board's tables, revision
2 the ledger's, revision 3 what a hosted leaderboard adds, `grader.db.server_tables` among it, and
revision 4 what problems a worker has. A database that `Board.open` made is taken to be at revision
1.
"""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from grader.db.board_tables import Moment, is_there, metadata, results
from grader.db.engine import BoardError, writing

BOARD = "0001"
"""The revision that a database made by `Board.open` is at."""


blobs = Table(
    "blobs",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
)

rejudges = Table(
    "rejudges",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("problem", String(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("by", String(40), nullable=False),
    Column("reason", String(300), nullable=False),
    Column("state", String(20), nullable=False),
    Column("decided_at", Moment),
    sqlite_autoincrement=True,
)
"""Gradings anew of results that were in doubt: ``preview``, then ``applied`` or ``dropped``."""

submissions = Table(
    "submissions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", String(40), nullable=False),
    Column("problem", String(64), nullable=False),
    Column("problem_digest", String(64), nullable=False),
    Column("name", String(200), nullable=False),
    Column("language", String(20), nullable=False),
    Column("sha256", String(64), ForeignKey(blobs.c.sha256), nullable=False),
    Column("gpu", String(200)),
    Column("created_at", Moment, nullable=False),
    # A submission that a rejudge made of another, its original.
    Column("rejudge_id", Integer, ForeignKey(rejudges.c.id)),
    Column("original_id", Integer, ForeignKey("submissions.id")),
    Index("submissions_by_user", "user"),
    Index("submissions_by_rejudge", "rejudge_id"),
    sqlite_autoincrement=True,
)

jobs = Table(
    "jobs",
    metadata,
    Column("submission_id", Integer, ForeignKey(submissions.c.id), primary_key=True),
    Column("state", String(20), nullable=False),
    Column("failures", Integer, nullable=False),
    Column("deaths", Integer, nullable=False),
    Column("not_before", Moment),
    Column("lease_token", String(32)),
    Column("leased_by", String(200)),
    Column("lease_until", Moment),
    Column("held_reason", String(300)),
    Column("cancelled_by", String(40)),
    Column("result_id", Integer, ForeignKey(results.c.id), unique=True),
    Column("progress", Text),
    Column("updated_at", Moment),
    # What the claim reads, oldest first, and what the sweep reads.
    Index("jobs_by_state", "state", "submission_id"),
    Index("jobs_by_deadline", "state", "lease_until"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("via", String(10), nullable=False),
    Column("device", String(10), nullable=False),
    Column("gpu", String(200)),
    Column("slots", Integer, nullable=False),
    Column("last_seen", Moment, nullable=False),
    Column("problems", JSON(none_as_null=True)),
)
"""Who grades: ``local``, through ``ray``, or pulling over ``http``."""


def upgrade(engine: Engine) -> None:
    """Bring a database to the newest revision: all of the way or not at all.

    Safe to run by several processes at once. Raises `BoardError` for a database of something else,
    or one that a newer grade has migrated.
    """
    with writing(engine, "schema") as connection:
        if is_there(connection) and revision_of(connection) is None:
            command.stamp(_config(connection), BOARD)
        try:
            command.upgrade(_config(connection), "head")
        except CommandError as error:
            place = engine.url.render_as_string(hide_password=True)
            raise BoardError(
                f"the database at {place} is of a revision that this grade does not know "
                f"({error}); use the grade that made it, or name another place with --db"
            ) from None


def downgrade(engine: Engine, revision: str) -> None:
    """Take a database back to a revision, such as ``0001``; what later ones hold is dropped."""
    with writing(engine, "schema") as connection:
        command.downgrade(_config(connection), revision)


def revision_of(connection: Connection) -> str | None:
    """The revision a database is at; None for one that no migration has touched."""
    return MigrationContext.configure(connection).get_current_revision()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "grader.db:migrations")
    config.attributes["connection"] = connection
    return config
