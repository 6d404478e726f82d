"""The admins' API, under `/api/v1/admin`, which `grade admin` calls. Every change is audited."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query

from grader.problem import Problem
from grader.server.api.admin_schemas import (
    AuditLog,
    BanRequest,
    BoardReply,
    BoardUpdate,
    BoardVersions,
    DeletionResult,
    GradedCount,
    HeldCount,
    HeldJob,
    HeldJobList,
    IdentityList,
    IssuedToken,
    NewIdentity,
    NewRejudge,
    NewReload,
    NewToken,
    NewUser,
    RejudgeApplied,
    RejudgeDetail,
    RejudgeList,
    RejudgeStarted,
    ReleasedCount,
    ReloadProgress,
    ReloadStatus,
    RevokedCount,
    SimilarSources,
    TokenList,
    UserList,
    WorkerInfo,
    WorkerList,
)
from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.errors import error_responses
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import issuer_of
from grader.server.services import Conflict, NotFound
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.held import list_held
from grader.server.services.sign_in import Person
from grader.server.services.similarity import LEAST, similar_sources
from grader.server.services.worker_list import list_workers

router = APIRouter(prefix="/admin", tags=["admin"])


UserName = Annotated[PrintableText, Path(description="A user's name, upper and lower case alike.")]
ProblemName = Annotated[PrintableText, Path(description="A problem's name.")]
WorkerName = Annotated[
    PrintableText, Path(description="A worker's name, such as farm/host. It may have slashes.")
]
Number = Annotated[int, Path(description="Its number.")]


@router.get(
    "/users", response_model=UserList, responses=error_responses(), summary="List the users"
)
def list_users(services: ServicesDep, admin: AdminUser) -> UserList:
    """Every user, with their ban and last use."""
    return UserList(users=services.accounts.users())


@router.post(
    "/users",
    status_code=201,
    response_model=IssuedToken,
    responses=error_responses(409),
    summary="Add a user",
)
def add_user(services: ServicesDep, admin: AdminUser, new: NewUser) -> IssuedToken:
    """Add a user and their first token, which is shown only in this answer."""
    token = services.accounts.add_user(new.name, new.role, by=admin.name)
    return IssuedToken(name=new.name.strip(), token=token)


@router.get(
    "/users/{name}/tokens",
    response_model=TokenList,
    responses=error_responses(404),
    summary="List a user's tokens",
)
def list_tokens(services: ServicesDep, admin: AdminUser, name: UserName) -> TokenList:
    """The numbers, labels and times of the tokens."""
    return TokenList(tokens=services.accounts.tokens(name))


@router.post(
    "/users/{name}/tokens",
    status_code=201,
    response_model=IssuedToken,
    responses=error_responses(404),
    summary="Make another token for a user",
)
def add_token(
    services: ServicesDep, admin: AdminUser, name: UserName, new: NewToken
) -> IssuedToken:
    """The token is shown only in this answer."""
    return IssuedToken(name=name, token=services.accounts.new_token(name, new.label, by=admin.name))


@router.delete(
    "/users/{name}/tokens",
    response_model=RevokedCount,
    responses=error_responses(404, 409),
    summary="Revoke all of a user's tokens",
)
def revoke_tokens(services: ServicesDep, admin: AdminUser, name: UserName) -> RevokedCount:
    """The sessions that the tokens opened end with them."""
    return RevokedCount(ended=services.accounts.revoke(name, by=admin.name))


@router.delete(
    "/tokens/{number}",
    response_model=RevokedCount,
    responses=error_responses(404, 409),
    summary="Revoke a token",
)
def revoke_token(services: ServicesDep, admin: AdminUser, number: Number) -> RevokedCount:
    """The sessions that it opened end with it."""
    return RevokedCount(ended=services.accounts.revoke(number, by=admin.name))


@router.get(
    "/users/{name}/identities",
    response_model=IdentityList,
    responses=error_responses(404),
    summary="List the accounts that a user signs in with",
)
def list_identities(services: ServicesDep, admin: AdminUser, name: UserName) -> IdentityList:
    """Provider and identifier of each account."""
    return IdentityList(identities=services.sign_ins.identities(name))


@router.post(
    "/users/{name}/identities",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Let a user sign in with an account",
)
def link_identity(
    services: ServicesDep, admin: AdminUser, name: UserName, new: NewIdentity
) -> None:
    """The account belongs to no other user."""
    person = Person(issuer_of(services, new.provider), new.subject)
    services.sign_ins.link_by_admin(name, person, by=admin.name)


@router.delete(
    "/users/{name}/identities/{number}",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Let a user no longer sign in with an account",
)
def unlink_identity(
    services: ServicesDep, admin: AdminUser, name: UserName, number: Number
) -> None:
    """The sessions that sign-ins opened end."""
    services.sign_ins.unlink(name, number, by=admin.name)


@router.post(
    "/users/{name}/ban",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Ban a user",
)
def ban(services: ServicesDep, admin: AdminUser, name: UserName, request: BanRequest) -> None:
    """Refuse the user's tokens, cancel their unfinished submissions, and hide their results."""
    services.admin.ban(name, request.reason, by=admin.name)


