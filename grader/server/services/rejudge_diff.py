"""What a rejudge changes, submission by submission: the board without it and the board with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping, Select, select

from grader.board.ranking import ranks
from grader.board.store import not_void
from grader.db.tables import jobs, results, submissions, voids
from grader.fleet.job import State
from grader.report import Verdict

GONE = ("banned", "deleted")
"""Why a result does not count whatever a rejudge says."""


@dataclass(frozen=True)
class Outcome:
    """What one grading found."""

    result_id: int
    verdict: Verdict
    gpu: str | None
    ranked: bool
    score_us: float | None
    ci_us: tuple[float, float] | None
    rank: int | None
    """Its place if the board has it in; None when it is not its user's best there."""


@dataclass(frozen=True)
class Change:
    """One submission, before and after."""

    original_id: int
    submission_id: int
    """The submission that the rejudge made of it."""
    user: str
    name: str
    state: State
    held_reason: str | None
    old: Outcome
    """With its place on the board as it is, or was, without the rejudge."""
    new: Outcome | None
    """With its place on the board as it is, or would be, with the rejudge. None until graded."""


def changes(connection: Connection, number: int) -> list[Change]:
    """The submissions of a rejudge by number, as `Change` says."""
    rows = list(connection.execute(_rows(number)).mappings())
    before, after = _places(connection, rows)
    return [_change(row, before, after) for row in rows]


def _rows(number: int) -> Select[Any]:
    """A rejudge's submissions, with the old and the new result of each."""
    old_job, new_job = jobs.alias("old_job"), jobs.alias("new_job")
    old, new = results.alias("old"), results.alias("new")
    found = ("id", "verdict", "gpu", "ranked", "score_us", "ci_low_us", "ci_high_us")
    return (
        select(
            submissions.c.original_id,
            submissions.c.id.label("submission_id"),
            submissions.c.user,
            submissions.c.name,
            new_job.c.state,
            new_job.c.held_reason,
            *(table.c[n].label(f"{table.name}_{n}") for table in (old, new) for n in found),
            old.c.problem_digest.label("old_digest"),
            new.c.problem_digest.label("new_digest"),
        )
        .join(new_job, new_job.c.submission_id == submissions.c.id)
        .join(old_job, old_job.c.submission_id == submissions.c.original_id)
        .join(old, old.c.id == old_job.c.result_id)
        .outerjoin(new, new.c.id == new_job.c.result_id)
        .where(submissions.c.rejudge_id == number)
        .order_by(submissions.c.id)
    )


Places = dict[int, int]
"""Number of a result → its rank."""


def _places(connection: Connection, rows: list[RowMapping]) -> tuple[Places, Places]:
    """The ranks of results on the boards concerned, without and with the rejudge."""
    old = {row["old_id"] for row in rows}
    new = {row["new_id"] for row in rows if row["new_id"] is not None}
    replaced = {row["old_id"] for row in rows if row["new_id"] is not None}
    boards = {
        (row[f"{which}_digest"], row[f"{which}_gpu"])
        for row in rows
        for which in ("old", "new")
        if row[f"{which}_ranked"]
    }
    before: Places = {}
    after: Places = {}
    for digest, gpu in boards:
        standing = _standing(connection, digest, gpu, old | new)
        before |= _ranks([row for row in standing if row["id"] not in new])
        after |= _ranks([row for row in standing if row["id"] not in replaced])
    return before, after


def _standing(connection: Connection, digest: str, gpu: str, besides: set[int]) -> list[RowMapping]:
    """The ranked results of a board, best first: those that count, and of `besides` those that only
    a rejudge keeps from counting."""
    gone = select(voids).where(voids.c.result_id == results.c.id, voids.c.why.in_(GONE))
    query = (
        select(results.c.id, results.c.user, results.c.ci_low_us, results.c.ci_high_us)
        .add_columns(not_void().label("not_void"))
        .where(
            results.c.problem_digest == digest,
            results.c.gpu == gpu,
            results.c.ranked,
            ~gone.exists(),
        )
        .order_by(results.c.score_us, results.c.id)
    )
    rows = connection.execute(query).mappings()
    return [row for row in rows if row["not_void"] or row["id"] in besides]


def _ranks(standing: list[RowMapping]) -> Places:
    """The rank of each user's best result."""
    best: dict[str, RowMapping] = {}
    for row in standing:
        best.setdefault(row["user"], row)
    shared = ranks([(row["ci_low_us"], row["ci_high_us"]) for row in best.values()])
    return {row["id"]: rank for row, rank in zip(best.values(), shared, strict=True)}


def _change(row: RowMapping, before: Places, after: Places) -> Change:
    old = _outcome(row, "old", before)
    assert old is not None
    return Change(
        original_id=row["original_id"],
        submission_id=row["submission_id"],
        user=row["user"],
        name=row["name"],
        state=State(row["state"]),
        held_reason=row["held_reason"],
        old=old,
        new=_outcome(row, "new", after),
    )


def _outcome(row: RowMapping, which: Literal["old", "new"], places: Places) -> Outcome | None:
    number = row[f"{which}_id"]
    if number is None:
        return None
    low_us, high_us = row[f"{which}_ci_low_us"], row[f"{which}_ci_high_us"]
    return Outcome(
        result_id=number,
        verdict=Verdict(row[f"{which}_verdict"]),
        gpu=row[f"{which}_gpu"],
        ranked=row[f"{which}_ranked"],
        score_us=row[f"{which}_score_us"],
        ci_us=None if low_us is None else (low_us, high_us),
        rank=places.get(number),
    )
