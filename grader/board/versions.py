"""The versions of a problem: those that have results, and those that a server has served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, and_, case, func, inspect, select

from grader.db.tables import problem_versions, results

DIGEST_CHARS = 12
"""How much of a digest is shown."""


@dataclass(frozen=True)
class ProblemVersion:
    """A version of a problem, and what is recorded of it. Only results that count are included."""

    number: int
    """From 1, in the order in which versions first appeared here."""
    digest: str
    results: int
    """Results of any verdict."""
    users: int
    """Users with a ranked result."""
    first_at: datetime | None
    """When its first result was graded, UTC; None without results."""
    last_at: datetime | None

    @property
    def label(self) -> str:
        """``version 2 (77ab12cd34ef)``"""
        return f"version {self.number} ({self.digest[:DIGEST_CHARS]})"


class NoSuchVersion(ValueError):
    """A problem has no such version. The text is one line for a person."""


def read_versions(
    connection: Connection, problem: str, current: str, counts: ColumnElement[bool]
) -> list[ProblemVersion]:
    """Every version of a problem, in the order of their numbers.

    current: digest of the version that is graded now. It is the last if nothing is recorded of it.
    counts: the SQL condition that a result counts.
    """
    every = (
        select(
            results.c.problem_digest.label("digest"),
            results.c.created_at,
            results.c.user,
            results.c.ranked,
            counts.label("counts"),
        )
        .where(results.c.problem == problem)
        .subquery()
    )
    counted_at = case((every.c.counts, every.c.created_at))
    query = select(
        every.c.digest,
        func.min(every.c.created_at).label("appeared_at"),
        func.count(counted_at).label("results"),
        func.count(case((and_(every.c.counts, every.c.ranked), every.c.user)).distinct()).label(
            "users"
        ),
        func.min(counted_at).label("first_at"),
        func.max(counted_at).label("last_at"),
    ).group_by(every.c.digest)
    recorded = {row["digest"]: row for row in connection.execute(query).mappings()}
    appeared_at = {digest: _moment(row["appeared_at"]) for digest, row in recorded.items()}
    # Only the migrations make this table, not `Board.open`.
    if inspect(connection).has_table(problem_versions.name):
        served = select(problem_versions.c.digest, problem_versions.c.first_served_at)
        for digest, at in connection.execute(served.where(problem_versions.c.problem == problem)):
            appeared_at[digest] = min(at, appeared_at.get(digest, at))
    order = sorted(appeared_at, key=lambda digest: (appeared_at[digest], digest))
    if current not in appeared_at:
        order.append(current)
    found = []
    for number, digest in enumerate(order, start=1):
        row = recorded.get(digest)
        found.append(
            ProblemVersion(
                number,
                digest,
                results=row["results"] if row else 0,
                users=row["users"] if row else 0,
                first_at=_moment(row["first_at"]) if row and row["first_at"] else None,
                last_at=_moment(row["last_at"]) if row and row["last_at"] else None,
            )
        )
    return found


def choose_version(versions: Sequence[ProblemVersion], text: str) -> ProblemVersion:
    """The version with this number, or whose digest begins with these 6 or more characters.

    Raises `NoSuchVersion`.
    """
    wanted = text.strip().lower()
    if re.fullmatch(r"[0-9]{1,5}", wanted):
        found = [version for version in versions if version.number == int(wanted)]
    else:
        is_prefix = re.fullmatch(r"[0-9a-f]{6,64}", wanted) is not None
        found = [one for one in versions if is_prefix and one.digest.startswith(wanted)]
    if len(found) != 1:
        why = "several versions begin so" if found else "there is no such version"
        raise NoSuchVersion(
            f"{why}; name a number from 1 to {len(versions)}, or 6 or more characters of a digest"
        )
    return found[0]


def version_of(versions: Sequence[ProblemVersion], digest: str) -> ProblemVersion:
    """The version with this digest, which must be among them."""
    return next(version for version in versions if version.digest == digest)


def counted(results: int) -> str:
    """``1 result``, ``42 results``."""
    return f"{results} result{'' if results == 1 else 's'}"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
