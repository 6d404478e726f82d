"""A leaderboard as the pages show it: who stands where, how the record fell, and what each result
was measured against. Read with few columns, since a board may hold many thousands of results.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

from pydantic import BaseModel

from grader.board.ranking import ranks
from grader.judge.timing.baseline_store import RecordedBaselines, load_recorded
from grader.problem import Problem, ProblemError
from grader.report import geometric_mean
from grader.server.services.submission_queries import Line, Ranked, Shelf
from grader.server.services.ttl_cache import TtlCache

FRESH_S = 5.0
"""How long a leaderboard is kept where nothing is seen to change. Reading one of many results costs
more than all the rest of a page."""

REMEMBERED = 20_000
"""How many results' details are kept in memory, about 1 KB each."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordStep:
    """One improvement of a record."""

    at: datetime
    time_us: float
    user: str


class Racer(NamedTuple):
    """A user's best ranked result. A tuple, since thousands are made at a time."""

    rank: int
    user: str
    result_id: int
    submission_id: int | None
    """None for a result that was not handed in to a server."""
    score_us: float
    ci_us: tuple[float, float]
    language: str
    created_at: str
    """ISO 8601, UTC."""

    @property
    def at(self) -> datetime:
        """When it was graded."""
        return _moment(self.created_at)


@dataclass(frozen=True, eq=False)
class Race:
    """One leaderboard. It is made anew when it changes."""

    gpu: str
    racers: tuple[Racer, ...] = ()
    """In order of their scores."""
    steps: tuple[RecordStep, ...] = ()
    """Every improvement of the record, oldest first."""
    version: object = field(default_factory=object)
    """Another one for each that was made, and small, so that it may be kept for long."""

    @property
    def leader(self) -> Racer | None:
        """Who is first; None on an empty board."""
        return self.racers[0] if self.racers else None

    def of(self, user: str) -> Racer | None:
        """Where a user stands."""
        return self._by_user.get(user)

    @cached_property
    def _by_user(self) -> dict[str, Racer]:
        return {racer.user: racer for racer in self.racers}


@dataclass(frozen=True)
class Detail:
    """What of a result's report the leaderboard shows. It never changes."""

    sol: float | None
    """Geometric mean over the benchmark cases of the fraction of the roofline."""
    speedup: dict[str, float]
    times_us: dict[str, float]
    """By benchmark case."""


@dataclass(frozen=True)
class Yardstick:
    """What kernels are held against."""

    name: str
    time_us: float
    """Geometric mean over the benchmark cases."""
    kind: str = "baseline"
    """``baseline``, measured beside the leader; or ``recorded``, from reference/timings."""


