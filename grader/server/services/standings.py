"""Leaderboards, their records over time, and the baselines of each GPU.

A board may hold many thousands of results, so these queries read few columns.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect, bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel

from grader.board.ranking import ranks
from grader.board.versions import ProblemVersion
from grader.judge.timing.baseline_store import RecordedBaselines, load_recorded
from grader.kernel_languages import KernelLanguage, reported_language
from grader.problem import Problem, ProblemError
from grader.report import geometric_mean
from grader.server.services.submission_queries import (
    RankedResult,
    SubmissionQueries,
    SubmissionSummary,
)
from grader.server.services.ttl_cache import TtlCache

CACHE_AGE_S = 5.0
"""Maximum age of a cached leaderboard. Reading a large one takes longer than the rest of a page."""

MOST_PROBLEMS = 4096
"""Problems whose leaderboards are kept. The home page reads all in turn, so it must be all."""

MAX_CACHED_DETAILS = 20_000
"""Result details kept in memory, about 1 KB each."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordStep:
    """An improvement of a record."""

    at: datetime
    time_us: float
    user: str
    """The user, or the team."""
    is_team: bool = False


class Standing(NamedTuple):
    """A user's or a team's best ranked result on one GPU, with its rank. A tuple for speed."""

    rank: int
    user: str
    """The user, or the team."""
    result_id: int
    submission_id: int | None
    """None for a result that was not submitted to a server."""
    score_us: float
    ci_us: tuple[float, float]
    language: str
    created_at: str
    """ISO 8601, UTC."""
    is_team: bool = False

    @property
    def at(self) -> datetime:
        """The time of grading."""
        return _moment(self.created_at)


@dataclass(frozen=True, eq=False)
class GpuLeaderboard:
    """The leaderboard of one problem version on one GPU. A change creates a new one."""

    gpu: str
    standings: tuple[Standing, ...] = ()
    """Best score first."""
    steps: tuple[RecordStep, ...] = ()
    """Every improvement of the record, oldest first."""
    bests: Mapping[str, Sequence[RankedResult]] = field(default_factory=dict)
    """User or team → the results that were the best of it when they were graded, best first.
    Without those who have never improved on their first."""
    version: object = field(default_factory=object)
    """Unique to this object. It is small, so caches can keep it."""

    @property
    def leader(self) -> Standing | None:
        """The first standing; None on an empty leaderboard."""
        return self.standings[0] if self.standings else None

    def of(self, *names: str) -> Standing | None:
        """The standing of the first of these users and teams that has one; None if none has."""
        return next((self._by_user[name] for name in names if name in self._by_user), None)

    def personal_bests(self, user: str) -> tuple[RecordStep, ...]:
        """The first result of a user or team and every improvement on it, oldest first; empty
        without one."""
        return _record_steps(self.bests.get(user, ()))

    def place_of(self, standing: Standing) -> int:
        """The index of one of the standings. It differs from the rank where ranks are shared."""
        key = (standing.score_us, standing.result_id)
        return bisect_left(self.standings, key, key=lambda one: (one.score_us, one.result_id))

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The languages of the standings, by name."""
        return tuple(sorted({standing.language for standing in self.standings}))

    @cached_property
    def _by_user(self) -> dict[str, Standing]:
        return {standing.user: standing for standing in self.standings}


Snapshot = Callable[[str, datetime | None], tuple[GpuLeaderboard, ...]]
"""From a problem's digest, and the moment since which its board is frozen for the reader (None if
it is not), to its leaderboards, most users first."""


@dataclass(frozen=True)
class ResultDetail:
    """The parts of a result's report that a leaderboard shows. They never change."""

    sol: float | None
    """Geometric mean over the benchmark cases of the fraction of the roofline."""
    speedup: dict[str, float]
    times_us: dict[str, float]
    """Benchmark case → time."""
    graded_in_s: float | None
    """How long the whole grading took; None for an old report, which does not say."""
    kernel_language: KernelLanguage | None = None
    """What a Python file's kernels are written in; None if that is not known."""


@dataclass(frozen=True)
class BaselineTime:
    """The score of a baseline."""

    name: str
    time_us: float
    """Geometric mean over the benchmark cases."""
    kind: str = "baseline"
    """``baseline`` if measured beside the leader, ``recorded`` if by `grade baseline`."""


