"""Where results are kept: one append-only table, SQLite unless a URL says otherwise.

`Board.open("sqlite://")` is the in-memory twin that tests use. Every failure of the database is a
`BoardError` that says what to do.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
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
    RowMapping,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from grader.board.ranking import Entry, ranks
from grader.report import Report, Verdict, geometric_mean

SCHEMA = "1"
"""Version of the tables below. A board of another version is refused, never guessed at."""

LOCK_WAIT_S = 30.0
"""How long to wait for another process that is writing."""

_metadata = MetaData()

_about = Table(
    "grade_board",
    _metadata,
    Column("key", String(40), primary_key=True),
    Column("value", String(200), nullable=False),
)

_results = Table(
    "results",
    _metadata,
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

_by_rank = Index(
    "results_by_rank",
    _results.c.problem_digest,
    _results.c.gpu,
    _results.c.ranked,
    _results.c.score_us,
)


class BoardError(Exception):
    """The board cannot be opened, read or written. The text says why, and what to do."""


@dataclass(frozen=True)
class Stored:
    """One recorded result."""

    report: Report
    user: str
    source: bytes


class Board:
    """Recorded results. Safe to use from several processes at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Board:
        """Open the board at a database URL; a new one is made where there is none.

        Raises `BoardError` when the URL makes no sense or the database is broken, locked for long,
        of another program or of another version.
        """
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise BoardError(
                f"{url!r} is no database URL; for a file, write sqlite:////absolute/path.sqlite3"
            ) from None
        _make_folder(parsed)
        with _explained(parsed):
            engine = _engine(parsed)
            _prepare(engine, parsed)
        return cls(engine)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def record(self, report: Report, user: str, source: bytes) -> Report:
        """Add a graded result and return its report with `id` and, where it ranks, `rank` set.

        Raises ValueError for a report without a verdict on the submission.
        """
        if report.verdict is None or report.verdict is Verdict.JUDGE_ERROR:
            raise ValueError("only a verdict on the submission goes on the board")
        with self._connection() as connection:
            result_id = connection.execute(insert(_results).values(_row(report, user, source)))
            number = int(result_id.inserted_primary_key[0])
            connection.commit()
        rank = self._rank(number, report, user) if _is_ranked(report) else None
        return report.model_copy(update={"id": number, "rank": rank})

    def leaderboard(self, problem_digest: str, gpu: str) -> list[Entry]:
        """The best ranked result of each user for one version of a problem on one GPU, in order."""
        rows = self._best(problem_digest, gpu)
        shared = ranks([(row["ci_low_us"], row["ci_high_us"]) for row in rows])
        return [_entry(row, rank) for row, rank in zip(rows, shared, strict=True)]

    def gpus(self, problem_digest: str) -> list[str]:
        """The GPUs that have ranked results for this version of a problem, by name."""
        query = (
            select(_results.c.gpu)
            .where(_results.c.problem_digest == problem_digest, _results.c.ranked)
            .distinct()
            .order_by(_results.c.gpu)
        )
        with self._connection() as connection:
            return list(connection.scalars(query))

    def count(self, problem: str) -> int:
        """How many results of any version of a problem are on the board."""
        query = select(func.count()).where(_results.c.problem == problem)
        with self._connection() as connection:
            return int(connection.scalar(query) or 0)

    def result(self, result_id: int) -> Stored:
        """One result by its number. Raises `BoardError` when there is none."""
        with self._connection() as connection:
            query = select(_results).where(_results.c.id == result_id)
            row = connection.execute(query).mappings().first()
        if row is None:
            raise BoardError(f"there is no result {result_id} on the board at {self._place()}")
        report = Report.model_validate_json(row["report"])
        return Stored(
            report.model_copy(update={"id": row["id"]}), row["user"], bytes(row["source"])
        )

    def _rank(self, number: int, report: Report, user: str) -> int:
        """Where this result stands among the best of the others."""
        rows = self._best(report.problem_digest, str(report.gpu))
        others = [(row["score_us"], row["id"], row) for row in rows if row["user"] != user]
        score_us, low_us, high_us = _score(report)
        standing = [
            (score, result_id, (row["ci_low_us"], row["ci_high_us"]))
            for score, result_id, row in others
        ]
        standing = sorted([*standing, (score_us, number, (low_us, high_us))])
        shared = ranks([interval for _, _, interval in standing])
        position = next(i for i, (_, result_id, _) in enumerate(standing) if result_id == number)
        return shared[position]

    def _best(self, problem_digest: str, gpu: str) -> list[RowMapping]:
        """Each user's best ranked row, fastest first; of equal ones the earliest."""
        place = func.row_number().over(
            partition_by=_results.c.user, order_by=(_results.c.score_us, _results.c.id)
        )
        ranked = (
            select(_results, place.label("place"))
            .where(
                _results.c.problem_digest == problem_digest,
                _results.c.gpu == gpu,
                _results.c.ranked,
            )
            .subquery()
        )
        query = select(ranked).where(ranked.c.place == 1).order_by(ranked.c.score_us, ranked.c.id)
        with self._connection() as connection:
            return list(connection.execute(query).mappings())

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with _explained(self._engine.url), self._engine.connect() as connection:
            yield connection

    def _place(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)


