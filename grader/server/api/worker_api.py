"""`/api/v1/work`: what workers that pull ask for. A worker sees only what it has leased."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from grader.board.store import MAX_ID
from grader.fleet import job
from grader.fleet.dispatch import hosted
from grader.fleet.validate_report import vetted
from grader.fleet.worker_protocol import (
    Answer,
    Failure,
    Finish,
    Finished,
    Heartbeat,
    Hold,
    Leased,
    Presence,
    Welcome,
    Wish,
)
from grader.report import one_line
from grader.server.http.auth import Tools, Worker, banned, errors, fail
from grader.server.services.accounts import worker_name

router = APIRouter(prefix="/work", tags=["work"], responses=errors(401, 403))

Number = Annotated[int, Path(ge=1, le=MAX_ID, description="The submission's number.")]


@router.post("/seen", summary="Say that a worker is there")
def seen(message: Presence, caller: Worker, tools: Tools) -> Welcome:
    """Workers that were not seen for a minute count as gone. The answer tells which versions of the
    problems are here."""
    tools.ledger.seen(
        job.Worker(
            name=worker_name(caller.name, message.worker),
            via="http",
            device=message.device,
            gpu=message.gpu and one_line(message.gpu, 200),
            slots=message.slots,
            problems=message.problems,
        )
    )
    return Welcome(problems={name: one.digest for name, one in tools.problems.items()})


@router.post(
    "/claim",
    response_model=Leased,
    responses={204: {"description": "There is no job for this worker now."}},
    summary="Take the next job",
)
def claim(message: Wish, caller: Worker, tools: Tools) -> Leased | Response:
    """Lease the next job that this worker can run. There is none when the server stops."""
    if tools.ending.begun:
        return Response(status_code=204)
    lease = tools.ledger.claim(
        worker_name(caller.name, message.worker),
        lease_s=message.lease_s,
        problems=message.problems,
        gpu=message.gpu,
        languages=message.languages,
    )
    if lease is None:
        return Response(status_code=204)
    account = tools.accounts.user(caller.name)
    if account is not None and account.banned_at is not None:  # while it was being leased
        tools.ledger.give_back(lease)
        raise banned(account.banned_reason or "")
    tools.ending.leased(lease, message.lease_s)
    return Leased.of(lease)


@router.post("/{number}/begin", summary="Start to grade")
def begin(number: Number, message: Hold, caller: Worker, tools: Tools) -> Answer:
    """Turn a lease into a grading."""
    return Answer(ok=tools.ledger.begin(_ticket(number, message)))


@router.post("/{number}/heartbeat", summary="Keep a lease")
def heartbeat(number: Number, message: Heartbeat, caller: Worker, tools: Tools) -> Answer:
    """Move the lease's deadline, and tell where the grading is."""
    ticket = _ticket(number, message)
    ok = tools.ledger.heartbeat(ticket, message.lease_s, message.progress)
    if ok:
        tools.ending.leased(ticket, message.lease_s)
    else:
        tools.ending.over(ticket)
    return Answer(ok=ok)


@router.post("/{number}/finish", summary="Hand in a result")
def finish(number: Number, message: Finish, caller: Worker, tools: Tools) -> Finished:
    """Put the result on the board and end the job, both or neither."""
    ticket = _ticket(number, message)
    try:
        report = vetted(hosted(message.report), tools.now())
        found = tools.ledger.finish(ticket, report)
    except ValueError as error:
        fail(422, "bad_report", one_line(str(error)))
    tools.ending.over(ticket)
    return Finished(result_id=found)


@router.post("/{number}/fail", summary="Hand in a judge error")
def give_up(number: Number, message: Failure, caller: Worker, tools: Tools) -> Answer:
    """The job is tried again after a pause; at the third failure a person must look."""
    ticket = _ticket(number, message)
    ok = tools.ledger.fail(ticket, message.reason)
    tools.ending.over(ticket)
    return Answer(ok=ok)


@router.post("/{number}/give-back", summary="Give a job back")
def give_back(number: Number, message: Hold, caller: Worker, tools: Tools) -> Answer:
    """Queue the job again, at its old place and with nothing counted."""
    ticket = _ticket(number, message)
    ok = tools.ledger.give_back(ticket)
    tools.ending.over(ticket)
    return Answer(ok=ok)


def _ticket(number: int, message: Hold) -> job.Ticket:
    return job.Ticket(number, message.token)