@dataclass
class LeaderboardQueries:
    """Queries on the leaderboards of one database."""

    submissions: SubmissionQueries
    _details: dict[int, ResultDetail] = field(default_factory=dict)
    _last_id: int = 0
    _newest: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cache: TtlCache[tuple[GpuLeaderboard, ...]] = field(
        default_factory=lambda: TtlCache(CACHE_AGE_S, most=MOST_PROBLEMS)
    )
    _versions: TtlCache[tuple[ProblemVersion, ...]] = field(
        default_factory=lambda: TtlCache(CACHE_AGE_S, most=MOST_PROBLEMS)
    )

    def versions(
        self, problem: Problem, as_of: datetime | None = None
    ) -> tuple[ProblemVersion, ...]:
        """Every version of a problem by number. `as_of` is the moment since which the board is
        frozen for the reader. Raises `BoardError` if the database fails."""
        name, digest, version = problem.name, problem.digest, self.submissions.version()
        return self._versions.get(
            (name, digest, as_of),
            lambda: tuple(self.submissions.versions(name, digest, as_of)),
            version,
        )

    def snapshot(self) -> Snapshot:
        """The leaderboards of every version of a problem, as they are now.

        It and its result raise `BoardError` if the database fails.
        """
        last_id, *voids = self.submissions.version()
        newest = self._newest_results(last_id)
        return lambda digest, as_of: self._cache.get(
            (digest, as_of),
            lambda: self._read(digest, as_of),
            (newest.get(digest, 0), *voids),  # a result of another problem changes nothing here
        )

    def _newest_results(self, last_id: int) -> dict[str, int]:
        """The highest id of a ranked result by version of a problem, up to `last_id` at least."""
        with self._lock:
            if last_id > self._last_id:
                found = self.submissions.newest_ranked(self._last_id, last_id)
                self._newest = self._newest | found
                self._last_id = last_id
            return self._newest

    def _read(self, digest: str, as_of: datetime | None) -> tuple[GpuLeaderboard, ...]:
        rows: dict[str, list[RankedResult]] = {}
        for row in self.submissions.ranked(digest, as_of):
            rows.setdefault(row.gpu, []).append(row)
        found = [_leaderboard(gpu, some) for gpu, some in rows.items()]
        return tuple(sorted(found, key=lambda board: (-len(board.standings), board.gpu)))

    def rank(self, summary: SubmissionSummary, as_of: datetime | None = None) -> int | None:
        """The rank of a submission's result among the other users' best; None if unranked, and for
        a result of after the moment `as_of`, since which the board is frozen for the reader."""
        if not summary.ranked or summary.void:
            return None
        if summary.result_id is None or summary.score_us is None:
            return None
        if as_of is not None and (summary.counted_at is None or summary.counted_at >= as_of):
            return None
        leaderboards = self.snapshot()(summary.problem_digest, as_of)
        leaderboard = next(
            (one for one in leaderboards if one.gpu == summary.gpu),
            GpuLeaderboard(str(summary.gpu)),
        )
        own = leaderboard.of(summary.owner)
        if own is not None and own.result_id == summary.result_id:
            return own.rank
        others = [standing for standing in leaderboard.standings if standing is not own]
        key = (summary.score_us, summary.result_id)
        position = bisect(others, key, key=lambda other: (other.score_us, other.result_id))
        ahead = [other.ci_us for other in others[:position]]
        return ranks([*ahead, (summary.ci_low_us or 0.0, summary.ci_high_us or 0.0)])[position]

    def detail(self, result_id: int) -> ResultDetail:
        """The details of one result."""
        return self.details([result_id])[result_id]

    def details(self, result_ids: Collection[int]) -> dict[int, ResultDetail]:
        """The details of results, by result id. They never change, so each is read once."""
        with self._lock:
            known = {n: self._details[n] for n in result_ids if n in self._details}
        missing = [number for number in result_ids if number not in known]
        read = {number: _detail(report) for number, report in self.submissions.reports(missing)}
        with self._lock:
            self._details |= read
            for oldest in list(self._details)[: max(0, len(self._details) - MAX_CACHED_DETAILS)]:
                del self._details[oldest]
        return known | read

    def baselines(
        self, problem: Problem, leaderboard: GpuLeaderboard, *, recorded: bool = True
    ) -> list[BaselineTime]:
        """The baselines measured beside the leader, and those recorded for this GPU, fastest first.

        Each result has its own baseline times; the leader's are used. Recorded ones are of the
        current version of the problem.
        """
        found: dict[str, BaselineTime] = {}
        for record in recorded_times(problem) if recorded else []:
            if record.hardware == leaderboard.gpu:
                found.update({one.name: one for one in _recorded_baselines(problem, record)})
        if leaderboard.leader is not None:
            detail = self.detail(leaderboard.leader.result_id)
            for name, ratio in detail.speedup.items():
                found[name] = BaselineTime(name, leaderboard.leader.score_us * ratio)
        return sorted(found.values(), key=lambda baseline: baseline.time_us)

    def roofline_us(self, leaderboard: GpuLeaderboard) -> float | None:
        """The time at the roofline, derived from the leader's fraction of it."""
        if leaderboard.leader is None:
            return None
        sol = self.detail(leaderboard.leader.result_id).sol
        return None if sol is None else leaderboard.leader.score_us * sol


