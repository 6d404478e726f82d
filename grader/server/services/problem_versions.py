"""The versions of problems that a server has served, from a start or a reload on, and what they
change beside those before.

A version is recorded with its spec and the hashes of its files, so that the next start can say
which change opens a new ranking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, bindparam, insert, select, update

from grader.board.store import not_void
from grader.board.versions import ProblemVersion, counted, read_versions, version_of
from grader.db.engine import transaction
from grader.db.tables import problem_versions, results
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
    """Record the versions that a server serves from now on.

    Returns those that differ from the last start, of problems that have results of other versions.
    Raises `BoardError` if the database fails.
    """
    served = list(problems)
    with transaction(engine, "schema") as connection:  # several servers may start at once
        recorded = _recorded(connection)
        _record(connection, served, recorded, now)
        last = {name: max(rows, key=rows.__getitem__) for name, rows in recorded.items()}
        changed = [problem for problem in served if last.get(problem.name) != problem.digest]
        graded = _graded(connection, [problem.name for problem in changed])
        found = [
            _change(connection, problem, last.get(problem.name))
            for problem in changed
            if problem.name in graded
        ]
    return [change for change in found if change is not None]


def _recorded(connection: Connection) -> dict[str, dict[str, datetime]]:
    """Problem → digest of each recorded version → when a server last started with it."""
    table, found = problem_versions, dict[str, dict[str, datetime]]()
    query = select(table.c.problem, table.c.digest, table.c.last_served_at)
    for name, digest, at in connection.execute(query):
        found.setdefault(name, {})[digest] = at
    return found


def _record(
    connection: Connection,
    problems: Sequence[Problem],
    recorded: Mapping[str, Mapping[str, datetime]],
    now: datetime,
) -> None:
    table = problem_versions
    known = [one for one in problems if one.digest in recorded.get(one.name, {})]
    new = [one for one in problems if one.digest not in recorded.get(one.name, {})]
    if known:
        this = (table.c.problem == bindparam("name")) & (table.c.digest == bindparam("version"))
        values = [{"name": one.name, "version": one.digest} for one in known]
        connection.execute(update(table).where(this).values(last_served_at=now), values)
    if new:
        times = {"first_served_at": now, "last_served_at": now}
        connection.execute(
            insert(table),
            [
                {"problem": one.name, "digest": one.digest, **times}
                | {"spec": one.judged.spec, "files": one.judged.files}
                for one in new
            ],
        )


def _graded(connection: Connection, problems: Collection[str]) -> set[str]:
    """Those of these problems that have results, of any version."""
    if not problems:
        return set()
    query = select(results.c.problem).where(results.c.problem.in_(problems)).distinct()
    return set(connection.scalars(query))


def _change(connection: Connection, problem: Problem, last: str | None) -> VersionChange | None:
    """The change since the version that was served last, or if that one has no results, since the
    one with the newest result. None if no other version has results.

    last: the digest of the version of the last start; None for a problem's first.
    """
    versions = read_versions(connection, problem.name, problem.digest, not_void())
    version = version_of(versions, problem.digest)
    others = {one.digest: one for one in versions if one is not version and one.results}
    if not others or (last is None and version.results):
        return None
    newest = max(others.values(), key=lambda one: (one.last_at, one.number))
    previous = newest if last is None else others.get(last, newest)
    table = problem_versions
    query = select(table).where(table.c.problem == problem.name, table.c.digest == previous.digest)
    row = connection.execute(query).mappings().first()
    if row is None:
        return VersionChange(problem.name, version, previous, None)
    old = JudgedVersion(problem.name, row["spec"], row["files"])
    return VersionChange(problem.name, version, previous, problem.judged.changes_since(old))
