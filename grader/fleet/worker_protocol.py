"""What a pulling worker and the server say to each other: the bodies of `/api/v1/work`."""

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
Versions = Annotated[dict[Name, Digest], Field(max_length=1000)]
"""Problems, each with its digest."""
LeaseSeconds = Annotated[float, Field(ge=1, le=600)]
LeaseToken = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$"), Field(repr=False)]

MOST_STEPS = 10_000
"""More than the cases of any problem."""


def _shown(progress: Progress) -> Progress:
    """Everyone who waits is shown this."""
    if not (0 <= progress.index <= MOST_STEPS and 0 <= progress.total <= MOST_STEPS):
        raise ValueError("no grading has so many steps")
    return Progress(
        one_line(progress.stage, 40),
        one_line(progress.case, 100),
        progress.index,
        progress.total,
        progress.status and one_line(progress.status, 40),
    )


Step = Annotated[Progress, AfterValidator(_shown)]


class _Message(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )


class Presence(_Message):
    """A worker says that it is there."""

    worker: WorkerName
    device: Device
    gpu: Gpu | None = None
    """The GPU's full name; null on a CPU."""
    slots: int = Field(ge=0, le=10_000)
    problems: Versions | None = None
    """What it grades; null when it does not say."""


class Welcome(_Message):
    """What a worker is told that says that it is there."""

    problems: Versions
    """What the server has."""


class Wish(_Message):
    """A worker asks for a job."""

    worker: WorkerName
    gpu: Gpu | None = None
    problems: Versions
    """What it has; it is given no other problem, and no other version."""
    languages: list[Language] | None = None
    """What it can run; null for everything."""
    lease_s: LeaseSeconds = 30
    """Seconds until the job is given to another, unless a heartbeat moves that."""


class Leased(_Message):
    """A job for the worker."""

    id: int
    """The submission's number."""
    token: str = Field(repr=False)
    """Proves that the lease is the worker's; every later message about the job carries it."""
    until: datetime
    problem: str
    problem_digest: str
    name: str
    """File name, escaped."""
    language: Language
    source: bytes = Field(repr=False)
    """base64, of the URL-safe alphabet."""
    gpu: str | None

    @classmethod
    def of(cls, lease: Lease) -> Leased:
        """A lease as it is sent."""
        said = {name: getattr(lease, name) for name in cls.model_fields if name != "id"}
        return cls(id=lease.submission_id, **said)

    def lease(self) -> Lease:
        """The lease that was sent."""
        return Lease(submission_id=self.id, **self.model_dump(exclude={"id"}))


class Hold(_Message):
    """A word about a job, from the worker that has it."""

    token: LeaseToken


class Heartbeat(Hold):
    """The worker still grades."""

    lease_s: LeaseSeconds = 30
    """Seconds from now until the job is given to another."""
    progress: Step | None = None


class Finish(Hold):
    """The worker is done."""

    report: Report


class Failure(Hold):
    """The worker could not grade, through no fault of the submission."""

    reason: str = Field(max_length=1000)


class Answer(_Message):
    """Whether it happened."""

    ok: bool
    """False when the lease is no longer the worker's: it shall stop then."""


class Finished(_Message):
    """What became of a result."""

    result_id: int | None
    """Its number on the board; null when the lease was no longer the worker's."""
