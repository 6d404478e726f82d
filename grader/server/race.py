"""A leaderboard as the pages show it: who stands where, how the record fell, and what each result
was measured against. Read with few columns, since a board may hold many thousands of results.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import RowMapping

from grader.board import Board
from grader.board.ranking import ranks
from grader.judge.timings import Recorded, recorded
from grader.problem import Problem, ProblemError
from grader.report import CaseResult, geometric_mean
from grader.server.charts import Step
from grader.server.fresh import Fresh
from grader.server.shelf import Shelf

FRESH_S = 5.0
"""How long a leaderboard is kept where nothing is seen to change. Reading one of many results costs
more than all the rest of a page."""

REMEMBERED = 4096
"""How many results' details are kept in memory."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Racer:
    """A user's best ranked result."""

    rank: int
    user: str
    result_id: int
    score_us: float
    ci_us: tuple[float, float]
    language: str
    at: datetime


@dataclass(frozen=True)
class Race:
    """One leaderboard."""

    gpu: str
    racers: tuple[Racer, ...] = ()
    """In order of their scores."""
    steps: tuple[Step, ...] = ()
    """Every improvement of the record, oldest first."""

    @property
    def leader(self) -> Racer | None:
        """Who is first; None on an empty board."""
        return self.racers[0] if self.racers else None

    def of(self, user: str) -> Racer | None:
        """Where a user stands."""
        return next((racer for racer in self.racers if racer.user == user), None)


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
    board: Board
    _details: dict[int, Detail] = field(default_factory=dict)
    _fresh: Fresh[tuple[Race, ...]] = field(default_factory=lambda: Fresh(FRESH_S))

    def all(self, digest: str) -> tuple[Race, ...]:
        """Those of one version of a problem, most entrants first. Raises `BoardError`."""
        return self._fresh.get(digest, lambda: self._read(digest), self.shelf.version())

    def _read(self, digest: str) -> tuple[Race, ...]:
        found = []
        for gpu in self.board.gpus(digest):
            rows = self.shelf.ranked(digest, gpu)
            found.append(Race(gpu, _racers(rows), _steps(rows)))
        return tuple(sorted(found, key=lambda race: (-len(race.racers), race.gpu)))

    def detail(self, result_id: int) -> Detail:
        """What a result's report says. Reports are kept for good, so this is read once."""
        if result_id not in self._details:
            if len(self._details) >= REMEMBERED:
                self._details.clear()
            report = self.board.result(result_id).report
            timed = [case for case in report.cases if case.kind == "benchmark"]
            self._details[result_id] = Detail(
                sol=share(timed),
                speedup=report.speedup,
                times_us={case.name: case.time_us for case in timed if case.time_us is not None},
            )
        return self._details[result_id]

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


def on_record(problem: Problem) -> list[Recorded]:
    """The recorded times of a problem; none where a file beside them is broken, which is logged."""
    try:
        return recorded(problem)
    except ProblemError as error:
        log.warning("recorded times are not shown: %s", error)
        return []


def share(timed: Sequence[CaseResult]) -> float | None:
    """The fraction of the roofline over all benchmark cases; None where it is not known."""
    sols = [case.sol for case in timed if case.sol]
    return geometric_mean(sols) if sols else None


def _of_record(problem: Problem, record: Recorded) -> list[Yardstick]:
    """The names that have a time for every case that is scored."""
    cases = [case.name for case in problem.cases("benchmark", record.device)]
    times = [record.times.cases.get(name, {}) for name in cases]
    names = set.intersection(*map(set, times)) if times else set()
    return [
        Yardstick(name, geometric_mean([by_name[name] for by_name in times]), "recorded")
        for name in sorted(names)
    ]


def _racers(rows: Sequence[RowMapping]) -> tuple[Racer, ...]:
    best: dict[str, RowMapping] = {}
    for row in rows:
        best.setdefault(row["user"], row)
    ordered = list(best.values())
    shared = ranks([(row["ci_low_us"], row["ci_high_us"]) for row in ordered])
    return tuple(
        Racer(
            rank, row["user"], row["id"], row["score_us"],
            (row["ci_low_us"], row["ci_high_us"]), row["language"], _moment(row["created_at"]),
        )
        for rank, row in zip(shared, ordered, strict=True)
    )  # fmt: skip


def _steps(rows: Sequence[RowMapping]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for row in sorted(rows, key=lambda row: (row["created_at"], row["id"])):
        if not steps or row["score_us"] < steps[-1].time_us:
            steps.append(Step(_moment(row["created_at"]), row["score_us"], row["user"]))
    return tuple(steps)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