@dataclass
class Races:
    """Reads the leaderboards of one database."""

    shelf: Shelf
    _details: dict[int, Detail] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _fresh: TtlCache[tuple[Race, ...]] = field(default_factory=lambda: TtlCache(FRESH_S))

    def now(self) -> Callable[[str], tuple[Race, ...]]:
        """Gives the leaderboards of one version of a problem by its digest, most entrants first, as
        they are at this moment. Raises `BoardError`, and so does what it returns."""
        version = self.shelf.version()
        return lambda digest: self._fresh.get(digest, lambda: self._read(digest), version)

    def _read(self, digest: str) -> tuple[Race, ...]:
        rows: dict[str, list[Ranked]] = {}
        for row in self.shelf.ranked(digest):
            rows.setdefault(row.gpu, []).append(row)
        found = [Race(gpu, _racers(some), _steps(some)) for gpu, some in rows.items()]
        return tuple(sorted(found, key=lambda race: (-len(race.racers), race.gpu)))

    def rank(self, line: Line) -> int | None:
        """Where a result stands among the best of the others; None for one that is not ranked."""
        if not line.ranked or line.void or line.result_id is None or line.score_us is None:
            return None
        found = self.now()(line.problem_digest)
        race = next((race for race in found if race.gpu == line.gpu), Race(str(line.gpu)))
        own = race.of(line.user)
        if own is not None and own.result_id == line.result_id:
            return own.rank
        others = [racer for racer in race.racers if racer is not own]
        key = (line.score_us, line.result_id)
        place = bisect(others, key, key=lambda racer: (racer.score_us, racer.result_id))
        ahead = [racer.ci_us for racer in others[:place]]
        return ranks([*ahead, (line.ci_low_us or 0.0, line.ci_high_us or 0.0)])[place]

    def detail(self, result_id: int) -> Detail:
        """What a result's report says."""
        return self.details([result_id])[result_id]

    def details(self, result_ids: Collection[int]) -> dict[int, Detail]:
        """What the reports of these results say. They never change, so each is read once."""
        with self._lock:
            known = {n: self._details[n] for n in result_ids if n in self._details}
        missing = [number for number in result_ids if number not in known]
        read = {number: _detail(report) for number, report in self.shelf.reports(missing)}
        with self._lock:
            self._details |= read
            for oldest in list(self._details)[: max(0, len(self._details) - REMEMBERED)]:
                del self._details[oldest]
        return known | read

    def yardsticks(self, problem: Problem, race: Race) -> list[Yardstick]:
        """What the leader was measured against, and what is on record for this GPU; fastest first.

        Baselines are timed beside every kernel; the leader's run speaks for them.
        """
        found: dict[str, Yardstick] = {}
        for record in on_record(problem):
            if record.hardware == race.gpu:
                found.update({one.name: one for one in _of_record(problem, record)})
        if race.leader is not None:
            detail = self.detail(race.leader.result_id)
            for name, ratio in detail.speedup.items():
                found[name] = Yardstick(name, race.leader.score_us * ratio)
        return sorted(found.values(), key=lambda one: one.time_us)

    def roofline_us(self, race: Race) -> float | None:
        """The time at which the roofline lies, by the leader's own share of it."""
        if race.leader is None:
            return None
        sol = self.detail(race.leader.result_id).sol
        return None if sol is None else race.leader.score_us * sol


def on_record(problem: Problem) -> list[RecordedBaselines]:
    """The recorded times of a problem; none where a file beside them is broken, which is logged."""
    try:
        return load_recorded(problem)
    except ProblemError as error:
        log.warning("recorded times are not shown: %s", error)
        return []


def share(sols: Sequence[float | None]) -> float | None:
    """The fraction of the roofline over all benchmark cases; None where it is not known."""
    known = [sol for sol in sols if sol and sol > 0]
    return geometric_mean(known) if known else None


class _Case(BaseModel):
    name: str
    kind: str
    time_us: float | None = None
    sol: float | None = None


class _Brief(BaseModel):
    """What `Detail` needs of a report, which is five times as fast to read as all of it."""

    speedup: dict[str, float]
    cases: list[_Case]


def _detail(report: str) -> Detail:
    brief = _Brief.model_validate_json(report)
    timed = [case for case in brief.cases if case.kind == "benchmark"]
    return Detail(
        sol=share([case.sol for case in timed]),
        speedup=brief.speedup,
        times_us={case.name: case.time_us for case in timed if case.time_us is not None},
    )


def _of_record(problem: Problem, record: RecordedBaselines) -> list[Yardstick]:
    """The names that have a time for every case that is scored."""
    cases = [case.name for case in problem.cases("benchmark", record.device)]
    times = [record.times.cases.get(name, {}) for name in cases]
    names = set.intersection(*map(set, times)) if times else set()
    return [
        Yardstick(name, geometric_mean([by_name[name] for by_name in times]), "recorded")
        for name in sorted(names)
    ]


def _racers(rows: Sequence[Ranked]) -> tuple[Racer, ...]:
    best: dict[str, Ranked] = {}
    for row in rows:
        best.setdefault(row.user, row)
    intervals = [(row.ci_low_us, row.ci_high_us) for row in best.values()]
    return tuple(
        Racer(
            rank, row.user, row.id, row.submission_id, row.score_us, interval, row.language,
            row.created_at,
        )
        for rank, row, interval in zip(ranks(intervals), best.values(), intervals, strict=True)
    )  # fmt: skip


def _steps(rows: Sequence[Ranked]) -> tuple[RecordStep, ...]:
    """What was a record when it came: none of those that are better, which stand before it, was
    there already."""
    records: list[Ranked] = []
    for row in rows:
        if not records or row.created_at < records[-1].created_at:
            if records and records[-1].score_us == row.score_us:
                records.pop()
            records.append(row)
    return tuple(
        RecordStep(_moment(row.created_at), row.score_us, row.user) for row in reversed(records)
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
