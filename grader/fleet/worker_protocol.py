"""The messages between a pulling worker and the server: the bodies of `/api/v1/work`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from grader.fleet.job import Lease
from grader.judge import Progress
from grader.judge.record import Device
from grader.problem.spec import Name
from grader.report import Report, one_line
from grader.submission import Language

WorkerName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Gpu = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
ProblemVersions = Annotated[dict[Name, Digest], Field(max_length=1000)]
"""Problem name → digest."""
LeaseSeconds = Annotated[float, Field(ge=1, le=600)]
LeaseToken = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$"), Field(repr=False)]

MAX_STEPS = 10_000
"""More steps than any problem has cases."""


def _validate_progress(progress: Progress) -> Progress:
    """Progress that is safe to show: counts in range, texts escaped and short."""
    if not (0 <= progress.index <= MAX_STEPS and 0 <= progress.total <= MAX_STEPS):
        raise ValueError(f"a grading has 0 to {MAX_STEPS:,} steps")
    return Progress(
        one_line(progress.stage, 40),
        one_line(progress.case, 100),
        progress.index,
        progress.total,
        progress.status and one_line(progress.status, 40),
    )


ReportedProgress = Annotated[Progress, AfterValidator(_validate_progress)]


class _Message(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )


class WorkerPresence(_Message):
    """A worker announces itself."""

    worker: WorkerName
    device: Device
    gpu: Gpu | None = None
    """The GPU's full name; null on a CPU."""
    slots: int = Field(ge=0, le=10_000)
    problems: ProblemVersions | None = None
    """The problem versions that it grades; null if not reported."""


class ServerProblems(_Message):
    """The reply to an announcement."""

    problems: ProblemVersions
    """The problem versions on the server."""


class ClaimRequest(_Message):
    """A worker asks for a job."""

    worker: WorkerName
    gpu: Gpu | None = None
    problems: ProblemVersions
    """The problem versions that it grades. It gets no job of any other."""
    languages: list[Language] | None = None
    """The languages that it can run; null for all."""
    lease_s: LeaseSeconds = 30
    """Seconds until another worker may get the job, unless heartbeats extend the lease."""


class ClaimReply(_Message):
    """A job for the worker."""

    id: int
    """The submission's id."""
    token: str = Field(repr=False)
    """The lease's secret, which every later message about the job carries."""
    until: datetime
    problem: str
    problem_digest: str
    name: str
    """File name, escaped."""
    language: Language
    source: bytes = Field(repr=False)
    """In base64, URL-safe alphabet."""
    gpu: str | None
    benchmarks: bool = True
    """Whether to time it. Left out if true, since older workers do not know it."""

    @classmethod
    def of(cls, lease: Lease) -> ClaimReply:
        """The message for a lease."""
        fields = {name: getattr(lease, name) for name in cls.model_fields if name != "id"}
        return cls(id=lease.submission_id, **fields)

    def lease(self) -> Lease:
        """The lease in this message."""
        return Lease(submission_id=self.id, **self.model_dump(exclude={"id"}))


class LeaseRequest(_Message):
    """A message about a job from the worker that holds its lease."""

    token: LeaseToken


class HeartbeatRequest(LeaseRequest):
    """The worker is still grading."""

    lease_s: LeaseSeconds = 30
    """Seconds from now until another worker may get the job."""
    progress: ReportedProgress | None = None


class FinishRequest(LeaseRequest):
    """The worker has a result."""

    report: Report


class FailRequest(LeaseRequest):
    """The worker could not grade, through no fault of the submission."""

    reason: str = Field(max_length=1000)


class LeaseReply(_Message):
    """The reply to a message about a lease."""

    ok: bool
    """False if the lease is lost: the worker must stop grading."""


class FinishReply(_Message):
    """The reply to a result."""

    result_id: int | None
    """The result's id on the board; null if the lease was lost."""
