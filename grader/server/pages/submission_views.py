"""View models of submissions and of comparisons of two submissions."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from grader.fleet import Job, State
from grader.judge import Progress
from grader.report import CaseResult, Report
from grader.server.http.lookup import submission_or_404
from grader.server.pages.board_views import BoardView, board_of_submission
from grader.server.pages.highlighting import split_lines
from grader.server.services.access import visible_rank, visible_report
from grader.server.services.accounts import User
from grader.server.services.container import Services
from grader.server.services.standings import Standing, mean_sol
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.visibility import Access
from grader.stats import Interval, overlap

MAX_DIFF_LINES = 2000
"""Lines of each source that are compared."""

_STAGE_SHARES = {
    "sandbox_start": (0.0, 0.05),
    "load": (0.05, 0.2),
    "test": (0.2, 0.55),
    "benchmark": (0.55, 1.0),
}
"""Stage → the approximate share of a grading that is done at its start and at its end."""


@dataclass(frozen=True)
class SubmissionView:
    """The parts of a submission that the caller may see."""

    job: Job
    summary: SubmissionSummary
    access: Access
    report: Report | None
    board: BoardView | None
    """That of its version of the problem; None if the server no longer has the problem."""
    rank: int | None
    is_current: bool
    """Whether it was graded against the problem's current version."""
    replacement: int | None
    """The number of the submission that replaced it in a rejudge."""

    @property
    def id(self) -> int:
        """The submission's number."""
        return self.job.submission_id

    def cases(self, kind: str) -> list[CaseResult]:
        """The cases of a kind that ran."""
        cases = self.report.cases if self.report else []
        return [case for case in cases if case.kind == kind and case.status != "not_run"]

    @property
    def failed(self) -> CaseResult | None:
        """The first case that did not pass."""
        cases = self.report.cases if self.report else []
        return next((case for case in cases if case.status not in ("passed", "not_run")), None)

    @property
    def not_run(self) -> int:
        """The number of cases that did not run."""
        return sum(case.status == "not_run" for case in self.report.cases) if self.report else 0

    @property
    def can_withdraw(self) -> bool:
        """Whether its author may take its result off the board now, or back. One that does not rank
        is on none, though the API takes it."""
        is_open = self.board is None or not self.board.over
        return self.summary.ranked and is_open and "rejudged" not in self.summary.void

    @property
    def sol(self) -> float | None:
        """The share of the roofline over all benchmark cases."""
        return mean_sol([case.sol for case in self.cases("benchmark")])


@dataclass(frozen=True)
class CaseComparison:
    """The times of two submissions in one benchmark case."""

    name: str
    params: dict[str, object]
    left_us: float
    right_us: float
    is_tie: bool
    """Whether their intervals overlap."""

    @property
    def winner(self) -> Literal["left", "right"] | None:
        """Which is faster; None for a tie."""
        if self.is_tie:
            return None
        return "left" if self.left_us < self.right_us else "right"

    @property
    def lead(self) -> float:
        """How many times as long the slower one takes."""
        return max(self.left_us, self.right_us) / min(self.left_us, self.right_us)


@dataclass(frozen=True)
class DiffLine:
    """A line of a source. Where it differs a little from the line beside it, it is split there;
    otherwise all of it is in `changed`."""

    number: int
    start: str
    changed: str
    end: str


@dataclass(frozen=True)
class DiffRow:
    """Two lines side by side."""

    left: DiffLine | None
    right: DiffLine | None
    kind: Literal["same", "changed", "skip"]
    """``skip`` stands for equal lines that are left out, and has no lines."""


def submission_view(services: Services, caller: User | None, number: int) -> SubmissionView:
    """One submission. Raises `Refusal` if the caller may see none of this number."""
    job, summary, access = submission_or_404(services, caller, number)
    return view_of(services, job, summary, access, board_of_submission(services, caller, summary))


def view_of(
    services: Services,
    job: Job,
    summary: SubmissionSummary,
    access: Access,
    board: BoardView | None,
) -> SubmissionView:
    """The view of a submission that was looked up already."""
    was_rejudged = "rejudged" in summary.void
    return SubmissionView(
        job=job,
        summary=summary,
        access=access,
        report=visible_report(services, summary, access),
        board=board,
        rank=visible_rank(services, summary, access),
        is_current=board is not None and board.problem.digest == summary.problem_digest,
        replacement=services.submissions.replacement(summary.id) if was_rejudged else None,
    )


def source_text(services: Services, submission: SubmissionView) -> str | None:
    """The submitted source; None if the caller may not see it, or if it was removed."""
    if not submission.access.source:
        return None
    content = services.submissions.source(submission.id)
    return None if content is None else content.decode("utf-8", "replace")


