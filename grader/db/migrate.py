"""Upgrade and downgrade a database with the migrations in `grader.db.migrations`."""

from __future__ import annotations

from functools import cache

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine

from grader.db.engine import BoardError, safe_url, transaction
from grader.db.schema import has_board_tables

BOARD_REVISION = "0001"
"""The revision of a database that `create_board_tables` made."""


def upgrade(engine: Engine) -> None:
    """Migrate a database to the newest revision, in one transaction.

    Several processes may call it at once. Raises `BoardError` for another program's database, or
    one that a newer grade has migrated.
    """
    with transaction(engine, "schema") as connection:
        has_board, revision = has_board_tables(connection), current_revision(connection)
        if revision == _newest_revision():
            return
        if has_board and revision is None:
            command.stamp(_alembic_config(connection), BOARD_REVISION)
        try:
            command.upgrade(_alembic_config(connection), "head")
        except CommandError as error:
            raise BoardError(
                f"the database at {safe_url(engine.url)} has a revision that this grade does not "
                f"know ({error}); use the grade that made it, or name another place with --db"
            ) from None


def downgrade(engine: Engine, revision: str) -> None:
    """Migrate a database back to a revision, such as ``0001``. Data of later revisions is lost."""
    with transaction(engine, "schema") as connection:
        command.downgrade(_alembic_config(connection), revision)


def current_revision(connection: Connection) -> str | None:
    """The revision of a database; None if no migration has run on it."""
    return MigrationContext.configure(connection).get_current_revision()


@cache
def _newest_revision() -> str | None:
    """The revision that `upgrade` ends with. Alembic takes 20 ms to read all migrations, so a
    process does that once."""
    return ScriptDirectory.from_config(_alembic_config()).get_current_head()


def _alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "grader.db:migrations")
    config.attributes["connection"] = connection
    return config
