"""Results in one append-only table, by default in SQLite.

Tests use an in-memory board, `Board.open("sqlite://")`. Every failure of the database raises a
`BoardError` that says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Select,
    and_,
    case,
    false,
    func,
    insert,
    inspect,
    not_,
    select,
    true,
    update,
)
from sqlalchemy.engine import URL

from grader.board.owners import has_teams, owner_of_result
from grader.board.ranking import BoardEntry, ranks
from grader.board.versions import ProblemVersion, read_versions
from grader.db.engine import BoardError, acquire_lock, connect, open_engine, safe_url, transaction
from grader.db.schema import create_board_tables
from grader.db.tables import results, voids
from grader.files import user_data_folder
from grader.report import Report, Verdict, geometric_mean

MAX_ID = 2**31 - 1
"""The largest id that every database accepts."""


@dataclass(frozen=True)
class StoredResult:
    """A result with its user and source."""

    report: Report
    user: str
    source: bytes
    """Empty if it was removed."""

    @property
    def source_was_removed(self) -> bool:
        """Whether a server has removed the source, since it was old and did not rank."""
        return not self.source and self.report.submission_sha256 != sha256(b"").hexdigest()


@dataclass(frozen=True)
class ListedResult:
    """A result as a list shows it."""

    report: Report
    """With `id`."""
    user: str
    void: bool
    """Whether an admin has declared that it does not count, or its author has withdrawn it."""


class Attempt(NamedTuple):
    """The main columns of a result."""

    problem: str
    problem_digest: str
    verdict: Verdict
    gpu: str | None
    score_us: float | None
    """None unless it is ranked."""


class Board:
    """The recorded results. Safe to use from several processes at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._has_voids = False

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Board:
        """Open the board at a database URL.

        `create` makes a missing board; without it, nothing is changed. Raises `BoardError` if the
        URL is invalid, or the database is missing, broken, locked for too long, of another program
        or of another version.
        """
        engine = open_engine(url, create=create)
        try:
            create_board_tables(engine, create=create)
        except BoardError:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close the database connections."""
        self._engine.dispose()

    def check_writable(self) -> None:
        """Raise `BoardError` if no result can be recorded. Uses up no result id."""
        no_rows = select(results).where(false())
        with transaction(self._engine) as connection:
            connection.execute(insert(results).from_select(list(results.c), no_rows))

    def record(self, report: Report, user: str, source: bytes) -> Report:
        """Add a graded result. Returns its report with `id` set, and `rank` if it is ranked.

        Raises ValueError for a report without a verdict on the submission.
        """
        with transaction(self._engine) as connection:
            result_id = insert_result(connection, report, user, source)
        rank = self._rank(result_id, report, user) if _is_ranked(report) else None
        return report.model_copy(update={"id": result_id, "rank": rank})

    def leaderboard(self, problem_digest: str, gpu: str) -> list[BoardEntry]:
        """Each user's or team's best ranked result for one version of a problem on one GPU, best
        first."""
        rows = self._best(problem_digest, gpu)
        by_row = ranks([(row["ci_low_us"], row["ci_high_us"]) for row in rows])
        return [_entry(row, rank) for row, rank in zip(rows, by_row, strict=True)]

    def gpus(self, problem_digest: str) -> list[str]:
        """The names of the GPUs with ranked results for this version of a problem, sorted."""
        query = (
            select(results.c.gpu)
            .where(results.c.problem_digest == problem_digest, results.c.ranked)
            .distinct()
            .order_by(results.c.gpu)
        )
        with connect(self._engine) as connection:
            return list(connection.scalars(query.where(self._not_void(connection))))

    def versions(self, problem: str, current: str) -> list[ProblemVersion]:
        """Every version of a problem by number; `current` is the digest of today's version."""
        with connect(self._engine) as connection:
            return read_versions(connection, problem, current, self._not_void(connection))

    def count(self, problem: str) -> int:
        """The number of results for any version of a problem."""
        query = select(func.count()).where(results.c.problem == problem)
        with connect(self._engine) as connection:
            return int(connection.scalar(query) or 0)

    def result(self, result_id: int) -> StoredResult:
        """A result by its id. Raises `BoardError` if there is none."""
        query = select(results).where(results.c.id == result_id)
        with connect(self._engine) as connection:
            possible = 0 < result_id <= MAX_ID
            row = connection.execute(query).mappings().first() if possible else None
        if row is None:
            raise BoardError(
                f"there is no result {result_id} on the board at {safe_url(self._engine.url)}"
            )
        report = Report.model_validate_json(row["report"])
        return StoredResult(
            report.model_copy(update={"id": row["id"]}), row["user"], bytes(row["source"])
        )

    def results(
        self, problem: str | None = None, user: str | None = None, *, most: int
    ) -> list[ListedResult]:
        """The newest results, of any verdict and version, newest first: `most` of them."""
        conditions = []
        if problem is not None:
            conditions.append(results.c.problem == problem)
        if user is not None:
            conditions.append(results.c.user == user)
        return self._listed(conditions, most)

    def attempts(self, user: str) -> list[Attempt]:
        """A user's results that count, of any verdict and version, oldest first."""
        columns = (
            results.c.problem,
            results.c.problem_digest,
            results.c.verdict,
            results.c.gpu,
            case((results.c.ranked, results.c.score_us)),
        )
        with connect(self._engine) as connection:
            query = select(*columns).where(results.c.user == user, self._not_void(connection))
            rows = connection.execute(query.order_by(results.c.id)).all()
        return [
            Attempt(problem, digest, Verdict(verdict), gpu, score_us)
            for problem, digest, verdict, gpu, score_us in rows
        ]

    def unranked(
        self,
        problem: str,
        problem_digest: str,
        gpu: str | None = None,
        *,
        most: int,
        of_version: bool = False,
    ) -> list[ListedResult]:
        """The newest results of a problem that do not rank for this version, newest first.

        gpu: only those of GPUs whose name contains this text.
        of_version: only those of this version.
        """
        with connect(self._engine) as connection:
            ranks_now = and_(
                results.c.ranked,
                results.c.problem_digest == problem_digest,
                self._not_void(connection),
            )
        conditions = [results.c.problem == problem, not_(ranks_now)]
        if of_version:
            conditions.append(results.c.problem_digest == problem_digest)
        if gpu is not None:
            conditions.append(results.c.gpu.icontains(gpu, autoescape=True))
        return self._listed(conditions, most)

    def _listed(self, conditions: Sequence[ColumnElement[bool]], most: int) -> list[ListedResult]:
        with connect(self._engine) as connection:
            counts = self._not_void(connection).label("counts")
            query = select(results.c.id, results.c.user, results.c.report, counts)
            query = query.where(*conditions).order_by(results.c.id.desc()).limit(most)
            rows = connection.execute(query).mappings().all()
        return [
            ListedResult(
                Report.model_validate_json(row["report"]).model_copy(update={"id": row["id"]}),
                row["user"],
                void=not row["counts"],
            )
            for row in rows
        ]

    def _rank(self, result_id: int, report: Report, user: str) -> int:
        """The rank of this result among the other users' best results."""
        score_us, low_us, high_us = _score(report)
        standing = [
            (row["score_us"], row["id"], (row["ci_low_us"], row["ci_high_us"]))
            for row in self._best(report.problem_digest, str(report.gpu))
            if row["owner"] != user
        ]
        standing = sorted([*standing, (score_us, result_id, (low_us, high_us))])
        by_position = ranks([interval for _, _, interval in standing])
        position = next(i for i, (_, other_id, _) in enumerate(standing) if other_id == result_id)
        return by_position[position]

    def _best(self, problem_digest: str, gpu: str) -> list[RowMapping]:
        """Each user's or team's best ranked row with its `owner`, fastest first. Of equal results,
        the earlier is better."""
        with connect(self._engine) as connection:
            owner = owner_of_result() if has_teams(connection) else results.c.user
            best = best_results(
                owner,
                results.c.problem_digest == problem_digest,
                results.c.gpu == gpu,
                self._not_void(connection),
            )
            query = (
                select(results, owner.label("owner"))
                .where(results.c.id.in_(best))
                .order_by(results.c.score_us, results.c.id)
            )
            return list(connection.execute(query).mappings())

    def _not_void(self, connection: Connection) -> ColumnElement[bool]:
        """The condition `not_void`. A board without a ledger has no void results."""
        # Checked again until it is found: a ledger may take over a board that is open here.
        self._has_voids = self._has_voids or inspect(connection).has_table(voids.name)
        return not_void() if self._has_voids else true()


