"""Submitting an uploaded file, for the API and for the pages' form, and batches, for the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import PurePosixPath

from fastapi import Request, UploadFile

from grader.fleet import (
    BatchItem,
    DeadlinePassed,
    DiskNearlyFull,
    QueueFull,
    QuotaExceeded,
    SubmissionRefused,
    TooManyInFlight,
)
from grader.fleet.job import DailyLimitReached, EntryRefused, KeyReused, gpu_matches
from grader.problem import Problem
from grader.server.http.auth import check_not_draining
from grader.server.http.errors import Refusal, banned, fail, too_often
from grader.server.http.lookup import comma_separated, problem_or_404
from grader.server.services import visibility
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.submission import Submission, extensions, language_of

_REFUSALS: dict[type[SubmissionRefused], tuple[int, str]] = {
    DailyLimitReached: (429, "daily_quota"),
    DiskNearlyFull: (507, "disk_full"),
    QueueFull: (503, "queue_full"),
    TooManyInFlight: (429, "too_many_in_flight"),
}


def submit_upload(
    request: Request,
    services: Services,
    caller: User,
    problem_name: str,
    file: UploadFile,
    gpu: str,
    idempotency_key: str | None = None,
) -> int:
    """Store an uploaded file, queue it for grading, and return its number.

    `gpu` is a type of GPU; empty for the problem's own or any. Raises `Refusal`. A refused
    submission does not count against the user's submissions per minute.
    """
    with _counted(request, caller):
        problem, board, deadline = _open_problem(services, caller, problem_name, idempotency_key)
        submission = _read(problem, file)
        wanted_gpu = gpu.strip() or problem.spec.gpu
        if not services.ledger.knows_key(caller.name, idempotency_key):
            _check_workers(services, wanted_gpu)
        with _refusals():
            number = services.ledger.submit(
                caller.name,
                problem.name,
                problem.digest,
                submission,
                wanted_gpu,
                max_in_flight=services.settings.max_in_flight,
                max_queue=services.settings.max_queue,
                max_stored_bytes=services.settings.source_bytes_per_user,
                min_free_bytes=services.settings.min_free_bytes,
                daily_limit=None if caller.role == "admin" else board.daily_limit,
                team_size=board.team_size,
                deadline=deadline,
                idempotency_key=idempotency_key,
            )
        if (ban := _banned_meanwhile(services, caller)) is not None:
            services.ledger.cancel(number, caller.name)
            raise ban
    return number


def submit_batch(
    request: Request,
    services: Services,
    caller: User,
    problem_name: str,
    items: Sequence[BatchItem],
    gpu: str,
    idempotency_key: str | None = None,
) -> int:
    """Store a batch, queue its items for grading, and return its number.

    As `submit_upload`. A batch counts as one submission per minute.
    """
    with _counted(request, caller):
        problem, _, deadline = _open_problem(services, caller, problem_name, idempotency_key)
        limit_bytes = problem.spec.limits.source_bytes
        for item in items:
            if len(item.submission.source) > limit_bytes:
                message = f"{item.key}: {problem.name} takes files of up to {limit_bytes:,} bytes"
                fail(413, "too_large", message)
        most = services.settings.batch_items
        if len(items) > most:
            fail(413, "too_large", f"a batch has at most {most:,} items; hand in several")
        wanted_gpu = gpu.strip() or problem.spec.gpu
        if not services.ledger.knows_key(caller.name, idempotency_key, batch=True):
            _check_workers(services, wanted_gpu)
        with _refusals():
            number = services.ledger.submit_batch(
                caller.name,
                problem.name,
                problem.digest,
                items,
                wanted_gpu,
                max_in_flight=services.settings.batch_items_in_flight,
                max_queue=services.settings.max_batch_queue,
                max_stored_bytes=services.settings.source_bytes_per_user,
                min_free_bytes=services.settings.min_free_bytes,
                deadline=deadline,
                idempotency_key=idempotency_key,
            )
        if (ban := _banned_meanwhile(services, caller)) is not None:
            services.ledger.cancel_batch(number, caller.name)
            raise ban
    return number


@contextmanager
def _counted(request: Request, caller: User) -> Iterator[None]:
    """Count a submission per minute of the user, unless it is refused. Raises `Refusal`."""
    if (wait_s := request.state.throttle.submission(caller.name)) is not None:
        raise too_often("too many submissions within a minute", wait_s)
    try:
        yield
    except Exception:
        request.state.throttle.refund_submission(caller.name)
        raise


def _open_problem(
    services: Services, caller: User, name: str, idempotency_key: str | None
) -> tuple[Problem, BoardSettings, datetime | None]:
    """A problem that takes submissions, its board, and its deadline for this caller. Raises
    `Refusal`."""
    check_not_draining(services)
    problem, board = problem_or_404(services, caller, name)
    deadline = None if caller.role == "admin" else board.deadline
    # A repeated request is answered after the deadline, too; the ledger knows it by its key.
    is_first = idempotency_key is None
    if is_first and deadline is not None and visibility.deadline_passed(board, services.now()):
        fail(403, "deadline_passed", str(DeadlinePassed(name, deadline)))
    return problem, board, deadline


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the ledger's refusals into `Refusal`."""
    try:
        yield
    except KeyReused as reused:
        fail(409, "key_reused", str(reused))
    except EntryRefused as refused:
        fail(409, "entry_refused", str(refused))
    except DeadlinePassed as late:
        fail(403, "deadline_passed", str(late))
    except QuotaExceeded as exceeded:
        fail(403, "quota_exceeded", str(exceeded))
    except SubmissionRefused as refused:
        status, code = _REFUSALS[type(refused)]
        fail(status, code, str(refused), {"Retry-After": str(refused.retry_after_s)})


def _banned_meanwhile(services: Services, caller: User) -> Refusal | None:
    """The refusal of a caller who was banned while the request was read, after they were
    authenticated; None if they were not."""
    account = services.accounts.user(caller.name)
    if account is None or account.banned_at is None:
        return None
    return banned(account.banned_reason or "")


def _read(problem: Problem, file: UploadFile) -> Submission:
    """The file as a submission. Raises `Refusal` for an unknown language or a file too large."""
    path = PurePosixPath((file.filename or "").replace("\\", "/"))
    language = language_of(path, problem.takes_solutions)
    if language is None:
        ends = " and ".join(extensions(problem.takes_solutions))
        fail(415, "unknown_language", f"a submission is one file, and files end in {ends}")
    limit_bytes = problem.spec.limits.source_bytes
    content = file.file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        fail(413, "too_large", f"{problem.name} takes files of up to {limit_bytes:,} bytes")
    return Submission(path.name, language, content)


def _check_workers(services: Services, gpu: str | None) -> None:
    """Raise `Refusal` for a GPU type that no living worker has: the name may be misspelt.

    Other submissions wait until there is a worker; the queue says for what.
    """
    if gpu is None:
        return
    alive = services.ledger.workers(services.settings.worker_alive_s)
    gpus = sorted({one.gpu for one in alive if one.gpu is not None and not one.is_drained})
    if not any(gpu_matches(one, gpu) for one in gpus):
        available = comma_separated(gpus)
        message = f"no worker has the GPU type '{gpu}'; GPUs available now: {available}"
        fail(422, "no_worker", message)
