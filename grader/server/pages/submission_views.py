"""View models of submissions and of comparisons of two submissions."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from dataclasses import dataclass

from grader.fleet import Job, State
from grader.judge import Progress
from grader.report import CaseResult, Report
from grader.server.http.lookup import submission_or_404
from grader.server.pages.board_views import BoardView, board_of_submission
from grader.server.services.access import visible_report
from grader.server.services.accounts import User
from grader.server.services.container import Services
from grader.server.services.standings import Standing, mean_sol
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.visibility import Access
from grader.stats import overlap

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


def submission_view(services: Services, caller: User | None, number: int) -> SubmissionView:
    """One submission. Raises `Refusal` if the caller may see none of this number."""
    job, summary, access = submission_or_404(services, caller, number)
    return view_of(services, job, summary, access, board_of_submission(services, summary))


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
        rank=services.standings.rank(summary) if access.result else None,
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
    above = next((one for one in reversed(entries[:position]) if one.user != summary.user), None)
    if above and above is not leader:
        found.append(("the next faster user", above))
    own = leaderboard.of(summary.user)
    if own and own.result_id != summary.result_id and own is not leader:
        found.append((f"{summary.user}'s best", own))
    return [(text, entry.submission_id) for text, entry in found if entry.submission_id]


def compare_cases(left: SubmissionView, right: SubmissionView) -> list[CaseComparison]:
    """The benchmark cases for which both submissions have a time."""
    others = {case.name: case for case in right.cases("benchmark") if case.time_us}
    return [
        CaseComparison(
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


def source_diff(left: str, right: str) -> list[tuple[str, str]]:
    """The lines of a unified diff with the CSS class of each: add, del, at or same."""
    lines = difflib.unified_diff(
        left.splitlines()[:MAX_DIFF_LINES], right.splitlines()[:MAX_DIFF_LINES], lineterm="", n=3
    )
    kinds = {"+": "add", "-": "del", "@": "at"}
    return [(kinds.get(line[:1], "same"), line) for line in list(lines)[2:]]


def share_done(state: State, progress: Progress | None) -> float:
    """The approximate share of a grading that is done, 0 to 1."""
    if state is State.DONE:
        return 1.0
    if state is not State.RUNNING or progress is None or progress.stage not in _STAGE_SHARES:
        return 0.0
    start, end = _STAGE_SHARES[progress.stage]
    done = progress.index + (progress.status is not None)
    return start + (end - start) * min(done / progress.total, 1.0) if progress.total else start