def not_void(except_for: str | None = None) -> ColumnElement[bool]:
    """The SQL condition that a result counts, or would but for one reason. Needs the table
    `voids`."""
    reasons = select(voids).where(voids.c.result_id == results.c.id).correlate(results)
    return ~reasons.where(true() if except_for is None else voids.c.why != except_for).exists()


def best_results(owner: ColumnElement[str], *conditions: ColumnElement[bool]) -> Select[int]:
    """Of the ranked results that meet the conditions, the ids of each owner's best on each GPU, for
    each version of a problem. Of equal results, the earlier is better."""
    place = func.row_number().over(
        partition_by=(owner, results.c.problem_digest, results.c.gpu),
        order_by=(results.c.score_us, results.c.id),
    )
    ranked = (
        select(results.c.id, place.label("place")).where(results.c.ranked, *conditions).subquery()
    )
    return select(ranked.c.id).where(ranked.c.place == 1)


def insert_result(connection: Connection, report: Report, user: str, source: bytes) -> int:
    """Add a graded result within the caller's transaction. Returns its id.

    Raises ValueError for a report without a verdict on the submission.
    """
    if report.verdict is None or report.verdict is Verdict.JUDGE_ERROR:
        raise ValueError("only a verdict on the submission goes on the board")
    # Commits in the order of ids, so that the highest id shows whether there are new results.
    acquire_lock(connection, "result")
    added = connection.execute(insert(results).values(_row(report, user, source)))
    assert added.inserted_primary_key is not None
    return int(added.inserted_primary_key[0])


