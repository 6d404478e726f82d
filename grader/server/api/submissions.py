"""Submissions and the queue, under `/api/v1`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile
from fastapi.responses import PlainTextResponse

from grader.fleet import State
from grader.report import Verdict
from grader.server.api.schemas import (
    CurrentUser,
    GradingProgress,
    Queue,
    QueueEntry,
    SubmissionDetail,
    SubmissionList,
    SubmissionListItem,
    SubmissionQueued,
    SubmissionStatus,
)
from grader.server.http.auth import OPTIONAL_TOKEN, AnyUser, Caller, CompetitorUser, ServicesDep
from grader.server.http.errors import error_responses, fail
from grader.server.http.etag import NOT_MODIFIED, CacheableResponse, share
from grader.server.http.fields import IdempotencyKey, PrintableText, SubmissionNumber
from grader.server.http.lookup import source_or_refusal, submission_or_404
from grader.server.http.submit import submit_upload
from grader.server.http.withdraw import withdraw_result
from grader.server.services import visibility
from grader.server.services.access import (
    list_submissions,
    queue_obstacles,
    visible_queue,
    visible_rank,
    visible_report,
)
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.visibility import Access
from grader.server.services.withdrawals import WITHDRAWN
from grader.submission import LANGUAGES

router = APIRouter()


@router.post(
    "/submissions",
    status_code=202,
    response_model=SubmissionQueued,
    responses=error_responses(404, 409, 415, 507),
    summary="Submit a kernel",
    tags=["submissions"],
)
def submit(
    request: Request,
    response: Response,
    services: ServicesDep,
    caller: CompetitorUser,
    problem: Annotated[PrintableText, Form(description="The problem's name.")],
    file: Annotated[UploadFile, File(description="One .py or .cu file.")],
    gpu: Annotated[
        PrintableText, Form(description="A type of GPU, such as H100; any if empty.")
    ] = "",
    idempotency_key: IdempotencyKey = None,
) -> SubmissionQueued:
    """Store one source file and queue it for grading.

    Once this answers, the submission cannot be lost. Its report will be at `url`.
    """
    number = submit_upload(request, services, caller, problem, file, gpu, idempotency_key)
    response.headers["Location"] = _url(request, number)
    return SubmissionQueued(id=number, state=State.QUEUED, url=_url(request, number))


@router.get(
    "/submissions",
    response_model=SubmissionList,
    responses=error_responses(),
    openapi_extra=OPTIONAL_TOKEN,
    summary="List submissions",
    tags=["submissions"],
)
def get_submissions(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    user: Annotated[PrintableText | None, Query(description="Only this user's.")] = None,
    team: Annotated[PrintableText | None, Query(description="Only those for this team.")] = None,
    problem: Annotated[PrintableText | None, Query(description="Only of this problem.")] = None,
    state: Annotated[State | None, Query(description="Only in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(description="Only lower numbers, for paging.")] = None,
) -> SubmissionList:
    """The newest submissions, newest first. What the caller may not see is null or left out."""
    found, next_before = list_submissions(
        services,
        caller,
        limit=limit,
        before=before,
        user=user,
        team=team,
        problem=problem,
        state=state,
        deleted=caller is not None and caller.role == "admin",
    )
    items = [_list_item(request, summary, access) for summary, access in found]
    return SubmissionList(submissions=items, before=next_before)


@router.get(
    "/submissions/{number}",
    response_model=SubmissionDetail,
    name="api_submission",
    responses=error_responses(404),
    openapi_extra=OPTIONAL_TOKEN,
    summary="A submission and its report",
    tags=["submissions"],
)
def get_submission(
    request: Request, services: ServicesDep, caller: Caller, number: SubmissionNumber
) -> Response:
    """The parts of the report that the caller may see. Fields are null until it is done."""
    job, summary, access = submission_or_404(services, caller, number)
    has_result = job.result_id is not None and access.result
    status = SubmissionStatus(
        id=number,
        state=job.state,
        user=job.user,
        team=job.team,
        position=job.position,
        progress=GradingProgress.of(job.progress),
        submitted_at=job.created_at,
        url=_url(request, number),
        counts=not summary.void if has_result else None,
        withdrawn=WITHDRAWN in summary.void if has_result else None,
        source_removed_at=summary.source_removed_at if access.source else None,
    )
    fields = {
        "problem": job.problem,
        "problem_digest": job.problem_digest,
        "submission_sha256": job.sha256 if access.details else None,
        "submission_name": job.name if access.details else None,
        "language": job.language if access.result else None,
    }
    report = visible_report(services, summary, access)
    if report is not None:
        rank = visible_rank(services, summary, access)
        fields |= dict(report) | {"rank": rank, "reward": report.reward}
        fields |= {"reason": report.reason or None, "log": report.log if access.details else None}
        if not access.details:
            fields |= {"submission_sha256": None, "submission_name": None, "notes": None}
    for name in ("id", "seed"):
        fields.pop(name, None)
    detail = SubmissionDetail.model_validate(dict(status) | fields)
    return Response(detail.model_dump_json(), media_type="application/json")


@router.get(
    "/submissions/{number}/source",
    response_class=PlainTextResponse,
    responses=error_responses(404, 410),
    openapi_extra=OPTIONAL_TOKEN,
    summary="The submitted source",
    tags=["submissions"],
)
def get_source(services: ServicesDep, caller: Caller, number: SubmissionNumber) -> Response:
    """The file's bytes as plain text."""
    _, summary, access = submission_or_404(services, caller, number)
    content = source_or_refusal(services, summary, access)
    extension = next(ext for ext, language in LANGUAGES.items() if language == summary.language)
    headers = {"Content-Disposition": f'attachment; filename="submission-{number}{extension}"'}
    return PlainTextResponse(content, headers=headers)


