"""Models of the request and response bodies under `/api/v1/admin`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from grader.board import ProblemVersion
from grader.fleet.job import Via
from grader.judge.record import Device
from grader.problem import Problem
from grader.server.api.schemas import ProblemVersionInfo, TeamInfo
from grader.server.http.fields import PrintableText
from grader.server.services.accounts import Account, Role
from grader.server.services.admin_service import MAX_DAILY_LIMIT, MAX_TEAM_SIZE, BoardSettings
from grader.server.services.audit import AuditEntry
from grader.server.services.groups import Group
from grader.server.services.invitations import MAX_USES, Invitation
from grader.server.services.problem_reload import (
    CheckedProblem,
    FolderChange,
    ProblemReload,
    ReloadRun,
)
from grader.server.services.rejudge import (
    GradedBy,
    Rejudge,
    RejudgePreview,
    RejudgeSelection,
    Selection,
)
from grader.server.services.rejudge_diff import RejudgeChange
from grader.server.services.sign_in import Identity
from grader.server.services.similarity import SimilarityReport, SimilarPair
from grader.server.services.tokens import Token
from grader.server.services.worker_list import ListedWorker


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time between the years 1 and 9999") from None


class _StrictModel(BaseModel):
    """A request body. An unknown field is an error, so that a typo does not set a default."""

    model_config = ConfigDict(extra="forbid")


class NewUser(_StrictModel):
    """A user to add."""

    name: PrintableText
    """1 to 40 printable characters without slashes."""
    role: Role = "competitor"


class NewToken(_StrictModel):
    """A token to make."""

    label: PrintableText = ""
    """What the token is for."""


class NewIdentity(_StrictModel):
    """An account of another site that a user may sign in with."""

    provider: PrintableText
    """The provider's name in the server's settings, such as ``github``."""
    subject: PrintableText
    """The provider's identifier of the person, which never changes: of GitHub, the number ``id`` at
    ``https://api.github.com/users/LOGIN``."""


class BanRequest(_StrictModel):
    """Why a user is banned."""

    reason: PrintableText = ""


class BoardUpdate(_StrictModel):
    """All settings of a board."""

    deadline: Annotated[AwareDatetime, AfterValidator(_utc)] | None = None
    """The last moment to submit, with its time zone; null for none."""
    hidden: bool = False
    publish_sources: bool = False
    note: PrintableText | None = None
    opens_at: Annotated[AwareDatetime, AfterValidator(_utc)] | None = None
    """When the board opens, with its time zone; null if it is open. Until then, only admins see
    it."""
    daily_limit: Annotated[int, Field(ge=1, le=MAX_DAILY_LIMIT)] | None = None
    """The most submissions of a user within 24 hours; null for any number."""
    group: PrintableText | None = None
    """The group whose members alone, and admins, see the board; null for everyone."""
    freeze_at: Annotated[AwareDatetime, AfterValidator(_utc)] | None = None
    """From when only admins see later results and ranks, with its time zone; null for never."""
    team_size: Annotated[int, Field(ge=2, le=MAX_TEAM_SIZE)] | None = None
    """The most people in a team; null if people compete alone."""


class NewRejudge(_StrictModel):
    """The results to grade again."""

    problem: PrintableText
    which: RejudgeSelection = "best"
    """Each user's best ranked result on each GPU, or all accepted results."""
    submissions: Annotated[list[int], Field(min_length=1, max_length=1000)] | None = None
    """These submissions, instead of `which`."""
    worker: Annotated[PrintableText, Field(min_length=1, max_length=200)] | None = None
    """Every result of this worker (``farm/host``), or of all workers of a user (``farm``), instead
    of `which`."""
    reason: PrintableText = ""

    @model_validator(mode="after")
    def _selects_once(self) -> Self:
        if self.submissions is not None and self.worker is not None:
            raise ValueError("name submissions or a worker, not both")
        return self

    def selection(self) -> Selection:
        """What the service takes."""
        if self.worker is not None:
            return GradedBy(self.worker)
        return self.which if self.submissions is None else self.submissions


class NewReload(_StrictModel):
    """The problems to reload."""

    problems: Annotated[list[PrintableText], Field(min_length=1, max_length=1000)] | None = None
    """By name; null for all that have changed."""


class UserList(BaseModel):
    """Every user, by name."""

    users: list[Account]


class NewGroup(_StrictModel):
    """A group to make."""

    name: PrintableText
    """1 to 40 printable characters without slashes."""


class GroupList(BaseModel):
    """Every group, by name."""

    groups: list[Group]


class TeamList(BaseModel):
    """Every team, by name."""

    teams: list[TeamInfo]


class NewInvitation(_StrictModel):
    """An invitation to make."""

    group: PrintableText | None = None
    """The group that its users join; null for none."""
    uses: Annotated[int, Field(ge=1, le=MAX_USES)] = 1
    """How many people may use it."""
    until: Annotated[AwareDatetime, AfterValidator(_utc)] | None = None
    """When it ends, with its time zone; null for never."""


class NewCode(BaseModel):
    """The code of a new invitation. It is shown only in this answer."""

    code: str
    url: str
    """The page at which it is used."""


class InvitationList(BaseModel):
    """Every invitation, newest first, without its code."""

    invitations: list[Invitation]


class IdentityList(BaseModel):
    """The accounts of other sites that a user signs in with, oldest first."""

    identities: list[Identity]


class IssuedToken(BaseModel):
    """A new token. It is shown only in this answer."""

    name: str
    token: str


class TokenList(BaseModel):
    """A user's tokens, oldest first, without their text."""

    tokens: list[Token]


class RevokedCount(BaseModel):
    """How many tokens and sessions were revoked."""

    ended: int


