"""The versions of problems that a server starts with, and what they change beside the last start.

A version is recorded with its spec and the hashes of its files, so that the next start can say
which change opens a new ranking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, RowMapping, insert, select, update

from grader.board.store import not_void
from grader.board.versions import ProblemVersion, counted, read_versions, version_of
from grader.db.engine import transaction
from grader.db.tables import problem_versions
from grader.problem import JudgedVersion, Problem

MAX_CHANGES = 4
"""Changes in one line of a start."""


@dataclass(frozen=True)
class VersionChange:
    """A problem whose version differs from the one of the last start."""

    problem: str
    version: ProblemVersion
    """The version that is served now."""
    previous: ProblemVersion
    """The version before that has results."""
    changes: list[str] | None
    """What differs between them; None if an older grade served the previous one."""

    def line(self) -> str:
        """One line for the operator."""
        version, previous = self.version, self.previous
        if self.changes is None:
            what = "what changed is not known, since an older grade served the last one"
        else:
            shown, more = self.changes[:MAX_CHANGES], len(self.changes) - MAX_CHANGES
            what = ", ".join([*shown, f"{more} more"] if more > 0 else shown)
        if version.results:
            begin = f"{self.problem}: {version.label} returns with its {counted(version.results)}"
        else:
            begin = f"{self.problem}: {version.label} opens a new ranking"
        return (
            f"{begin} ({what}); the ranking of version {previous.number}, with "
            f"{counted(previous.results)}, stays at "
            f"/leaderboards/{self.problem}?version={previous.number}"
        )


def record_served(
    engine: Engine, problems: Iterable[Problem], now: datetime
) -> list[VersionChange]:
    """Record the versions that a server starts with.

    Returns those that differ from the last start, of problems that have results of other versions.
    Raises `BoardError` if the database fails.
    """
    with transaction(engine, "schema") as connection:  # several servers may start at once
        found = [_record(connection, problem, now) for problem in problems]
    return [change for change in found if change is not None]


def _record(connection: Connection, problem: Problem, now: datetime) -> VersionChange | None:
    table = problem_versions
    query = select(table).where(table.c.problem == problem.name)
    rows = {row["digest"]: row for row in connection.execute(query).mappings()}
    last = max(rows.values(), key=lambda row: row["last_served_at"], default=None)
    if problem.digest in rows:
        this = (table.c.problem == problem.name) & (table.c.digest == problem.digest)
        connection.execute(update(table).where(this).values(last_served_at=now))
    else:
        judged = problem.judged
        connection.execute(
            insert(table).values(
                problem=problem.name,
                digest=problem.digest,
                spec=judged.spec,
                files=judged.files,
                first_served_at=now,
                last_served_at=now,
            )
        )
    if last is not None and last["digest"] == problem.digest:
        return None
    return _change(connection, problem, rows, last)


def _change(
    connection: Connection,
    problem: Problem,
    rows: Mapping[str, RowMapping],
    last: RowMapping | None,
) -> VersionChange | None:
    """The change since the version that was served last, or if that one has no results, since the
    one with the newest result. None if no other version has results.

    rows: what was recorded of the versions before this start, by digest; `last` is one of them.
    """
    versions = read_versions(connection, problem.name, problem.digest, not_void())
    version = version_of(versions, problem.digest)
    others = {one.digest: one for one in versions if one is not version and one.results}
    if not others or (last is None and version.results):
        return None
    newest = max(others.values(), key=lambda one: (one.last_at, one.number))
    previous = newest if last is None else others.get(last["digest"], newest)
    row = rows.get(previous.digest)
    if row is None:
        return VersionChange(problem.name, version, previous, None)
    old = JudgedVersion(problem.name, row["spec"], row["files"])
    return VersionChange(problem.name, version, previous, problem.judged.changes_since(old))
