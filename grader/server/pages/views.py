"""What the pages show, read from the services: boards, a board's page of rows, users, comparisons.

Whom what is shown is settled by `visibility`; nothing in here decides that anew.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from grader.fleet import Job, State
from grader.judge import Progress
from grader.problem import Problem
from grader.report import CaseResult, Report, Verdict
from grader.server.api.submissions import in_flight, look_up, report_of
from grader.server.http.auth import fail
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.services import Services
from grader.server.services.standings import Detail, Race, Racer, Yardstick, share
from grader.server.services.submission_queries import Line
from grader.server.services.visibility import Sight, is_over, sees_board, sight
from grader.stats import overlap

ROWS = 50
"""Rows of a leaderboard on one page."""

SHAPES = 12
"""Rows of the breakdown by shape."""

DIFF_LINES = 2000
"""So many of each source are compared."""

_SHARES = {"sandbox_start": (0.0, 0.05), "load": (0.05, 0.2), "test": (0.2, 0.55)}
_SHARES["benchmark"] = (0.55, 1.0)
"""How far a grading is at the beginning and the end of a stage, about."""


@dataclass(frozen=True)
class Place:
    """A problem and how its board is run, for whoever asked."""

    problem: Problem
    board: BoardSettings
    over: bool
    races: tuple[Race, ...]
    """Its leaderboards, most entrants first."""

    @property
    def name(self) -> str:
        """The problem's name."""
        return self.problem.name

    @property
    def version(self) -> object:
        """Another one after every change. It is small."""
        return self.name, self.board, self.over, tuple(race.version for race in self.races)

    @property
    def tells_all(self) -> bool:
        """Whether others' submissions are shown, and not only that they are there."""
        return self.board.deadline is None or self.over


@dataclass(frozen=True)
class Row:
    """A line of the leaderboard: a racer, or a yardstick that stands between racers."""

    racer: Racer | None = None
    detail: Detail | None = None
    marks: dict[str, float] = field(default_factory=dict)
    """Where each baseline stands on this row's bar, as a share of the roofline."""
    yardstick: Yardstick | None = None
    sol: float | None = None


@dataclass(frozen=True)
class Table:
    """One page of a leaderboard."""

    place: Place
    race: Race
    rows: list[Row]
    yardsticks: list[Yardstick]
    page: int
    pages: int
    cases: list[str]
    best: dict[str, float]
    """The best time of each benchmark case among the rows of the breakdown; empty where there is
    none, or where it is not shown yet."""


@dataclass(frozen=True)
class Seen:
    """A submission as far as somebody sees it."""

    job: Job
    line: Line
    allowed: Sight
    report: Report | None
    place: Place | None
    """None for a problem that is no longer here."""
    rank: int | None
    current: bool
    """Whether it was graded against the problem as it is now."""
    replacement: int | None
    """The submission that a rejudge has put in its place."""

    @property
    def id(self) -> int:
        """Its number."""
        return self.job.submission_id

    def cases(self, kind: str) -> list[CaseResult]:
        """The cases of a kind that were run."""
        cases = self.report.cases if self.report else []
        return [case for case in cases if case.kind == kind and case.status != "not_run"]

    @property
    def failed(self) -> CaseResult | None:
        """The first case that did not pass."""
        cases = self.report.cases if self.report else []
        return next((case for case in cases if case.status not in ("passed", "not_run")), None)

    @property
    def not_run(self) -> int:
        """How many cases were not run."""
        return sum(case.status == "not_run" for case in self.report.cases) if self.report else 0

    @property
    def sol(self) -> float | None:
        """The fraction of the roofline over all benchmark cases."""
        return share([case.sol for case in self.cases("benchmark")])


@dataclass(frozen=True)
class Duel:
    """One benchmark case of two submissions."""

    name: str
    params: dict[str, object]
    left_us: float
    right_us: float
    tie: bool
    """Whether their intervals overlap."""


