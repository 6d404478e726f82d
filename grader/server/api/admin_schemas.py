"""What admins say and are told: the bodies of `/api/v1/admin`, as models."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from grader.fleet import Job
from grader.server.api.schemas import Words
from grader.server.services.accounts import Account, Role, Token
from grader.server.services.admin_service import BoardSettings
from grader.server.services.audit import Act
from grader.server.services.rejudge import Preview, Rejudge, Which
from grader.server.services.rejudge_diff import Change


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time between the years 1 and 9999") from None


class _Order(BaseModel):
    """What is misspelt is refused, and not left at its default."""

    model_config = ConfigDict(extra="forbid")


class NewUser(_Order):
    """A user to make."""

    name: Words
    """1 to 40 printable characters without slashes."""
    role: Role = "competitor"


class NewToken(_Order):
    """A token to make."""

    label: Words = ""
    """What it is for, in the user's words."""


class Why(_Order):
    """The reason of an act."""

    reason: Words = ""


class NewSettings(_Order):
    """All the settings of a board."""

    deadline: Annotated[AwareDatetime, AfterValidator(_utc)] | None = None
    """Until when one may submit, with its time zone; null for always."""
    hidden: bool = False
    publish_sources: bool = False
    note: Words | None = None


class NewRejudge(_Order):
    """What to grade anew."""

    problem: Words
    which: Which = "best"
    """Each user's best ranked result on each GPU, or everything that was accepted."""
    submissions: Annotated[list[int], Field(min_length=1, max_length=1000)] | None = None
    """These and no others, in place of `which`."""
    reason: Words = ""


class Users(BaseModel):
    """Every user, by name."""

    users: list[Account]


class Secret(BaseModel):
    """A token, shown this once."""

    name: str
    token: str


class Tokens(BaseModel):
    """A user's tokens, oldest first, without their text."""

    tokens: list[Token]


class Ended(BaseModel):
    """How many tokens and sessions ended."""

    ended: int


class Board(BaseModel):
    """The settings of a board."""

    problem: str
    deadline: datetime | None
    hidden: bool
    publish_sources: bool
    note: str | None

    @classmethod
    def of(cls, problem: str, settings: BoardSettings) -> Board:
        """From the office's settings."""
        return cls(problem=problem, **asdict(settings))


class HeldJob(BaseModel):
    """A submission that waits for a person."""

    id: int
    user: str
    problem: str
    name: str
    reason: str | None
    failures: int
    deaths: int
    submitted_at: datetime
    rejudge_id: int | None

    @classmethod
    def of(cls, job: Job) -> HeldJob:
        """From the ledger's job."""
        return cls(
            id=job.submission_id,
            user=job.user,
            problem=job.problem,
            name=job.name,
            reason=job.held_reason,
            failures=job.failures,
            deaths=job.deaths,
            submitted_at=job.created_at,
            rejudge_id=job.rejudge_id,
        )


class Held(BaseModel):
    """What waits for a person, oldest first."""

    held: list[HeldJob]


class Deleted(BaseModel):
    """What became of a submission: cancelled if it was not done, deleted if it was."""

    became: Literal["cancelled", "deleted"]


class Started(BaseModel):
    """A rejudge's number."""

    id: int


class Rejudges(BaseModel):
    """Every rejudge, newest first."""

    rejudges: list[Rejudge]


class RejudgeShown(BaseModel):
    """A rejudge and what it changes."""

    rejudge: Rejudge
    changes: list[Change]

    @classmethod
    def of(cls, preview: Preview) -> RejudgeShown:
        """From the office's preview."""
        return cls(rejudge=preview.rejudge, changes=preview.changes)


class Applied(BaseModel):
    """How many results count in place of old ones."""

    exchanged: int


class Audit(BaseModel):
    """What admins did, newest first."""

    acts: list[Act]
