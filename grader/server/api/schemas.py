"""Models of the API's answers. The OpenAPI document is made from them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from grader.board import ProblemVersion
from grader.fleet import BatchItem, Job, State
from grader.judge import Progress
from grader.report import Report, Reward, Rule, Verdict
from grader.server.http.fields import PrintableText
from grader.server.services.standings import ResultDetail, Standing
from grader.server.services.teams import Team
from grader.server.services.verdict_counts import VerdictTally
from grader.submission import LANGUAGES, Language, Submission


class SubmissionQueued(BaseModel):
    """A submission that is stored and will be graded."""

    id: int
    state: State
    url: str
    """The address of its report."""


class BatchRequestItem(BaseModel):
    """One file of a batch, in the words of a line of `grade batch --jsonl`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: Annotated[PrintableText, Field(min_length=1)]
    """The client's name for it, unique in the batch."""
    source: str
    """The text of the file."""
    language: Language = "python"
    benchmarks: bool = True
    """Whether it is timed if it passes its tests."""


class BatchRequest(BaseModel):
    """Many files for one problem."""

    model_config = ConfigDict(extra="forbid", strict=True)

    problem: PrintableText
    gpu: PrintableText = ""
    """A type of GPU, such as H100; any if empty."""
    tests_only: bool = False
    """Whether to time none of them."""
    items: list[BatchRequestItem] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_unique_keys(self) -> Self:
        seen: set[str] = set()
        for item in self.items:
            if item.key in seen:
                raise ValueError(f"two items have the key {item.key}")
            seen.add(item.key)
        return self

    def batch_items(self) -> list[BatchItem]:
        """The items as the ledger takes them."""
        names = {language: f"submission{ext}" for ext, language in LANGUAGES.items()}
        return [
            BatchItem(
                item.key,
                Submission(names[item.language], item.language, item.source.encode()),
                item.benchmarks and not self.tests_only,
            )
            for item in self.items
        ]


class BatchQueued(BaseModel):
    """A batch that is stored and will be graded."""

    id: int
    items: int
    url: str
    """The address of its status."""
    results_url: str
    """The address of its results."""


BatchState = Literal["queued", "running", "done", "cancelled"]


class BatchStatus(BatchQueued):
    """How far a batch is."""

    problem: str
    gpu: str | None
    """The type of GPU that it was submitted for; null for any."""
    state: BatchState
    """`done` once no item waits or is graded."""
    counts: dict[State, int]
    """The number of its items in each state. Those that are `held` could not be graded, for no
    fault of theirs."""
    ended: int
    """Items that are done, held or cancelled."""
    submitted_at: datetime
    ended_at: datetime | None
    removed_at: datetime | None
    """When its results were removed, since it was old."""


class BatchList(BaseModel):
    """Batches, newest first."""

    batches: list[BatchStatus]
    before: int | None
    """The `before` of the next page; null on the last."""


class GradingProgress(BaseModel):
    """How far a grading is."""

    stage: str
    """sandbox_start, load, test or benchmark."""
    case: str = ""
    index: int = 0
    """The case's index, from 0."""
    total: int = 0
    status: str | None = None

    @classmethod
    def of(cls, progress: Progress | None) -> GradingProgress | None:
        """From a worker's message."""
        if progress is None:
            return None
        return cls(
            stage=progress.stage,
            case=progress.case,
            index=progress.index,
            total=progress.total,
            status=progress.status,
        )


class QueueEntry(BaseModel):
    """A submission that waits or is graded."""

    id: int
    user: str
    problem: str
    state: State
    position: int | None
    """Position in the queue, 1 is next; null if it does not wait."""
    progress: GradingProgress | None
    submitted_at: datetime
    obstacle: str | None
    """Why no worker can take it now; null if one can."""

    @classmethod
    def of(cls, job: Job, obstacle: str | None) -> QueueEntry:
        """From a job of the ledger."""
        return cls(
            obstacle=obstacle,
            id=job.submission_id,
            user=job.user,
            problem=job.problem,
            state=job.state,
            position=job.position,
            progress=GradingProgress.of(job.progress),
            submitted_at=job.created_at,
        )