def suggested_comparisons(submission: SubmissionView) -> list[tuple[str, int]]:
    """Descriptions and numbers of submissions to compare a ranked one with: the leader, the next
    faster user, the same user's best."""
    summary, board = submission.summary, submission.board
    is_ranked = submission.report and summary.ranked and summary.gpu
    if board is None or not is_ranked:
        return []
    leaderboard = next((one for one in board.leaderboards if one.gpu == summary.gpu), None)
    if leaderboard is None:
        return []
    entries, leader = leaderboard.standings, leaderboard.leader
    found: list[tuple[str, Standing]] = []
    if leader and leader.result_id != summary.result_id:
        found.append(("the leader", leader))
    position = bisect_left(entries, summary.score_us or 0.0, key=lambda entry: entry.score_us)
    above = next((one for one in reversed(entries[:position]) if one.user != summary.owner), None)
    if above and above is not leader:
        found.append(("the next faster user", above))
    own = leaderboard.of(summary.owner)
    if own and own.result_id != summary.result_id and own is not leader:
        found.append((f"{summary.owner}'s best", own))
    return [(text, entry.submission_id) for text, entry in found if entry.submission_id]


def compare_scores(left: SubmissionView, right: SubmissionView) -> CaseComparison | None:
    """The geometric means of two submissions over all cases; None unless both have one."""
    one, other = left.report, right.report
    if one is None or other is None or not one.score_us or not other.score_us:
        return None
    return _comparison(
        "All shapes", {}, (one.score_us, one.score_ci_us), (other.score_us, other.score_ci_us)
    )


def compare_cases(left: SubmissionView, right: SubmissionView) -> list[CaseComparison]:
    """The benchmark cases for which both submissions have a time."""
    others = {case.name: case for case in right.cases("benchmark") if case.time_us}
    return [
        _comparison(
            case.name, case.params, (case.time_us, case.ci_us), (other.time_us, other.ci_us)
        )
        for case in left.cases("benchmark")
        if case.time_us and (other := others.get(case.name)) and other.time_us
    ]


def _comparison(
    name: str,
    params: dict[str, object],
    left: tuple[float, Interval | None],
    right: tuple[float, Interval | None],
) -> CaseComparison:
    """Two times with their intervals; a time without one has an interval of no width."""
    intervals = [interval or (time_us, time_us) for time_us, interval in (left, right)]
    return CaseComparison(name, params, left[0], right[0], overlap(*intervals))


def source_diff(left: str, right: str) -> list[DiffRow]:
    """The lines that differ, side by side, with three equal lines around them."""
    lefts, rights = (split_lines(source)[:MAX_DIFF_LINES] for source in (left, right))
    rows: list[DiffRow] = []
    for group in difflib.SequenceMatcher(None, lefts, rights).get_grouped_opcodes(3):
        if rows or group[0][1] or group[0][3]:
            rows.append(DiffRow(None, None, "skip"))
        for kind, left_from, left_to, right_from, right_to in group:
            pairs = zip_longest(range(left_from, left_to), range(right_from, right_to))
            rows += [
                _diff_row(lefts, rights, at, other, is_same=kind == "equal") for at, other in pairs
            ]
    return rows


def _diff_row(
    lefts: Sequence[str], rights: Sequence[str], at: int | None, other: int | None, *, is_same: bool
) -> DiffRow:
    """The lines at two indices, beside each other; None where there is only one."""
    left = None if at is None else lefts[at]
    right = None if other is None else rights[other]
    start = end = 0
    if left is not None and right is not None:
        start = _common_start(left, right)
        end = _common_start(left[start:][::-1], right[start:][::-1])
        if start + end < max(len(left), len(right)) / 2:  # another line, not a changed one
            start = end = 0

    def split(line: str | None, index: int | None) -> DiffLine | None:
        if line is None or index is None:
            return None
        stop = len(line) - end
        return DiffLine(index + 1, line[:start], line[start:stop], line[stop:])

    return DiffRow(split(left, at), split(right, other), "same" if is_same else "changed")


def _common_start(one: str, other: str) -> int:
    """The number of characters with which both texts begin."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def share_done(state: State, progress: Progress | None) -> float:
    """The approximate share of a grading that is done, 0 to 1."""
    if state is State.DONE:
        return 1.0
    if state is not State.RUNNING or progress is None or progress.stage not in _STAGE_SHARES:
        return 0.0
    start, end = _STAGE_SHARES[progress.stage]
    done = progress.index + (progress.status is not None)
    return start + (end - start) * min(done / progress.total, 1.0) if progress.total else start
