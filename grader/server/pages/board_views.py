"""View models of problems, leaderboards and users, read from the services.

`access` and `visibility` decide what a caller may see; nothing here decides it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

from grader.board import ProblemVersion
from grader.kernel_languages import BY_KEY, KERNEL_LANGUAGES
from grader.problem import Problem
from grader.problem.catalogue import Filter, LearningStep, by_topic, dtypes_of, steps_among
from grader.problem.spec import DTYPES
from grader.report import Verdict
from grader.server.http.errors import fail
from grader.server.http.lookup import problem_or_404, version_or_404
from grader.server.services.access import access_to, visible_problems
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.standings import (
    BaselineTime,
    GpuLeaderboard,
    LeaderboardQueries,
    RecordStep,
    ResultDetail,
    Snapshot,
    Standing,
)
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.visibility import (
    deadline_passed,
    frozen_since,
    is_frozen,
    is_hidden,
)

PAGE_ROWS = 50
"""Users on one page of a leaderboard."""

BREAKDOWN_ROWS = 12
"""Users in the breakdown by shape."""


@dataclass(frozen=True)
class BoardView:
    """A problem, the settings of its board, and its leaderboards."""

    problem: Problem
    settings: BoardSettings
    over: bool
    """Whether the deadline has passed."""
    hidden: bool
    """Whether only admins see it."""
    frozen: bool
    """Whether only admins see the results since `BoardSettings.freeze_at`."""
    as_of: datetime | None
    """The moment whose standings these are; None for those of now, which admins always see."""
    leaderboards: tuple[GpuLeaderboard, ...]
    """One per GPU, most users first."""
    other: ProblemVersion | None = None
    """The version of the problem whose leaderboards these are; None for the current one."""

    @property
    def digest(self) -> str:
        """The digest of the version whose leaderboards these are."""
        return self.other.digest if self.other else self.problem.digest

    @property
    def query(self) -> str:
        """The beginning of a link's query to this version: ``version=1&``, or nothing."""
        return f"version={self.other.number}&" if self.other else ""

    @property
    def name(self) -> str:
        """The problem's name."""
        return self.problem.name

    @property
    def version(self) -> object:
        """A small value that differs after every change."""
        versions = tuple(leaderboard.version for leaderboard in self.leaderboards)
        state = (self.over, self.hidden, self.frozen, self.as_of)
        return self.problem, self.other, self.settings, state, versions

    @property
    def shows_submissions(self) -> bool:
        """Whether the results of others' submissions are public: not before the deadline."""
        return self.settings.deadline is None or self.over


@dataclass(frozen=True)
class Catalogue:
    """The boards that a filter matches, and the learning path through all of them."""

    wanted: Filter
    groups: tuple[tuple[str | None, tuple[BoardView, ...]], ...]
    """Topic → boards: open ones first, the easiest first among equals."""
    steps: tuple[tuple[LearningStep, Problem], ...]
    dtypes: tuple[str, ...]
    """The element types of any board, for the form."""
    total: int
    """The number of boards without the filter."""

    @property
    def names(self) -> list[str]:
        """The problems that are listed."""
        return [board.name for _, boards in self.groups for board in boards]


@dataclass(frozen=True)
class LeaderboardRow:
    """A row of a leaderboard: a user's entry, or a baseline between two entries."""

    entry: Standing | None = None
    detail: ResultDetail | None = None
    marks: dict[str, float] = field(default_factory=dict)
    """Baseline → its share of the roofline, for the ticks on the entry's bar."""
    baseline: BaselineTime | None = None
    sol: float | None = None