class SubmissionListItem(BaseModel):
    """A submission in a list. Fields that the caller may not see are null."""

    id: int
    user: str
    team: str | None
    """The team that it counts for; null if it counts for its user."""
    problem: str
    state: State
    language: Language | None
    verdict: Verdict | None
    gpu: str | None
    ranked: bool | None
    withdrawn: bool | None
    """Whether its author has withdrawn the result."""
    score_us: float | None
    submitted_at: datetime
    url: str


class SubmissionList(BaseModel):
    """Submissions, newest first."""

    submissions: list[SubmissionListItem]
    before: int | None
    """The `before` of the next page; null on the last."""


class SubmissionStatus(BaseModel):
    """The fields of a submission that are not in its report."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    id: int
    state: State
    user: str
    team: str | None = None
    """The team that it counts for; null if it counts for its user."""
    position: int | None = None
    """Position in the queue, 1 is next; null if it does not wait."""
    progress: GradingProgress | None = None
    submitted_at: datetime
    url: str
    counts: bool | None = None
    """Whether the result counts; null until it is done. A rejudged, deleted or withdrawn one does
    not."""
    withdrawn: bool | None = None
    """Whether its author has withdrawn the result; null until it is done."""
    source_removed_at: datetime | None = None
    """When the server removed the source, which was old and did not rank; null if it is there."""


if TYPE_CHECKING:
    SubmissionDetail = SubmissionStatus
else:
    SubmissionDetail = create_model(
        "Submission",
        __base__=SubmissionStatus,
        __doc__="A submission and its report, without the seed. Fields that are not known yet, or "
        "that the caller may not see, are null.",
        **{
            name: (field.annotation | None, Field(None, description=field.description))
            for name, field in Report.model_fields.items()
            if name not in ("id", "seed")
        },
        reward=(
            Reward | None,
            Field(None, description=Report.model_computed_fields["reward"].description),
        ),
    )


class StateEvent(BaseModel):
    """The data of the event `state`, which is sent at each change."""

    id: int
    state: State
    position: int | None
    progress: GradingProgress | None


class DoneEvent(BaseModel):
    """The data of the event `done`, the last one. Fields that the caller may not see are null."""

    id: int
    state: State
    verdict: Verdict | None
    reason: str | None
    score_us: float | None
    rank: int | None


class BoardInfo(BaseModel):
    """The settings of a problem's leaderboard."""

    deadline: datetime | None
    over: bool
    """Whether the deadline has passed."""
    hidden: bool
    publish_sources: bool
    note: str | None
    daily_limit: int | None
    """The most submissions of a user within 24 hours; null for any number."""
    freeze_at: datetime | None
    """From then on, only admins see later results and ranks; null for never."""
    frozen: bool
    """Whether that moment has passed."""
    team_size: int | None
    """The most people in a team; null if people compete alone."""


class ProblemSummary(BaseModel):
    """A problem in a list."""

    name: str
    digest: str
    title: str
    summary: str
    topic: str | None
    """The group in which it is listed; null without one."""
    difficulty: int | None
    """From 1, a first kernel, to 5, days for an expert; null if unknown."""
    limited_by: str | None
    """memory, compute or latency; null if unknown."""
    dtypes: list[str]
    """The element types of its tensors."""
    board: BoardInfo
    gpus: list[str]
    """The GPUs that have ranked results."""


class ProblemDetail(ProblemSummary):
    """A problem with its statement and specification."""

    statement: str
    """Markdown."""
    spec: dict[str, Any]
    """Its `problem.yaml`: arguments, cases, tolerances, limits."""
    daily_left: int | None
    """How many of `board.daily_limit` the caller has left; null without a limit for them."""


