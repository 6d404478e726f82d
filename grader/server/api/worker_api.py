"""The API of pulling workers, under `/api/v1/work`. A worker sees only the jobs that it leases."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from grader.board.store import MAX_ID
from grader.fleet import job
from grader.fleet.dispatch import unrank_process_sandbox
from grader.fleet.validate_report import validate_report
from grader.fleet.worker_protocol import (
    ClaimReply,
    ClaimRequest,
    FailRequest,
    FinishReply,
    FinishRequest,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    ServerProblems,
    WorkerPresence,
)
from grader.report import one_line
from grader.server.http.auth import ServicesDep, WorkerUser
from grader.server.http.errors import banned, error_responses, fail
from grader.server.services.accounts import User, worker_name

router = APIRouter(prefix="/work", tags=["work"], responses=error_responses())

Number = Annotated[int, Path(ge=1, le=MAX_ID, description="The submission's number.")]


@router.post("/seen", summary="Announce a worker")
def seen(message: WorkerPresence, caller: WorkerUser, services: ServicesDep) -> ServerProblems:
    """Record that a worker is alive. One that is silent for a minute counts as gone. The answer has
    the server's versions of the problems."""
    services.ledger.announce(
        job.Worker(
            name=worker_name(caller.name, message.worker),
            via="http",
            device=message.device,
            gpu=message.gpu and one_line(message.gpu, 200),
            slots=message.slots,
            problems=message.problems,
        )
    )
    return ServerProblems(problems={name: one.digest for name, one in services.problems.items()})


@router.post(
    "/claim",
    response_model=ClaimReply,
    response_model_exclude_defaults=True,
    responses={204: {"description": "No job for this worker now."}},
    summary="Take the next job",
)
def claim(
    message: ClaimRequest, caller: WorkerUser, services: ServicesDep
) -> ClaimReply | Response:
    """Lease the next job that this worker can run, if one of its announced slots is free. A server
    that is stopping has none."""
    if services.drain.started:
        return Response(status_code=204)
    lease = services.ledger.claim(
        worker_name(caller.name, message.worker),
        lease_s=message.lease_s,
        problems=message.problems,
        gpu=message.gpu,
        languages=message.languages,
        within_slots=True,
    )
    if lease is None:
        return Response(status_code=204)
    account = services.accounts.user(caller.name)
    if account is not None and account.banned_at is not None:  # since the request was admitted
        services.ledger.give_back(lease)
        raise banned(account.banned_reason or "")
    services.drain.hold(lease, message.lease_s)
    return ClaimReply.of(lease)


@router.post("/{number}/begin", summary="Start grading")
def begin(
    number: Number, message: LeaseRequest, caller: WorkerUser, services: ServicesDep
) -> LeaseReply:
    """Move a leased job to the state `running`."""
    return LeaseReply(ok=services.ledger.begin(_ticket(number, message, caller)))


@router.post("/{number}/heartbeat", summary="Renew a lease")
def heartbeat(
    number: Number, message: HeartbeatRequest, caller: WorkerUser, services: ServicesDep
) -> LeaseReply:
    """Extend the lease and report the grading's progress."""
    ticket = _ticket(number, message, caller)
    ok = services.ledger.heartbeat(ticket, message.lease_s, message.progress)
    if ok:
        services.drain.hold(ticket, message.lease_s)
    else:
        services.drain.release(ticket)
    return LeaseReply(ok=ok)


@router.post("/{number}/finish", summary="Report a result")
def finish(
    number: Number, message: FinishRequest, caller: WorkerUser, services: ServicesDep
) -> FinishReply:
    """Store the result and end the job in one transaction."""
    ticket = _ticket(number, message, caller)
    try:
        report = validate_report(unrank_process_sandbox(message.report), services.now())
        found = services.ledger.finish(ticket, report)
    except ValueError as error:
        fail(422, "bad_report", one_line(str(error)))
    services.drain.release(ticket)
    return FinishReply(result_id=found)


@router.post("/{number}/fail", summary="Report a judge error")
def give_up(
    number: Number, message: FailRequest, caller: WorkerUser, services: ServicesDep
) -> LeaseReply:
    """Queue the job again after a pause. The third failure holds it for an admin."""
    ticket = _ticket(number, message, caller)
    ok = services.ledger.fail(ticket, message.reason)
    services.drain.release(ticket)
    return LeaseReply(ok=ok)


@router.post("/{number}/give-back", summary="Return a job")
def give_back(
    number: Number, message: LeaseRequest, caller: WorkerUser, services: ServicesDep
) -> LeaseReply:
    """Queue the job again at its old position, without counting a failure."""
    ticket = _ticket(number, message, caller)
    ok = services.ledger.give_back(ticket)
    services.drain.release(ticket)
    return LeaseReply(ok=ok)


def _ticket(number: int, message: LeaseRequest, caller: User) -> job.LeaseKey:
    """The key of a lease, which only the caller's own workers may hold."""
    return job.LeaseKey(number, message.token, holder=worker_name(caller.name))
