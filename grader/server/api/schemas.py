"""What the API answers with, as models: the OpenAPI document is made of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from grader.fleet import Job, State
from grader.judge import Progress
from grader.report import Report, Verdict
from grader.server.services.standings import Detail, Racer
from grader.submission import Language


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable characters")
    return text


Words = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
"""Text in a request. Databases refuse some characters that no name of ours has."""


class Taken(BaseModel):
    """A submission that has been stored and will be graded."""

    id: int
    state: State
    url: str
    """Where its report will be."""


class Step(BaseModel):
    """Where a grading is."""

    stage: str
    """sandbox_start, load, test or benchmark."""
    case: str = ""
    index: int = 0
    """Counted from 0."""
    total: int = 0
    status: str | None = None

    @classmethod
    def of(cls, progress: Progress | None) -> Step | None:
        """From what a worker told."""
        if progress is None:
            return None
        return cls(
            stage=progress.stage,
            case=progress.case,
            index=progress.index,
            total=progress.total,
            status=progress.status,
        )


class Waiting(BaseModel):
    """A submission on its way."""

    id: int
    user: str
    problem: str
    state: State
    position: int | None
    """Place in the queue, 1 is next; null when it does not wait there."""
    progress: Step | None
    submitted_at: datetime
    obstacle: str | None
    """Why no worker that is there could take it; null when one could."""

    @classmethod
    def of(cls, job: Job, obstacle: str | None) -> Waiting:
        """From the ledger's job."""
        return cls(
            obstacle=obstacle,
            id=job.submission_id,
            user=job.user,
            problem=job.problem,
            state=job.state,
            position=job.position,
            progress=Step.of(job.progress),
            submitted_at=job.created_at,
        )


class Summary(BaseModel):
    """A submission in a list. What is not shown to the caller is null."""

    id: int
    user: str
    problem: str
    state: State
    language: Language | None
    verdict: Verdict | None
    gpu: str | None
    ranked: bool | None
    score_us: float | None
    submitted_at: datetime
    url: str


class Submissions(BaseModel):
    """Submissions, newest first."""

    submissions: list[Summary]
    before: int | None
    """What to ask for to go on; null at the end."""


class Told(BaseModel):
    """What is known of a submission besides its report."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    id: int
    state: State
    user: str
    position: int | None = None
    """Place in the queue, 1 is next; null when it does not wait there."""
    progress: Step | None = None
    submitted_at: datetime
    url: str
    counts: bool | None = None
    """Whether the result counts; null before it is done. A rejudged or deleted one does not."""


if TYPE_CHECKING:
    Shown = Told
else:
    Shown = create_model(
        "Submission",
        __base__=Told,
        __doc__="A submission: its report, without the seed. Null is what is not there yet, or is "
        "not shown to the caller.",
        **{
            name: (field.annotation | None, Field(None, description=field.description))
            for name, field in Report.model_fields.items()
            if name not in ("id", "seed")
        },
    )


class StateEvent(BaseModel):
    """The data of the event `state`, sent at each change."""

    id: int
    state: State
    position: int | None
    progress: Step | None


class DoneEvent(BaseModel):
    """The data of the event `done`, the last. What is not shown to the caller is null."""

    id: int
    state: State
    verdict: Verdict | None
    reason: str | None
    score_us: float | None
    rank: int | None


class BoardShown(BaseModel):
    """A problem's board."""

    deadline: datetime | None
    over: bool
    """Whether the deadline has passed."""
    hidden: bool
    publish_sources: bool
    note: str | None


class ProblemSummary(BaseModel):
    """A problem in the list."""

    name: str
    digest: str
    title: str
    summary: str
    board: BoardShown
    gpus: list[str]
    """Those that have ranked results."""


class ProblemShown(ProblemSummary):
    """A problem, whole."""

    statement: str
    """Markdown."""
    spec: dict[str, Any]
    """Its `problem.yaml`: arguments, cases, tolerances, limits."""


class Problems(BaseModel):
    """Every problem, by name."""

    problems: list[ProblemSummary]


class EntryShown(BaseModel):
    """One line of a leaderboard: a user's best ranked result."""

    rank: int
    user: str
    submission_id: int | None
    """Null for a result that was not handed in to a server."""
    score_us: float
    ci_us: tuple[float, float]
    """95 % confidence interval of the score, microseconds."""
    language: str
    created_at: datetime
    speedup: dict[str, float]
    sol: float | None

    @classmethod
    def of(cls, racer: Racer, detail: Detail) -> EntryShown:
        """From what the server knows of it."""
        return cls(
            rank=racer.rank,
            user=racer.user,
            submission_id=racer.submission_id,
            score_us=racer.score_us,
            ci_us=racer.ci_us,
            language=racer.language,
            created_at=racer.at,
            speedup=detail.speedup,
            sol=detail.sol,
        )


class Leaderboard(BaseModel):
    """Who is ahead, on one GPU."""

    problem: str
    digest: str
    gpu: str | None
    """Null when there is no ranked result."""
    gpus: list[str]
    board: BoardShown
    total: int
    """How many entries there are, of which these may be a part."""
    entries: list[EntryShown]


class Queue(BaseModel):
    """What is graded now, then what waits, in its order."""

    jobs: list[Waiting]


class Me(BaseModel):
    """Whose token this is."""

    name: str
    role: Literal["competitor", "worker", "admin"]


class Health(BaseModel):
    """That the server can do its work."""

    status: str
