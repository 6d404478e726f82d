"""Where results are kept: one append-only table, SQLite unless a URL says otherwise.

`Board.open("sqlite://")` is the in-memory twin that tests use. Every failure of the database is a
`BoardError` that says what to do.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    false,
    func,
    insert,
    inspect,
    select,
    true,
)
from sqlalchemy.engine import URL

from grader.board.ranking import Entry, ranks
from grader.db.board_tables import counts, prepare, results, voids
from grader.db.engine import BoardError, engine_of, exclude, reading, writing
from grader.report import Report, Verdict, geometric_mean

MAX_ID = 2**31 - 1
"""The largest number that every database takes for an id."""


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
        self._knows_voids = False

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Board:
        """Open the board at a database URL; with `create`, a new one is made where there is none,
        and without, nothing is changed.

        Raises `BoardError` when the URL makes no sense or the database is not there, broken,
        locked for long, of another program or of another version.
        """
        engine = engine_of(url, create=create)
        try:
            prepare(engine, create=create)
        except BoardError:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def check_writable(self) -> None:
        """Raise `BoardError` where no result can be recorded; it takes none of its numbers."""
        nothing = select(results).where(false())
        with writing(self._engine) as connection:
            connection.execute(insert(results).from_select(list(results.c), nothing))

    def record(self, report: Report, user: str, source: bytes) -> Report:
        """Add a graded result and return its report with `id` and, where it ranks, `rank` set.

        Raises ValueError for a report without a verdict on the submission.
        """
        with writing(self._engine) as connection:
            number = insert_result(connection, report, user, source)
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
            select(results.c.gpu)
            .where(results.c.problem_digest == problem_digest, results.c.ranked)
            .distinct()
            .order_by(results.c.gpu)
        )
        with reading(self._engine) as connection:
            return list(connection.scalars(query.where(self._counts(connection))))

    def count(self, problem: str) -> int:
        """How many results of any version of a problem are on the board."""
        query = select(func.count()).where(results.c.problem == problem)
        with reading(self._engine) as connection:
            return int(connection.scalar(query) or 0)

    def result(self, result_id: int) -> Stored:
        """One result by its number. Raises `BoardError` when there is none."""
        query = select(results).where(results.c.id == result_id)
        with reading(self._engine) as connection:
            known = 0 < result_id <= MAX_ID
            row = connection.execute(query).mappings().first() if known else None
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
            partition_by=results.c.user, order_by=(results.c.score_us, results.c.id)
        )
        with reading(self._engine) as connection:
            ranked = (
                select(results, place.label("place"))
                .where(
                    results.c.problem_digest == problem_digest,
                    results.c.gpu == gpu,
                    results.c.ranked,
                    self._counts(connection),
                )
                .subquery()
            )
            best = select(ranked).where(ranked.c.place == 1)
            best = best.order_by(ranked.c.score_us, ranked.c.id)
            return list(connection.execute(best).mappings())

    def _counts(self, connection: Connection) -> ColumnElement[bool]:
        """That a result is not void. Where no ledger has ever been, none is."""
        # Asked until it is so: a ledger may take over a board that somebody has open.
        self._knows_voids = self._knows_voids or inspect(connection).has_table(voids.name)
        return counts() if self._knows_voids else true()

    def _place(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)


def insert_result(connection: Connection, report: Report, user: str, source: bytes) -> int:
    """Add a graded result within the caller's transaction and return its number.

    Raises ValueError for a report without a verdict on the submission.
    """
    if report.verdict is None or report.verdict is Verdict.JUDGE_ERROR:
        raise ValueError("only a verdict on the submission goes on the board")
    # Results appear in the order of their numbers, so that the highest tells whether any is new.
    exclude(connection, "result")
    added = connection.execute(insert(results).values(_row(report, user, source)))
    assert added.inserted_primary_key is not None
    return int(added.inserted_primary_key[0])


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