@dataclass(frozen=True)
class EntryFilter:
    """Which entries of a leaderboard are shown. Ranks stay those of the whole leaderboard."""

    language: str = ""
    """``python`` or ``cuda``, or the key of a kernel language; empty for all."""
    words: str = ""
    """Text that the user's name contains, in any case; empty for all."""

    def __bool__(self) -> bool:
        return bool(self.language or self.words)

    @property
    def query(self) -> str:
        """The beginning of a link's query that keeps this filter; empty without one."""
        chosen = {"language": self.language, "user": self.words}
        return urlencode({name: value for name, value in chosen.items() if value}) + "&" * bool(
            self
        )

    def of(self, leaderboard: GpuLeaderboard, queries: LeaderboardQueries) -> Sequence[Standing]:
        """The entries that match, best score first."""
        if not self:
            return leaderboard.standings
        name = self.words.casefold()
        kernels = BY_KEY.get(self.language)
        language = "python" if kernels else self.language
        found = [
            one
            for one in leaderboard.standings
            if language in ("", one.language) and name in one.user.casefold()
        ]
        if kernels is None:
            return found
        details = queries.details([one.result_id for one in found])
        return [one for one in found if details[one.result_id].kernel_language is kernels]


@dataclass(frozen=True)
class LeaderboardPage:
    """One page of a leaderboard."""

    board: BoardView
    leaderboard: GpuLeaderboard
    wanted: EntryFilter
    found: int
    """The number of entries that match the filter, on all pages."""
    rows: list[LeaderboardRow]
    baselines: list[BaselineTime]
    page: int
    pages: int
    cases: list[str]
    best: dict[str, float]
    """Benchmark case → the best time among the rows of the breakdown. Empty if there is no
    breakdown, or if it is not public yet."""

    @property
    def languages(self) -> dict[str, str]:
        """The choices of the filter, by what they are in its query."""
        return languages_of(self.leaderboard)


LANGUAGES = {"python": "Python, all", "cuda": "CUDA C++"}


def languages_of(leaderboard: GpuLeaderboard) -> dict[str, str]:
    """Language → label: those of the entries, and every language of kernels in Python files. Which
    of them an entry uses is in its report, which is read once one is chosen."""
    found = {one: LANGUAGES.get(one, one) for one in leaderboard.languages}
    if "python" in found:
        found |= {one.key: one.label for one in reversed(KERNEL_LANGUAGES)}
    return found


def board_views(services: Services, caller: User | None) -> list[BoardView]:
    """The boards that the caller may see: open ones first, by deadline; those with entries first
    among equals."""
    leaderboards = services.standings.snapshot()
    views = [
        _board_view(services, caller, problem, settings, leaderboards)
        for problem, settings in visible_problems(services, caller)
    ]
    no_deadline = datetime.max.replace(tzinfo=UTC)
    return sorted(
        views,
        key=lambda view: (
            view.over,
            view.settings.deadline or no_deadline,
            not view.leaderboards,
            view.name,
        ),
    )


def catalogue(boards: Sequence[BoardView], wanted: Filter) -> Catalogue:
    """The boards that match, by topic."""
    by_name = {board.name: board for board in boards if wanted.matches(board.problem)}
    groups = tuple(
        (topic, tuple(sorted((by_name[problem.name] for problem in some), key=lambda b: b.over)))
        for topic, some in by_topic(board.problem for board in by_name.values())
    )
    every = [board.problem for board in boards]
    used = {dtype for problem in every for dtype in dtypes_of(problem.spec)}
    return Catalogue(
        wanted=wanted,
        groups=groups,
        steps=tuple(steps_among(every)),
        dtypes=tuple(dtype for dtype in DTYPES if dtype in used),
        total=len(boards),
    )


def board_view(
    services: Services, caller: User | None, name: str, version: str | None = None
) -> BoardView:
    """One board, of the current or of another version of the problem (number or digest).

    Raises `Refusal` if the caller may see no such problem, or it has no such version.
    """
    problem, settings = problem_or_404(services, caller, name)
    shown = version_or_404(services, problem, version) if version else None
    other = shown if shown and shown.digest != problem.digest else None
    return _board_view(services, caller, problem, settings, services.standings.snapshot(), other)