class Views:
    """Read models over the services."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.races = services.races

    # Problems and leaderboards ------------------------------------------------------------------

    def places(self, caller: User | None) -> list[Place]:
        """The boards that a caller sees: open ones first, by deadline, and lively ones before."""
        boards, races = self.services.office.boards(), self.races.now()
        seen = [
            self._place(problem, board, races(problem.digest))
            for name, problem in self.services.problems.items()
            if sees_board(caller, board := boards.get(name, BoardSettings()))
        ]
        far = datetime.max.replace(tzinfo=UTC)
        return sorted(
            seen,
            key=lambda one: (one.over, one.board.deadline or far, not one.races, one.name),
        )

    def place(self, caller: User | None, name: str) -> Place:
        """One problem. Raises the refusal of one that is not there for the caller."""
        problem = self.services.problems.get(name)
        if problem is not None:
            board = self.services.office.board(name)
            if sees_board(caller, board):
                return self._place(problem, board, self.races.now()(problem.digest))
        fail(404, "no_such_problem", "there is no such problem here")

    def _place(self, problem: Problem, board: BoardSettings, races: tuple[Race, ...]) -> Place:
        return Place(problem, board, is_over(board, self.services.now()), races)

    def race(self, place: Place, gpu: str | None) -> Race | None:
        """A problem's leaderboard: on the GPU asked for, or where most compete. None where none
        ranks yet. Raises the refusal of a GPU on which nothing ranks."""
        found = [race for race in place.races if gpu in (None, race.gpu)]
        if gpu is not None and not found:
            fail(404, "no_such_gpu", "no result ranks on such a GPU")
        return found[0] if found else None

    def table(self, place: Place, race: Race, page: int) -> Table:
        """One page of a leaderboard."""
        racers = racers_of(race, page)
        yardsticks = self.races.yardsticks(place.problem, race)
        roof_us = self.races.roofline_us(race)
        marks = {one.name: roof_us / one.time_us for one in yardsticks} if roof_us else {}
        details = self.races.details([racer.result_id for racer in racers])
        rows = [
            Row(racer, detail := details[racer.result_id], marks, sol=detail.sol)
            for racer in racers
        ]
        cases = [case.name for case in place.problem.cases("benchmark", "cuda")]
        shown = [row.detail.times_us for row in rows[:SHAPES] if row.detail and place.tells_all]
        best = {
            case: min(times)
            for case in cases
            if (times := [times_us[case] for times_us in shown if case in times_us])
        }
        pages = pages_of(race)
        first, last = page == 1, page == pages
        mixed = list(_mixed(rows, yardsticks, roof_us, first=first, last=last))
        return Table(place, race, mixed, yardsticks, page, pages, cases, best)

    def practised(self, caller: User | None, place: Place) -> list[Line]:
        """Each user's newest submission that was accepted on a CPU, of the newest ones."""
        now = self.services.now()
        found: dict[str, Line] = {}
        for line in self.services.shelf.lines(limit=200, problems=[place.name]):
            allowed = sight(caller, line.user, place.board, now, void=line.void)
            current = line.problem_digest == place.problem.digest
            accepted = line.verdict is Verdict.ACCEPTED and line.gpu is None
            if allowed.result and current and accepted:
                found.setdefault(line.user, line)
        return list(found.values())

    # Submissions ---------------------------------------------------------------------------------

    def submission(self, caller: User | None, number: int) -> Seen:
        """One submission. Raises the refusal of one that is not there for the caller."""
        job, line, allowed = look_up(self.services, caller, number)
        return self.seen(job, line, allowed, self.place_of(line))

    def place_of(self, line: Line) -> Place | None:
        """The problem that a submission is for; None when it is no longer here."""
        problem = self.services.problems.get(line.problem)
        if problem is None:
            return None
        board = self.services.office.board(problem.name)
        return self._place(problem, board, self.races.now()(problem.digest))

    def seen(self, job: Job, line: Line, allowed: Sight, place: Place | None) -> Seen:
        """One submission, as far as it is shown."""
        shelf = self.services.shelf
        return Seen(
            job=job,
            line=line,
            allowed=allowed,
            report=report_of(self.services, line, allowed),
            place=place,
            rank=self.races.rank(line) if allowed.result else None,
            current=place is not None and place.problem.digest == line.problem_digest,
            replacement=shelf.replacement(line.id) if "rejudged" in line.void else None,
        )

    def source(self, seen: Seen) -> str | None:
        """What was handed in, where it is shown."""
        if not seen.allowed.source:
            return None
        content = self.services.shelf.source(seen.id) or b""
        return content.decode("utf-8", "replace")

    def rivals(self, seen: Seen) -> list[tuple[str, int]]:
        """What to compare a ranked submission with: words and number."""
        line = seen.line
        if not (seen.report and line.ranked and line.gpu and seen.place and seen.current):
            return []
        race = next((one for one in seen.place.races if one.gpu == line.gpu), None)
        if race is None:
            return []
        score_us = line.score_us or 0.0
        found: list[tuple[str, Racer]] = []
        if race.leader and race.leader.result_id != line.result_id:
            found.append(("the leader", race.leader))
        place = bisect_left(race.racers, score_us, key=lambda one: one.score_us)
        above = next((one for one in reversed(race.racers[:place]) if one.user != line.user), None)
        if above and above is not race.leader:
            found.append(("the one above", above))
        own = race.of(line.user)
        if own and own.result_id != line.result_id and own is not race.leader:
            found.append((f"{line.user}'s best", own))
        return [(words, racer.submission_id) for words, racer in found if racer.submission_id]

    def lines(
        self, caller: User | None, *, limit: int, user: str | None = None, before: int | None = None
    ) -> tuple[list[tuple[Line, Sight]], int | None]:
        """The newest submissions that a caller sees, and the number to go on below."""
        boards = self.services.office.boards()
        own = caller is not None and caller.name == user
        names = [
            name
            for name in self.services.problems
            if own or sees_board(caller, boards.get(name, BoardSettings()))
        ]
        found = self.services.shelf.lines(limit=limit, before=before, user=user, problems=names)
        now = self.services.now()
        seen = [
            (line, allowed)
            for line in found
            if (
                allowed := sight(
                    caller,
                    line.user,
                    boards.get(line.problem, BoardSettings()),
                    now,
                    void=line.void,
                    cancelled=line.state is State.CANCELLED,
                )
            ).exists
        ]
        return seen, found[-1].id if len(found) == limit else None

    def queue(self, caller: User | None) -> list[Job]:
        """What is graded now and what waits, as a caller sees it."""
        return in_flight(self.services, caller)

    def standings(self, caller: User | None, user: str) -> list[tuple[Place, Race, Racer]]:
        """Where a user stands, on every board that a caller sees."""
        return [
            (place, race, racer)
            for place in self.places(caller)
            for race in place.races
            if (racer := race.of(user))
        ]