class BoardReply(BaseModel):
    """The settings of a board."""

    problem: str
    deadline: datetime | None
    hidden: bool
    publish_sources: bool
    note: str | None
    opens_at: datetime | None
    daily_limit: int | None
    group: str | None
    freeze_at: datetime | None
    team_size: int | None

    @classmethod
    def of(cls, problem: str, settings: BoardSettings) -> BoardReply:
        """From the stored settings."""
        return cls(problem=problem, **asdict(settings))


class JudgedContent(BaseModel):
    """What the digest of a problem covers."""

    spec: dict[str, Any]
    """The spec without its texts and defaults."""
    files: dict[str, str]
    """File → SHA-256, hexadecimal."""


class BoardVersions(BaseModel):
    """The versions of a problem, and what the current one consists of."""

    problem: str
    versions: list[ProblemVersionInfo]
    current: JudgedContent

    @classmethod
    def of(cls, problem: Problem, versions: Iterable[ProblemVersion]) -> BoardVersions:
        """From a problem of the server and the board's versions of it."""
        return cls(
            problem=problem.name,
            versions=[ProblemVersionInfo.of(version, problem.digest) for version in versions],
            current=JudgedContent(spec=problem.judged.spec, files=problem.judged.files),
        )


class GradedCount(BaseModel):
    """How many results a user's workers graded that are not held, deleted or replaced."""

    graded: int


class HeldCount(BaseModel):
    """How many results are held now that were not."""

    held: int


class ReleasedCount(BaseModel):
    """How many results are no longer held."""

    released: int


class HeldJob(BaseModel):
    """A submission that is held for an admin to look at: its grading, or its result."""

    id: int
    user: str
    problem: str
    name: str
    reason: str | None
    failures: int
    deaths: int
    submitted_at: datetime
    rejudge_id: int | None
    result_id: int | None = None
    """The held result, which does not count; null for a grading that failed."""
    worker: str | None = None
    """The worker that graded the held result."""


class HeldJobList(BaseModel):
    """The held submissions, oldest first."""

    held: list[HeldJob]


class DeletionResult(BaseModel):
    """Whether the submission was cancelled (it was not done) or deleted (it was)."""

    became: Literal["cancelled", "deleted"]


class RejudgeStarted(BaseModel):
    """The number of the new rejudge."""

    id: int
    without_source: int = 0
    """Results that are left out, since their sources were removed. Absent if there are none."""


class RejudgeList(BaseModel):
    """Every rejudge, newest first."""

    rejudges: list[Rejudge]


class RejudgeDetail(BaseModel):
    """A rejudge and what it changes."""

    rejudge: Rejudge
    changes: list[RejudgeChange]

    @classmethod
    def of(cls, preview: RejudgePreview) -> RejudgeDetail:
        """From the admin service's preview."""
        return cls(rejudge=preview.rejudge, changes=preview.changes)


class RejudgeApplied(BaseModel):
    """How many results were replaced."""

    exchanged: int


class ReloadProgress(BaseModel):
    """A reload of problems, while it runs and after it."""

    by: str
    started_at: datetime
    ended_at: datetime | None
    """Null while it runs."""
    ok: bool
    """Whether it has ended and all its problems were taken."""
    problems: list[CheckedProblem]
    notes: list[str]
    """What it did to rankings and waiting submissions, or why it failed."""

    @classmethod
    def of(cls, run: ReloadRun) -> ReloadProgress:
        """From the service's record."""
        return cls(
            by=run.by,
            started_at=run.started_at,
            ended_at=run.ended_at,
            ok=run.ok,
            problems=list(run.problems),
            notes=list(run.notes),
        )


class ReloadStatus(BaseModel):
    """What a reload would change, and the last one."""

    folder: str
    changes: list[FolderChange]
    last: ReloadProgress | None
    """The last reload since the start of this server; null without one."""

    @classmethod
    def of(cls, reload: ProblemReload) -> ReloadStatus:
        """From the service."""
        changes, last = reload.preview(), reload.last
        return cls(
            folder=str(reload.folder),
            changes=changes,
            last=None if last is None else ReloadProgress.of(last),
        )


class SimilarSources(BaseModel):
    """Pairs of different users' sources that are alike."""

    problem: str
    pairs: list[SimilarPair]
    sources: int
    """The sources on the board: each user's best on each GPU."""
    compared: int
    too_short: int
    """Sources with hardly anything besides the starter and the reference; not compared."""
    unreadable: int
    """Sources that were removed, or whose tokens took too long; not compared."""
    complete: bool
    """Whether the time sufficed. If not, the next report goes on."""

    @classmethod
    def of(cls, problem: str, report: SimilarityReport) -> SimilarSources:
        """From the service's report."""
        values = {name: getattr(report, name) for name in cls.model_fields if name != "problem"}
        return cls(problem=problem, **values)


class WorkerInfo(BaseModel):
    """A worker that was seen in the last day, or that is drained."""

    name: str
    via: Via
    """local, ray, or http for one that pulls jobs."""
    device: Device
    gpu: str | None
    slots: int
    running: int
    """The jobs that it holds now."""
    last_seen: datetime
    connected: bool
    drained_at: datetime | None
    """Since when it gets no further jobs; null if it gets some."""

    @classmethod
    def of(cls, listed: ListedWorker) -> WorkerInfo:
        """From the list of workers."""
        values = asdict(listed.status)
        del values["problems"]
        return cls(**values, connected=listed.connected, running=listed.running)


class WorkerList(BaseModel):
    """The workers, by name."""

    workers: list[WorkerInfo]


class AuditLog(BaseModel):
    """The actions of admins, newest first."""

    acts: list[AuditEntry]
