"""Create and recognize the board's tables.

This is apart from `grader.db.migrate` because importing Alembic takes 0.1 s, which `grade submit`
does not need.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, insert, inspect, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from grader.db.engine import BoardError, connect, missing_board, safe_url, transaction
from grader.db.tables import results, results_by_rank, schema_info

BOARD_SCHEMA = "1"
"""Version of the board's tables. A board of another version is refused."""

_ALEMBIC_TABLE = "alembic_version"


def create_board_tables(engine: Engine, *, create: bool) -> None:
    """Create the board's tables if they are missing.

    Raises `BoardError` like `has_board_tables`, and for missing tables when `create` is false.
    """
    with connect(engine) as connection:
        ready = has_board_tables(connection)
    if not ready and not create:
        raise missing_board(safe_url(engine.url))
    if not ready:
        with transaction(engine, "schema") as connection:
            if not has_board_tables(connection):
                _create_board_tables(connection)


def has_board_tables(connection: Connection) -> bool:
    """Whether the database has the board's tables.

    Raises `BoardError` for another program's database, or a board of another version.
    """
    place = safe_url(connection.engine.url)
    tables = set(inspect(connection).get_table_names()) - {_ALEMBIC_TABLE}
    if tables and schema_info.name not in tables:
        raise BoardError(
            f"{place} is a database of another program (it has tables "
            f"{', '.join(sorted(tables)[:3])}); name another place with --db or GRADE_DB"
        )
    if results.name not in tables:
        return False
    version = connection.scalar(select(schema_info.c.value).where(schema_info.c.key == "schema"))
    if version != BOARD_SCHEMA:
        raise BoardError(
            f"the board at {place} has version {version}, and this grade reads version "
            f"{BOARD_SCHEMA}; use the grade that made it, or name another place with --db"
        )
    return True


def _create_board_tables(connection: Connection) -> None:
    connection.execute(CreateTable(schema_info, if_not_exists=True))
    version = select(schema_info.c.value).where(schema_info.c.key == "schema")
    if connection.scalar(version) is None:
        connection.execute(insert(schema_info).values(key="schema", value=BOARD_SCHEMA))
    connection.execute(CreateTable(results))
    connection.execute(CreateIndex(results_by_rank))
    if connection.dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            connection.execute(
                text(
                    f"CREATE TRIGGER results_no_{change.lower()} BEFORE {change} ON results "
                    "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
                )
            )