def pages_of(race: Race) -> int:
    """How many pages a leaderboard has."""
    return max(1, -(-len(race.racers) // ROWS))


def racers_of(race: Race, page: int) -> tuple[Racer, ...]:
    """Who stands on a page of a leaderboard. Pages count from 1."""
    return race.racers[(page - 1) * ROWS : page * ROWS]


def duels(left: Seen, right: Seen) -> list[Duel]:
    """The benchmark cases that both have a time for."""
    others = {case.name: case for case in right.cases("benchmark") if case.time_us}
    return [
        Duel(
            case.name,
            case.params,
            case.time_us,
            other.time_us,
            overlap(
                case.ci_us or (case.time_us,) * 2,
                other.ci_us or (other.time_us,) * 2,
            ),
        )
        for case in left.cases("benchmark")
        if case.time_us and (other := others.get(case.name)) and other.time_us
    ]


def difference(left: str, right: str) -> list[tuple[str, str]]:
    """Two sources as the lines of a diff, each with its kind: add, del, at or same."""
    lines = difflib.unified_diff(
        left.splitlines()[:DIFF_LINES], right.splitlines()[:DIFF_LINES], lineterm="", n=3
    )
    kinds = {"+": "add", "-": "del", "@": "at"}
    return [(kinds.get(line[:1], "same"), line) for line in list(lines)[2:]]


def how_far(state: State, progress: Progress | None) -> float:
    """How much of a grading is done, about: 0 to 1."""
    if state is State.DONE:
        return 1.0
    if state is not State.RUNNING or progress is None or progress.stage not in _SHARES:
        return 0.0
    start, end = _SHARES[progress.stage]
    done = progress.index + (progress.status is not None)
    return start + (end - start) * min(done / progress.total, 1.0) if progress.total else start


def _mixed(
    rows: Sequence[Row],
    yardsticks: Sequence[Yardstick],
    roof_us: float | None,
    *,
    first: bool,
    last: bool,
) -> Iterator[Row]:
    """The rows, with each yardstick between those that it is between."""
    if not rows:
        return
    scores = [row.racer.score_us for row in rows if row.racer]
    waiting = [
        one
        for one in yardsticks
        if (first or one.time_us >= scores[0]) and (last or one.time_us < scores[-1])
    ]
    for row, score_us in zip(rows, scores, strict=True):
        while waiting and waiting[0].time_us < score_us:
            yield _yard(waiting.pop(0), roof_us)
        yield row
    for one in waiting:
        yield _yard(one, roof_us)


def _yard(one: Yardstick, roof_us: float | None) -> Row:
    return Row(yardstick=one, sol=roof_us / one.time_us if roof_us else None)
