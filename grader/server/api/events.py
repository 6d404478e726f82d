"""Live progress of a submission as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from grader.board import BoardError
from grader.fleet import Job
from grader.server.api.schemas import DoneEvent, GradingProgress, StateEvent
from grader.server.http.auth import OPTIONAL_TOKEN, Caller, ServicesDep, is_still_authenticated
from grader.server.http.errors import NO_TOKEN, Refusal, error_responses, fail
from grader.server.http.fields import SubmissionNumber
from grader.server.http.lookup import submission_or_404
from grader.server.http.throttle import network_of
from grader.server.services.access import visible_job, visible_rank, visible_report
from grader.server.services.container import Services
from grader.server.services.job_events import FINAL_STATES
from grader.server.services.visibility import access_for

router = APIRouter()


def _check_listener(
    request: Request, services: ServicesDep, caller: Caller, number: SubmissionNumber
) -> None:
    """Refuse before the stream begins: an unknown submission, or one listener too many."""
    submission_or_404(services, caller, number)
    if services.events.is_full_for(_address(request)):
        message = "too many event streams are open; poll the report instead"
        fail(503, "too_many_listeners", message, {"Retry-After": "30"})


@router.get(
    "/submissions/{number}/events",
    response_class=EventSourceResponse,
    dependencies=[Depends(_check_listener)],
    responses=error_responses(404),
    openapi_extra=OPTIONAL_TOKEN,
    summary="Follow a submission",
    tags=["submissions"],
)
async def events(
    request: Request, services: ServicesDep, caller: Caller, number: SubmissionNumber
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `state` (a `StateEvent`) at each change, then `done` (a `DoneEvent`).

    A comment comes every 15 s while nothing changes. The stream ends when the submission is done
    or cancelled, when the caller may no longer see it, and when the server stops; in the last case,
    connect again.
    """
    last = None
    async for job in services.events.follow(number, _address(request)):
        try:
            event = await run_sync(_event, request, services, caller, job)
        except Refusal:  # the caller may no longer see it
            return
        except BoardError:
            if job.state in FINAL_STATES:
                return
            continue
        if event != last:  # a change that the caller may not see gives the same event
            last = event
            yield event


def _event(request: Request, services: Services, caller: Caller, job: Job) -> ServerSentEvent:
    """The event for a job's current state. Raises `Refusal` if the caller may no longer see it."""
    if not is_still_authenticated(request, services, caller):
        fail(401, "no_token", NO_TOKEN)
    if job.state in FINAL_STATES:
        done = _done_event(services, caller, job.submission_id)
        return ServerSentEvent(event="done", raw_data=done.model_dump_json())
    board, is_rejudge = services.admin.board(job.problem), job.rejudge_id is not None
    access = access_for(caller, job.user, board, services.now(), team=job.team, rejudges=is_rejudge)
    if not access.exists:
        fail(404, "no_such_submission", "this submission is not shown to you any more")
    state = StateEvent(
        id=job.submission_id,
        state=job.state,
        position=job.position,
        progress=GradingProgress.of(visible_job(job, access).progress),
    )
    return ServerSentEvent(event="state", raw_data=state.model_dump_json())


def _done_event(services: Services, caller: Caller, number: int) -> DoneEvent:
    """The last event, with the parts of the result that the caller may see."""
    job, summary, access = submission_or_404(services, caller, number)
    report = visible_report(services, summary, access)
    return DoneEvent(
        id=number,
        state=job.state,
        verdict=report.verdict if report else None,
        reason=(report.reason or None) if report else None,
        score_us=report.score_us if report else None,
        rank=visible_rank(services, summary, access) if report else None,
    )


def _address(request: Request) -> str:
    return network_of(request.client.host) if request.client else "unknown"