def board_of_submission(
    services: Services, caller: User | None, summary: SubmissionSummary
) -> BoardView | None:
    """The board of the problem's version that a submission was graded against; None if the server
    no longer has the problem."""
    problem = services.problems.get(summary.problem)
    if problem is None:
        return None
    settings = services.admin.board(problem.name)
    digest, other = summary.problem_digest, None
    if digest != problem.digest:
        versions = services.standings.versions(problem)
        # A version without a result may be unknown.
        other = next((one for one in versions if one.digest == digest), None)
    leaderboards = services.standings.snapshot()
    return _board_view(services, caller, problem, settings, leaderboards, other, digest)


def other_versions(services: Services, board: BoardView) -> list[ProblemVersion]:
    """The versions with results whose leaderboards are not shown, newest first."""
    versions = services.standings.versions(board.problem, board.as_of)
    return [one for one in reversed(versions) if one.results and one.digest != board.digest]


def _board_view(
    services: Services,
    caller: User | None,
    problem: Problem,
    settings: BoardSettings,
    leaderboards: Snapshot,
    other: ProblemVersion | None = None,
    digest: str | None = None,
) -> BoardView:
    """The board of a version of a problem: `digest`, or else `other`, or else the current one."""
    now = services.now()
    as_of = frozen_since(caller, settings, now)
    return BoardView(
        problem=problem,
        settings=settings,
        over=deadline_passed(settings, now),
        hidden=is_hidden(settings, now),
        frozen=is_frozen(settings, now),
        as_of=as_of,
        leaderboards=leaderboards(digest or (other or problem).digest, as_of),
        other=other,
    )


def leaderboard_of(board: BoardView, gpu: str | None) -> GpuLeaderboard | None:
    """The leaderboard of a GPU; without one, that with the most users, or None if there is none.

    Raises `Refusal` for a GPU without ranked results.
    """
    found = [one for one in board.leaderboards if gpu in (None, one.gpu)]
    if gpu is not None and not found:
        fail(404, "no_such_gpu", "there is no ranked result on such a GPU")
    return found[0] if found else None