@router.post(
    "/users/{name}/unban",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Unban a user",
)
def unban(services: ServicesDep, admin: AdminUser, name: UserName) -> None:
    """The user's tokens work and their results count again."""
    services.admin.unban(name, by=admin.name)


@router.get(
    "/users/{name}/graded",
    response_model=GradedCount,
    responses=error_responses(404),
    summary="Count what a user's workers graded",
)
def get_graded(services: ServicesDep, admin: AdminUser, name: UserName) -> GradedCount:
    """The number of results that `hold` would hold."""
    return GradedCount(graded=services.admin.graded_by(name))


@router.post(
    "/users/{name}/hold",
    response_model=HeldCount,
    responses=error_responses(404),
    summary="Hold what a user's workers graded",
)
def hold(services: ServicesDep, admin: AdminUser, name: UserName) -> HeldCount:
    """Take the results off the boards until they are released, or a rejudge replaces them."""
    return HeldCount(held=services.admin.hold(name, by=admin.name))


@router.post(
    "/users/{name}/unhold",
    response_model=ReleasedCount,
    responses=error_responses(404),
    summary="Release what a user's workers graded",
)
def unhold(services: ServicesDep, admin: AdminUser, name: UserName) -> ReleasedCount:
    """The results that `hold` held count again."""
    return ReleasedCount(released=services.admin.unhold(name, by=admin.name))


@router.get(
    "/boards/{problem}",
    response_model=BoardReply,
    responses=error_responses(404),
    summary="A board's settings",
)
def get_board(services: ServicesDep, admin: AdminUser, problem: ProblemName) -> BoardReply:
    """The stored settings, or the defaults."""
    return BoardReply.of(problem, services.admin.board(_problem(services, problem).name))


@router.put(
    "/boards/{problem}",
    response_model=BoardReply,
    responses=error_responses(404, 409),
    summary="Set a board's settings",
)
def set_board(
    services: ServicesDep, admin: AdminUser, problem: ProblemName, new: BoardUpdate
) -> BoardReply:
    """Set all settings. A setting that is left out gets its default."""
    settings = BoardSettings(**new.model_dump())
    name = _problem(services, problem).name
    return BoardReply.of(problem, services.admin.set_board(name, settings, by=admin.name))


@router.get(
    "/boards/{problem}/versions",
    response_model=BoardVersions,
    responses=error_responses(404),
    summary="A board's versions",
)
def get_versions(services: ServicesDep, admin: AdminUser, problem: ProblemName) -> BoardVersions:
    """Every version of the problem, and what the digest of the current one covers: with it, `grade
    admin board versions` shows what a changed folder would change."""
    found = _problem(services, problem)
    return BoardVersions.of(found, services.standings.versions(found))


@router.get(
    "/held",
    response_model=HeldJobList,
    responses=error_responses(),
    summary="List held jobs",
)
def get_held(services: ServicesDep, admin: AdminUser) -> HeldJobList:
    """What an admin must look at: jobs that failed, or killed their workers, three times, and
    results that do not count until they are released."""
    return HeldJobList(held=[HeldJob(**asdict(one)) for one in list_held(services)])


@router.post(
    "/submissions/{number}/release",
    status_code=204,
    responses=error_responses(409),
    summary="Release a held submission",
)
def release(services: ServicesDep, admin: AdminUser, number: Number) -> None:
    """Queue a held job with its failures and worker deaths forgotten; let a held result count."""
    if not services.admin.release(number, by=admin.name):
        raise Conflict(f"submission {number} is not held; `grade admin held` lists those that are")


@router.delete(
    "/submissions/{number}",
    response_model=DeletionResult,
    responses=error_responses(404),
    summary="Delete a submission",
)
def delete(services: ServicesDep, admin: AdminUser, number: Number) -> DeletionResult:
    """Cancel one that is not done. Take a done one off the board; only admins still see it."""
    became = services.admin.delete(number, by=admin.name)
    if became is None:
        raise NotFound(f"there is no submission {number}, or it is cancelled or deleted already")
    return DeletionResult(became=became)


@router.get(
    "/rejudges",
    response_model=RejudgeList,
    responses=error_responses(),
    summary="List the rejudges",
)
def list_rejudges(services: ServicesDep, admin: AdminUser) -> RejudgeList:
    """The progress and the outcome of each."""
    return RejudgeList(rejudges=services.admin.rejudges.rejudges())


