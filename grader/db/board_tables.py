"""The board's tables, and how they come to be."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from grader.db.engine import ABOUT, BoardError, no_board, reading, writing

SCHEMA = "1"
"""Version of the tables below. A board of another version is refused, never guessed at."""

MIGRATIONS = "alembic_version"
"""The table in which Alembic notes how far a database that the ledger shares is migrated."""

metadata = MetaData()


class Moment(TypeDecorator[datetime]):
    """An aware datetime, kept in UTC also where the database knows no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value if value is None else value.astimezone(UTC)
        return value.replace(tzinfo=UTC)


about = Table(
    ABOUT,
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

voids = Table(
    "voids",
    metadata,
    Column("result_id", Integer, ForeignKey(results.c.id), primary_key=True),
    Column("why", String(20), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("by", String(40), nullable=False),
)
"""Results that do not count, with each reason: ``rejudged``, ``preview``, ``deleted``, ``banned``.

Results are never changed or deleted; a row here takes one off the leaderboards, and it is back when
its last row here is gone. The ledger's migrations make this table, not `Board.open`."""


def counts() -> ColumnElement[bool]:
    """The condition that a result is not void, for databases that have the table of voids."""
    return ~select(voids).where(voids.c.result_id == results.c.id).exists()


def prepare(engine: Engine, *, create: bool) -> None:
    """Make the tables where there are none. Raises `BoardError` like `is_there`, and without
    `create` where there are none."""
    with reading(engine) as connection:
        ready = is_there(connection)
    if not ready and not create:
        raise no_board(engine.url.render_as_string(hide_password=True))
    if not ready:
        with writing(engine, "schema") as connection:
            if not is_there(connection):
                _create(connection)


def is_there(connection: Connection) -> bool:
    """Whether the database holds the board's tables.

    Raises `BoardError` for a database of something else, or a board of another version.
    """
    place = connection.engine.url.render_as_string(hide_password=True)
    tables = set(inspect(connection).get_table_names()) - {MIGRATIONS}
    if tables and about.name not in tables:
        raise BoardError(
            f"{place} is a database of something else (it holds {', '.join(sorted(tables)[:3])}); "
            "name another place with --db or GRADE_DB"
        )
    if results.name not in tables:
        return False
    version = connection.scalar(select(about.c.value).where(about.c.key == "schema"))
    if version != SCHEMA:
        raise BoardError(
            f"the board at {place} is of version {version}, and this grade reads version {SCHEMA}; "
            "use the grade that made it, or name another place with --db"
        )
    return True


def _create(connection: Connection) -> None:
    """Make the tables, in a transaction that excludes others who would."""
    connection.execute(CreateTable(about, if_not_exists=True))
    if connection.scalar(select(about.c.value).where(about.c.key == "schema")) is None:
        connection.execute(insert(about).values(key="schema", value=SCHEMA))
    connection.execute(CreateTable(results))
    connection.execute(CreateIndex(by_rank))
    if connection.dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            connection.execute(
                text(
                    f"CREATE TRIGGER results_no_{change.lower()} BEFORE {change} ON results "
                    "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
                )
            )