def recorded_times(problem: Problem) -> list[RecordedBaselines]:
    """The recorded times of a problem; none if a file is broken, which is logged."""
    try:
        return load_recorded(problem)
    except ProblemError as error:
        log.warning("recorded times are not shown: %s", error)
        return []


def mean_sol(sols: Sequence[float | None]) -> float | None:
    """Geometric mean of the known fractions of the roofline; None if none is known."""
    known = [sol for sol in sols if sol and sol > 0]
    return geometric_mean(known) if known else None


class _Case(BaseModel):
    name: str
    kind: str
    time_us: float | None = None
    sol: float | None = None


class _PartialReport(BaseModel):
    """The fields that `ResultDetail` needs. Parsing them is five times as fast as a full report."""

    speedup: dict[str, float]
    cases: list[_Case]
    stages_s: dict[str, float] = {}
    environment: dict[str, Any] = {}


def _detail(report: str) -> ResultDetail:
    partial = _PartialReport.model_validate_json(report)
    timed = [case for case in partial.cases if case.kind == "benchmark"]
    return ResultDetail(
        sol=mean_sol([case.sol for case in timed]),
        speedup=partial.speedup,
        times_us={case.name: case.time_us for case in timed if case.time_us is not None},
        graded_in_s=partial.stages_s.get("total"),
        kernel_language=reported_language(partial.environment),
    )


def _recorded_baselines(problem: Problem, record: RecordedBaselines) -> list[BaselineTime]:
    """The recorded baselines that have a time for every benchmark case."""
    cases = [case.name for case in problem.cases("benchmark", record.device)]
    times = [record.times.cases.get(name, {}) for name in cases]
    names = set.intersection(*map(set, times)) if times else set()
    return [
        BaselineTime(name, geometric_mean([by_name[name] for by_name in times]), "recorded")
        for name in sorted(names)
    ]


def _leaderboard(gpu: str, rows: Sequence[RankedResult]) -> GpuLeaderboard:
    """The leaderboard of these results, which are sorted by score."""
    records: list[RankedResult] = []
    bests: dict[str, list[RankedResult]] = {}
    for row in rows:
        _add_if_record(records, row)
        _add_if_record(bests.setdefault(row.user, []), row)
    improved = {user: own for user, own in bests.items() if len(own) > 1}
    return GpuLeaderboard(gpu, _standings(rows), _record_steps(records), improved)


def _standings(rows: Sequence[RankedResult]) -> tuple[Standing, ...]:
    best: dict[str, RankedResult] = {}
    for row in rows:
        best.setdefault(row.user, row)
    intervals = [(row.ci_low_us, row.ci_high_us) for row in best.values()]
    return tuple(
        Standing(
            rank, row.user, row.id, row.submission_id, row.score_us, interval, row.language,
            row.created_at, row.is_team,
        )
        for rank, row, interval in zip(ranks(intervals), best.values(), intervals, strict=True)
    )  # fmt: skip


def _add_if_record(records: list[RankedResult], row: RankedResult) -> None:
    """Add a result, no better than those before it, if it was the best when it was graded: if it is
    older than all of them. Of equal scores the oldest is the record."""
    if records and (row.created_at, row.id) >= (records[-1].created_at, records[-1].id):
        return
    if records and records[-1].score_us == row.score_us:
        records.pop()
    records.append(row)


def _record_steps(records: Sequence[RankedResult]) -> tuple[RecordStep, ...]:
    """The improvements that these records are, oldest first. `records` are sorted by score."""
    return tuple(
        RecordStep(_moment(row.created_at), row.score_us, row.user, row.is_team)
        for row in reversed(records)
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
