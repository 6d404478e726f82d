"""Live progress: server-sent events of one submission."""

from __future__ import annotations

from collections.abc import AsyncIterator

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from grader.board import BoardError
from grader.fleet import Job
from grader.server.api.schemas import DoneEvent, StateEvent, Step
from grader.server.api.submissions import Number, as_seen, look_up, report_of
from grader.server.http.auth import NO_TOKEN, Caller, Refusal, Tools, errors, fail, is_still
from grader.server.http.throttle import network
from grader.server.services.job_events import FINAL
from grader.server.services.services import Services
from grader.server.services.visibility import sight

router = APIRouter()


def _listening(request: Request, tools: Tools, caller: Caller, number: Number) -> None:
    """Refuse before the stream begins: a submission that is not there for the listener, or one
    listener too many."""
    look_up(tools, caller, number)
    if tools.hub.is_full_for(_address(request)):
        wait = {"Retry-After": "30"}
        fail(503, "too_many_listeners", "too many listen now; ask for the report instead", wait)


@router.get(
    "/submissions/{number}/events",
    response_class=EventSourceResponse,
    dependencies=[Depends(_listening)],
    responses=errors(401, 404),
    summary="Follow a submission",
    tags=["submissions"],
)
async def events(
    request: Request, tools: Tools, caller: Caller, number: Number
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `state` (a `StateEvent`) at each change, then `done` (a `DoneEvent`).

    A comment comes every 15 s while nothing changes. The stream ends when the submission is done
    or cancelled or no longer shown, or when the server ends: then ask again.
    """
    last = None
    async for job in tools.hub.follow(number, _address(request)):
        try:
            event = await run_sync(_event, request, tools, caller, job)
        except Refusal:  # out of his sight meanwhile
            return
        except BoardError:  # out of ours
            if job.state in FINAL:
                return
            continue
        if event != last:  # when something changes that he is not shown is not for him either
            last = event
            yield event


def _event(request: Request, tools: Services, caller: Caller, job: Job) -> ServerSentEvent:
    """What to tell of a job now. Raises the refusal of one who may not know it any more."""
    if not is_still(request, tools, caller):
        fail(401, "no_token", NO_TOKEN)
    if job.state in FINAL:
        done = done_event(tools, caller, job.submission_id)
        return ServerSentEvent(event="done", raw_data=done.model_dump_json())
    board, rejudges = tools.office.board(job.problem), job.rejudge_id is not None
    allowed = sight(caller, job.user, board, tools.now(), rejudges=rejudges)
    if not allowed.exists:
        fail(404, "no_such_submission", "this submission is not shown to you any more")
    state = StateEvent(
        id=job.submission_id,
        state=job.state,
        position=job.position,
        progress=Step.of(as_seen(job, allowed).progress),
    )
    return ServerSentEvent(event="state", raw_data=state.model_dump_json())


def _address(request: Request) -> str:
    return network(request.client.host) if request.client else "unknown"


def done_event(tools: Services, caller: Caller, number: int) -> DoneEvent:
    """What is told at the end, as far as the caller may see it."""
    job, line, allowed = look_up(tools, caller, number)
    report = report_of(tools, line, allowed)
    return DoneEvent(
        id=number,
        state=job.state,
        verdict=report.verdict if report else None,
        reason=(report.reason or None) if report else None,
        score_us=report.score_us if report else None,
        rank=tools.races.rank(line) if report else None,
    )