@router.delete(
    "/submissions/{number}",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Cancel a submission",
    tags=["submissions"],
)
def cancel(services: ServicesDep, caller: CompetitorUser, number: SubmissionNumber) -> None:
    """Cancel one's own submission if it is not done. For an admin, delete a done one."""
    job, _, _ = submission_or_404(services, caller, number)
    if caller.role == "admin":
        if services.admin.delete(number, caller.name) is None:
            fail(409, "deleted", f"submission {number} is {job.state}, or was deleted already")
        return
    if visibility.relation(caller, job.user) != "owner":
        fail(403, "not_yours", "only its author can cancel a submission")
    if not services.ledger.cancel(number, caller.name):
        fail(409, "not_running", f"submission {number} is {job.state} already")


@router.post(
    "/submissions/{number}/withdraw",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Withdraw a result",
    tags=["submissions"],
)
def withdraw(services: ServicesDep, caller: CompetitorUser, number: SubmissionNumber) -> None:
    """Take one's own result off its board, until the deadline. One's next best counts then."""
    withdraw_result(services, caller, number)


@router.post(
    "/submissions/{number}/restore",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Take a withdrawal back",
    tags=["submissions"],
)
def restore(services: ServicesDep, caller: CompetitorUser, number: SubmissionNumber) -> None:
    """Let one's own withdrawn result count again, until the deadline. What an admin has declared
    void stays so."""
    withdraw_result(services, caller, number, undo=True)


@router.get(
    "/queue",
    response_model=Queue,
    responses=error_responses() | NOT_MODIFIED,
    openapi_extra=OPTIONAL_TOKEN,
    summary="The queue",
    tags=["submissions"],
)
def get_queue(request: Request, services: ServicesDep, caller: Caller) -> Response:
    """The unfinished submissions of boards that the caller may see, without those of rejudges."""
    obstacle = queue_obstacles(services)
    queue = Queue(
        jobs=[QueueEntry.of(job, obstacle(job)) for job in visible_queue(services, caller)]
    )
    content = CacheableResponse(queue.model_dump_json().encode(), "application/json")
    return (content if caller else share(request, content, "queue")).to(request)


@router.get(
    "/me",
    response_model=CurrentUser,
    responses=error_responses(),
    summary="The user of a token",
    tags=["users"],
)
def me(caller: AnyUser) -> CurrentUser:
    """The caller's name, role and team."""
    return CurrentUser(name=caller.name, role=caller.role, team=caller.team)


def _list_item(request: Request, summary: SubmissionSummary, access: Access) -> SubmissionListItem:
    visible = access.result
    return SubmissionListItem(
        id=summary.id,
        user=summary.user,
        team=summary.team,
        problem=summary.problem,
        state=summary.state,
        language=summary.language if visible else None,
        verdict=summary.verdict if visible else None,
        gpu=summary.gpu if visible else None,
        ranked=summary.ranked and not summary.void if visible and summary.verdict else None,
        withdrawn=WITHDRAWN in summary.void if visible and summary.verdict else None,
        score_us=summary.score_us if visible and summary.verdict is Verdict.ACCEPTED else None,
        submitted_at=summary.created_at,
        url=_url(request, summary.id),
    )


def _url(request: Request, number: int) -> str:
    return str(request.url_for("api_submission", number=number))