def page_count(entries: Sequence[Standing]) -> int:
    """The number of pages that entries fill; at least one."""
    return max(1, -(-len(entries) // PAGE_ROWS))


def page_of(entries: Sequence[Standing], page: int) -> Sequence[Standing]:
    """The entries on a page. Pages count from 1."""
    return entries[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]


def leaderboard_page(
    services: Services,
    board: BoardView,
    leaderboard: GpuLeaderboard,
    wanted: EntryFilter,
    found: Sequence[Standing],
    page: int,
) -> LeaderboardPage:
    """One page of the entries that match a filter; `found` has those of all pages."""
    leaderboards = services.standings
    entries = page_of(found, page)
    baselines = leaderboards.baselines(board.problem, leaderboard, recorded=not board.other)
    roofline_us = leaderboards.roofline_us(leaderboard)
    marks = {one.name: roofline_us / one.time_us for one in baselines} if roofline_us else {}
    details = leaderboards.details([entry.result_id for entry in entries])
    rows = [
        LeaderboardRow(entry, detail := details[entry.result_id], marks, sol=detail.sol)
        for entry in entries
    ]
    cases = [case.name for case in board.problem.cases("benchmark", "cuda")]
    if board.other:  # it may have had other cases
        cases = list(
            dict.fromkeys(case for row in rows if row.detail for case in row.detail.times_us)
        )
    times_us = [
        row.detail.times_us
        for row in rows[:BREAKDOWN_ROWS]
        if row.detail and board.shows_submissions
    ]
    best = {
        case: min(by_case[case] for by_case in times_us if case in by_case)
        for case in cases
        if any(case in by_case for by_case in times_us)
    }
    pages = page_count(found)
    between = () if wanted.words else baselines  # who looks for a name looks for no baseline
    next_us = found[page * PAGE_ROWS].score_us if page < pages else None
    mixed = _with_baselines(rows, between, roofline_us, is_first=page == 1, next_us=next_us)
    return LeaderboardPage(
        board, leaderboard, wanted, len(found), list(mixed), baselines, page, pages, cases, best
    )


def own_row(leaderboard: GpuLeaderboard, user: User) -> tuple[Standing, int] | None:
    """The entry of a user, or else of their team, on a leaderboard, and the page that it is on;
    None without an entry."""
    entry = leaderboard.of(*user.entry_names)
    return None if entry is None else (entry, leaderboard.place_of(entry) // PAGE_ROWS + 1)


def _with_baselines(
    rows: Sequence[LeaderboardRow],
    baselines: Sequence[BaselineTime],
    roofline_us: float | None,
    *,
    is_first: bool,
    next_us: float | None,
) -> Iterator[LeaderboardRow]:
    """The rows of a page, with each baseline before the first slower entry. `next_us` is the score
    of the first entry of the next page; None on the last page."""
    if not rows:
        return
    scores_us = [row.entry.score_us for row in rows if row.entry]
    pending = [
        LeaderboardRow(baseline=one, sol=roofline_us / one.time_us if roofline_us else None)
        for one in baselines
        if (is_first or one.time_us >= scores_us[0]) and (next_us is None or one.time_us < next_us)
    ]
    for row, score_us in zip(rows, scores_us, strict=True):
        while pending and pending[0].baseline and pending[0].baseline.time_us < score_us:
            yield pending.pop(0)
        yield row
    yield from pending


def cpu_accepted(
    services: Services, caller: User | None, board: BoardView
) -> list[SubmissionSummary]:
    """Each user's or team's newest submission that was accepted on a CPU, among the newest 200. It
    does not depend on who the caller is, unless an admin: the page that shows it is kept for
    others."""
    caller = caller if caller is not None and caller.role == "admin" else None
    found: dict[str, SubmissionSummary] = {}
    for summary in services.submissions.summaries(limit=200, problems=[board.name]):
        access = access_to(services, caller, summary, board.settings)
        is_of_version = summary.problem_digest == board.digest
        is_accepted = summary.verdict is Verdict.ACCEPTED and summary.gpu is None
        if access.result and is_of_version and is_accepted:
            found.setdefault(summary.owner, summary)
    return list(found.values())


def user_standings(
    services: Services, caller: User | None, name: str
) -> list[tuple[BoardView, GpuLeaderboard, Standing]]:
    """The entries of a user or a team on every leaderboard that the caller may see."""
    return [
        (board, leaderboard, entry)
        for board in board_views(services, caller)
        for leaderboard in board.leaderboards
        if (entry := leaderboard.of(name))
    ]


def personal_bests(
    services: Services,
    caller: User | None,
    name: str,
    standings: Sequence[tuple[BoardView, GpuLeaderboard, Standing]],
) -> list[tuple[BoardView, GpuLeaderboard, tuple[RecordStep, ...]]]:
    """The improvements of the best of a user, or of a team, on each leaderboard that has any.

    Those of others are hidden until the deadline, as are the submissions that made them, and end
    where the board is frozen.
    """
    is_own = caller is not None and name in caller.entry_names
    is_visible = is_own or (caller is not None and caller.role == "admin")
    found = [
        (board, one, _unfrozen(services, board, one) if is_visible else one)
        for board, one, _ in standings
        if is_visible or board.shows_submissions
    ]
    bests = [(board, one, source.personal_bests(name)) for board, one, source in found]
    return [(board, one, steps) for board, one, steps in bests if steps]


def _unfrozen(services: Services, board: BoardView, leaderboard: GpuLeaderboard) -> GpuLeaderboard:
    """The leaderboard as it is now, where the caller sees it as it was."""
    if board.as_of is None:
        return leaderboard
    now = services.standings.snapshot()(board.digest, None)
    return next((one for one in now if one.gpu == leaderboard.gpu), GpuLeaderboard(leaderboard.gpu))