@router.post(
    "/rejudges",
    status_code=201,
    response_model=RejudgeStarted,
    response_model_exclude_defaults=True,
    responses=error_responses(404),
    summary="Start a rejudge",
)
def start_rejudge(services: ServicesDep, admin: AdminUser, new: NewRejudge) -> RejudgeStarted:
    """Queue results to be graded again, behind users' submissions. The board changes only when the
    rejudge is applied."""
    problem = _problem(services, new.problem)
    rejudges, selection = services.admin.rejudges, new.selection()
    number = rejudges.start(
        problem.name, problem.digest, selection, reason=new.reason, by=admin.name
    )
    without = rejudges.without_source(problem.name, problem.digest, selection)
    return RejudgeStarted(id=number, without_source=without)


@router.get(
    "/rejudges/{number}",
    response_model=RejudgeDetail,
    responses=error_responses(404),
    summary="Preview a rejudge",
)
def get_rejudge(services: ServicesDep, admin: AdminUser, number: Number) -> RejudgeDetail:
    """The old and the new verdict, score and rank of each submission."""
    found = services.admin.rejudges.preview(number)
    if found is None:
        raise NotFound(f"there is no rejudge {number}")
    return RejudgeDetail.of(found)


@router.post(
    "/rejudges/{number}/apply",
    response_model=RejudgeApplied,
    responses=error_responses(404, 409),
    summary="Apply a rejudge",
)
def apply_rejudge(services: ServicesDep, admin: AdminUser, number: Number) -> RejudgeApplied:
    """Replace all results at once. The old ones are kept, but do not count."""
    return RejudgeApplied(exchanged=services.admin.rejudges.apply(number, by=admin.name))


@router.post(
    "/rejudges/{number}/drop",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Drop a rejudge",
)
def drop_rejudge(services: ServicesDep, admin: AdminUser, number: Number) -> None:
    """Leave the board as it is, and cancel the gradings that are not done."""
    services.admin.rejudges.drop(number, by=admin.name)


@router.get(
    "/workers", response_model=WorkerList, responses=error_responses(), summary="List the workers"
)
def get_workers(services: ServicesDep, admin: AdminUser) -> WorkerList:
    """The workers of the last day, and those that are drained, by name."""
    return WorkerList(workers=[WorkerInfo.of(one) for one in list_workers(services)])


@router.post(
    "/workers/{name:path}/drain",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Drain a worker",
)
def drain_worker(services: ServicesDep, admin: AdminUser, name: WorkerName) -> None:
    """Give it no further jobs. It finishes those that it has."""
    services.admin.drain_worker(name, by=admin.name)


@router.post(
    "/workers/{name:path}/undrain",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Undrain a worker",
)
def undrain_worker(services: ServicesDep, admin: AdminUser, name: WorkerName) -> None:
    """Give it jobs again."""
    services.admin.undrain_worker(name, by=admin.name)


@router.get(
    "/problems/reload",
    response_model=ReloadStatus,
    responses=error_responses(409),
    summary="What a reload of the problems would change",
)
def get_reload(services: ServicesDep, admin: AdminUser) -> ReloadStatus:
    """What differs between the server's folder and what it serves, and how far the last reload of
    this server is."""
    return ReloadStatus.of(services.reload)


@router.post(
    "/problems/reload",
    status_code=202,
    response_model=ReloadProgress,
    responses=error_responses(409),
    summary="Reload the problems",
)
def start_reload(services: ServicesDep, admin: AdminUser, new: NewReload) -> ReloadProgress:
    """Verify each new or changed problem, and take those whose check holds. Each server of a
    database reloads for itself."""
    return ReloadProgress.of(services.reload.start(admin.name, new.problems))


@router.get(
    "/similar/{problem}",
    response_model=SimilarSources,
    responses=error_responses(404),
    summary="Sources that are alike",
)
def get_similar(
    services: ServicesDep,
    admin: AdminUser,
    problem: ProblemName,
    least: Annotated[
        float, Query(alias="min", ge=0.1, le=1, description="The least similarity to list.")
    ] = LEAST,
) -> SimilarSources:
    """Pairs of different users' best sources that are alike, best match first, without what they
    share with the starter and the reference. May take 25 s."""
    found = _problem(services, problem)
    return SimilarSources.of(found.name, similar_sources(services, found, least))


@router.get("/audit", response_model=AuditLog, responses=error_responses(), summary="The audit log")
def get_audit(
    services: ServicesDep,
    admin: AdminUser,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(description="Only lower numbers, for paging.")] = None,
) -> AuditLog:
    """The actions of admins, newest first."""
    return AuditLog(acts=services.admin.audit(limit, before))


def _problem(services: Services, name: str) -> Problem:
    """A problem of this server. Raises `NotFound`."""
    if name not in services.problems:
        raise NotFound(f"there is no such problem here; there are: {', '.join(services.problems)}")
    return services.problems[name]