def default_url() -> str:
    """Where the board is when nobody says: the user's data directory.

    Raises `BoardError` when there is no such directory, which takes a user without a home.
    """
    try:
        home = Path.home()
    except RuntimeError:
        raise BoardError("this user has no home directory; say where the board is: --db") from None
    default = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    data = Path(os.environ.get("XDG_DATA_HOME") or home / default)
    return URL.create("sqlite", database=str(data / "grade" / "board.sqlite3")).render_as_string()


def _make_folder(url: URL) -> None:
    """A board holds seeds and competitors' sources, so a folder we make is for its owner only."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return
    folder = Path(str(url.database)).absolute().parent
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
    if url.database in (None, "", ":memory:"):
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
    if tables and _about.name not in tables:
        raise BoardError(
            f"{place} is a database of something else (it holds {', '.join(sorted(tables)[:3])}); "
            "name another place with --db or GRADE_DB"
        )
    if _results.name not in tables:
        _create(engine)
    with engine.connect() as connection:
        version = connection.scalar(select(_about.c.value).where(_about.c.key == "schema"))
    if version != SCHEMA:
        raise BoardError(
            f"the board at {place} is of version {version}, and this grade reads version {SCHEMA}; "
            "use the grade that made it, or name another place with --db"
        )


def _create(engine: Engine) -> None:
    """Make the tables, each step harmless when another process has just taken it."""
    with engine.connect() as connection:
        connection.execute(CreateTable(_about, if_not_exists=True))
        try:
            connection.execute(insert(_about).values(key="schema", value=SCHEMA))
            connection.commit()
        except IntegrityError:
            connection.rollback()
        connection.execute(CreateTable(_results, if_not_exists=True))
        connection.execute(CreateIndex(_by_rank, if_not_exists=True))
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


@contextmanager
def _explained(url: URL) -> Iterator[None]:
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


def _is_ranked(report: Report) -> bool:
    return (
        report.ranked
        and report.verdict is Verdict.ACCEPTED
        and report.gpu is not None
        and report.score_us is not None
    )


def _score(report: Report) -> tuple[float, float, float]:
    """Score and its interval, microseconds. A ranked report has a score."""
    assert report.score_us is not None
    low_us, high_us = report.score_ci_us or (report.score_us, report.score_us)
    return report.score_us, low_us, high_us


def _row(report: Report, user: str, source: bytes) -> dict[str, Any]:
    score_us, low_us, high_us = _score(report) if report.score_us is not None else (None,) * 3
    return {
        "created_at": report.created_at.astimezone(UTC).isoformat(timespec="seconds"),
        "user": user,
        "problem": report.problem,
        "problem_digest": report.problem_digest,
        "gpu": report.gpu,
        "verdict": str(report.verdict),
        "ranked": _is_ranked(report),
        "score_us": score_us,
        "ci_low_us": low_us,
        "ci_high_us": high_us,
        "language": report.language,
        "report": report.model_dump_json(exclude={"id", "rank"}),
        "source_sha256": report.submission_sha256,
        "source": source,
    }


def _entry(row: RowMapping, rank: int) -> Entry:
    report = Report.model_validate_json(row["report"])
    sols = [case.sol for case in report.cases if case.kind == "benchmark" and case.sol]
    return Entry(
        rank=rank,
        user=row["user"],
        result_id=row["id"],
        score_us=row["score_us"],
        ci_us=(row["ci_low_us"], row["ci_high_us"]),
        language=row["language"],
        created_at=row["created_at"],
        speedup=report.speedup,
        sol=geometric_mean(sols) if sols else None,
    )