def clear_sources(connection: Connection, result_ids: Collection[int]) -> None:
    """Remove the sources of results within the caller's transaction; all else of them is kept."""
    connection.execute(update(results).where(results.c.id.in_(result_ids)).values(source=b""))


def default_url() -> str:
    """The URL of the default board, in the user's data directory.

    Raises `BoardError` if the user has no home directory.
    """
    try:
        folder = user_data_folder()
    except RuntimeError:
        raise BoardError("this user has no home directory; say where the board is: --db") from None
    return URL.create("sqlite", database=str(folder / "board.sqlite3")).render_as_string()


def _is_ranked(report: Report) -> bool:
    return (
        report.ranked
        and report.verdict is Verdict.ACCEPTED
        and report.gpu is not None
        and report.score_us is not None
    )


def _score(report: Report) -> tuple[float, float, float]:
    """The score of a report that has one, and its confidence interval (low, high), in µs."""
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


def _entry(row: RowMapping, rank: int) -> BoardEntry:
    report = Report.model_validate_json(row["report"])
    sols = [case.sol for case in report.cases if case.kind == "benchmark" and case.sol]
    return BoardEntry(
        rank=rank,
        user=row["owner"],
        result_id=row["id"],
        score_us=row["score_us"],
        ci_us=(row["ci_low_us"], row["ci_high_us"]),
        language=row["language"],
        created_at=row["created_at"],
        speedup=report.speedup,
        sol=geometric_mean(sols) if sols else None,
    )
