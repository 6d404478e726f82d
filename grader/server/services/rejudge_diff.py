"""The changes of a rejudge: each submission's result and rank without and with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping, Select, select

from grader.board.owners import owner_of_result
from grader.board.ranking import ranks
from grader.board.store import not_void
from grader.db.tables import jobs, results, submissions, voids
from grader.fleet.job import State
from grader.report import Verdict

LASTING = ("banned", "deleted", "withdrawn")
"""Void reasons that no rejudge lifts."""

NO_RANK = (*LASTING, "held")
"""Void reasons for which a result has no rank, with or without the rejudge."""


@dataclass(frozen=True)
class RejudgeOutcome:
    """One result of a submission."""

    result_id: int
    verdict: Verdict
    gpu: str | None
    ranked: bool
    score_us: float | None
    ci_us: tuple[float, float] | None
    rank: int | None
    """Its rank; None if it is not the best of its user or team on the board."""


@dataclass(frozen=True)
class RejudgeChange:
    """A submission without and with the rejudge."""

    original_id: int
    submission_id: int
    """The copy that the rejudge grades."""
    user: str
    name: str
    state: State
    held_reason: str | None
    old: RejudgeOutcome
    """With its rank without the rejudge."""
    new: RejudgeOutcome | None
    """With its rank once the rejudge is applied. None until graded."""


def rejudge_changes(connection: Connection, rejudge_id: int) -> list[RejudgeChange]:
    """The changes of a rejudge, in the order of its submissions."""
    rows = list(connection.execute(_rows(rejudge_id)).mappings())
    before, after = _ranks_before_and_after(connection, rows)
    return [_change(row, before, after) for row in rows]


def _rows(rejudge_id: int) -> Select[Any]:
    """The submissions of a rejudge, each with its old and new result."""
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
        .where(submissions.c.rejudge_id == rejudge_id)
        .order_by(submissions.c.id)
    )


RankById = dict[int, int]
"""Result id → rank."""


def _ranks_before_and_after(
    connection: Connection, rows: list[RowMapping]
) -> tuple[RankById, RankById]:
    """The ranks on all affected leaderboards, without and with the rejudge."""
    old = {row["old_id"] for row in rows}
    new = {row["new_id"] for row in rows if row["new_id"] is not None}
    replaced = {row["old_id"] for row in rows if row["new_id"] is not None}
    boards = {
        (row[f"{which}_digest"], row[f"{which}_gpu"])
        for row in rows
        for which in ("old", "new")
        if row[f"{which}_ranked"]
    }
    before: RankById = {}
    after: RankById = {}
    for digest, gpu in boards:
        ranked = _ranked_rows(connection, digest, gpu, old | new)
        before |= _ranks([row for row in ranked if row["id"] not in new])
        after |= _ranks([row for row in ranked if row["id"] not in replaced])
    return before, after


def _ranked_rows(
    connection: Connection, digest: str, gpu: str, included: set[int]
) -> list[RowMapping]:
    """The ranked results of a leaderboard, best first: those that count, and those of `included`
    that only a rejudge voids."""
    unranked = select(voids).where(voids.c.result_id == results.c.id, voids.c.why.in_(NO_RANK))
    query = (
        select(results.c.id, results.c.ci_low_us, results.c.ci_high_us)
        .add_columns(owner_of_result().label("owner"), not_void().label("counts"))
        .where(
            results.c.problem_digest == digest,
            results.c.gpu == gpu,
            results.c.ranked,
            ~unranked.exists(),
        )
        .order_by(results.c.score_us, results.c.id)
    )
    rows = connection.execute(query).mappings()
    return [row for row in rows if row["counts"] or row["id"] in included]


def _ranks(ranked: list[RowMapping]) -> RankById:
    """The rank of each user's or team's best result."""
    best: dict[str, RowMapping] = {}
    for row in ranked:
        best.setdefault(row["owner"], row)
    by_row = ranks([(row["ci_low_us"], row["ci_high_us"]) for row in best.values()])
    return {row["id"]: rank for row, rank in zip(best.values(), by_row, strict=True)}


def _change(row: RowMapping, before: RankById, after: RankById) -> RejudgeChange:
    old = _outcome(row, "old", before)
    assert old is not None
    return RejudgeChange(
        original_id=row["original_id"],
        submission_id=row["submission_id"],
        user=row["user"],
        name=row["name"],
        state=State(row["state"]),
        held_reason=row["held_reason"],
        old=old,
        new=_outcome(row, "new", after),
    )


def _outcome(
    row: RowMapping, which: Literal["old", "new"], rank_by_id: RankById
) -> RejudgeOutcome | None:
    result_id = row[f"{which}_id"]
    if result_id is None:
        return None
    low_us, high_us = row[f"{which}_ci_low_us"], row[f"{which}_ci_high_us"]
    return RejudgeOutcome(
        result_id=result_id,
        verdict=Verdict(row[f"{which}_verdict"]),
        gpu=row[f"{which}_gpu"],
        ranked=row[f"{which}_ranked"],
        score_us=row[f"{which}_score_us"],
        ci_us=None if low_us is None else (low_us, high_us),
        rank=rank_by_id.get(result_id),
    )
