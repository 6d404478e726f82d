"""Live progress: server-sent events of one submission."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from grader.board import BoardError
from grader.server.api import Number, look_up, report_of
from grader.server.guard import Caller, Refusal, Tools, errors, fail
from grader.server.hub import FINAL
from grader.server.replies import DoneEvent, StateEvent, Step
from grader.server.services import Services
from grader.server.throttle import network
from grader.server.visibility import Sight

router = APIRouter()


def _listening(request: Request, tools: Tools, caller: Caller, number: Number) -> Sight:
    """What the listener is shown. Refuses before the stream begins: a submission that is not there
    for him, or one listener too many."""
    _, _, allowed = look_up(tools, caller, number)
    if tools.hub.is_full_for(_address(request)):
        wait = {"Retry-After": "30"}
        fail(503, "too_many_listeners", "too many listen now; ask for the report instead", wait)
    return allowed


@router.get(
    "/submissions/{number}/events",
    response_class=EventSourceResponse,
    responses=errors(401, 404),
    summary="Follow a submission",
    tags=["submissions"],
)
async def events(
    request: Request,
    tools: Tools,
    caller: Caller,
    number: Number,
    allowed: Annotated[Sight, Depends(_listening)],
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `state` (a `StateEvent`) at each change, then `done` (a `DoneEvent`).

    A comment comes every 15 s while nothing changes. The stream ends when the submission is done
    or cancelled, or when the server ends: then ask again.
    """
    async for job in tools.hub.follow(number, _address(request)):
        if job.state in FINAL:
            try:
                done = await run_sync(done_event, tools, caller, number)
            except (Refusal, BoardError):  # out of his sight meanwhile, or out of ours
                return
            yield ServerSentEvent(event="done", raw_data=done.model_dump_json())
        else:
            now = StateEvent(
                id=number,
                state=job.state,
                position=job.position,
                progress=Step.of(job.progress) if allowed.result else None,
            )
            yield ServerSentEvent(event="state", raw_data=now.model_dump_json())


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