class ProblemList(BaseModel):
    """Problems by name."""

    problems: list[ProblemSummary]


class ProblemVersionInfo(BaseModel):
    """A version of a problem, and the number of results that count."""

    number: int
    """From 1, in the order in which versions appeared."""
    digest: str
    is_current: bool
    """Whether submissions are graded by it now."""
    results: int
    users: int
    """Users with a ranked result."""
    first_at: datetime | None
    """When its first result was graded; null without results."""
    last_at: datetime | None

    @classmethod
    def of(cls, version: ProblemVersion, current: str) -> ProblemVersionInfo:
        """From the board's version; `current` is the digest of the current one."""
        return cls(is_current=version.digest == current, **asdict(version))


class ProblemVersionList(BaseModel):
    """The versions of a problem, by number."""

    problem: str
    versions: list[ProblemVersionInfo]


class LeaderboardEntry(BaseModel):
    """A user's or a team's best ranked result."""

    rank: int
    user: str
    """The user, or the team."""
    team: bool
    """Whether it is a team."""
    submission_id: int | None
    """Null for a result that was not submitted through a server."""
    score_us: float
    ci_us: tuple[float, float]
    """95 % confidence interval of the score, microseconds."""
    language: str
    created_at: datetime
    speedup: dict[str, float]
    sol: float | None

    @classmethod
    def of(cls, standing: Standing, detail: ResultDetail) -> LeaderboardEntry:
        """From a row of the standings and the details of its report."""
        return cls(
            rank=standing.rank,
            user=standing.user,
            team=standing.is_team,
            submission_id=standing.submission_id,
            score_us=standing.score_us,
            ci_us=standing.ci_us,
            language=standing.language,
            created_at=standing.at,
            speedup=detail.speedup,
            sol=detail.sol,
        )


class Leaderboard(BaseModel):
    """The standings of a problem on one GPU."""

    problem: str
    digest: str
    """The version of the problem."""
    gpu: str | None
    """Null if there is no ranked result."""
    gpus: list[str]
    board: BoardInfo
    total: int
    """The number of entries on the whole leaderboard."""
    entries: list[LeaderboardEntry]


class NewTeam(BaseModel):
    """A team to make."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: PrintableText
    """1 to 40 printable characters without slashes, and no user's or other team's name."""


class JoinRequest(BaseModel):
    """A code to use."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: Annotated[PrintableText, Field(max_length=100)]


class TeamCode(BaseModel):
    """A code with which one user can join a team. It is shown only in this answer."""

    code: str
    until: datetime


class TeamInfo(BaseModel):
    """A team."""

    name: str
    created_at: datetime
    members: list[str]
    """The names of its users, sorted."""

    @classmethod
    def of(cls, team: Team) -> TeamInfo:
        """From the service's team."""
        return cls(**asdict(team))


class Queue(BaseModel):
    """The submissions that are graded now, then those that wait, in order."""

    jobs: list[QueueEntry]


class CurrentUser(BaseModel):
    """The user of the request's token."""

    name: str
    role: Literal["competitor", "worker", "admin"]
    team: str | None
    """The team that the user is in; null for none."""


class Health(BaseModel):
    """The server can do its work."""

    status: str


class VerdictNumbers(BaseModel):
    """How many results have which verdict."""

    graded: int
    verdicts: dict[Verdict, int]
    """Verdicts that no result has are left out."""
    rules: dict[Rule, int]
    """The number of `rejected` results by the rule that they broke."""

    @classmethod
    def of(cls, tally: VerdictTally) -> VerdictNumbers:
        """From the counts of the service."""
        return cls(graded=tally.graded, verdicts=dict(tally.verdicts), rules=dict(tally.rules))


class VerdictReport(VerdictNumbers):
    """All results, and by problem and month."""

    problems: dict[str, VerdictNumbers]
    months: dict[str, VerdictNumbers]
    """By month as ``2030-01``, UTC."""
