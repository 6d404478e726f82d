"""Submitting an uploaded file, for the API and for the pages' form."""

from __future__ import annotations

from pathlib import PurePosixPath

from fastapi import Request, UploadFile

from grader.fleet import (
    DeadlinePassed,
    DiskNearlyFull,
    QueueFull,
    QuotaExceeded,
    SubmissionRefused,
    TooManyInFlight,
)
from grader.fleet.job import KeyReused, gpu_matches
from grader.problem import Problem
from grader.server.http.auth import check_not_draining
from grader.server.http.errors import banned, fail, too_often
from grader.server.http.lookup import comma_separated, problem_or_404
from grader.server.services import visibility
from grader.server.services.accounts import User
from grader.server.services.container import Services
from grader.submission import LANGUAGES, Submission, language_of

_REFUSALS: dict[type[SubmissionRefused], tuple[int, str]] = {
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
    if (wait_s := request.state.throttle.submission(caller.name)) is not None:
        raise too_often("too many submissions within a minute", wait_s)
    try:
        return _submit(services, caller, problem_name, file, gpu, idempotency_key)
    except Exception:
        request.state.throttle.refund_submission(caller.name)
        raise


def _submit(
    services: Services,
    caller: User,
    problem_name: str,
    file: UploadFile,
    gpu: str,
    idempotency_key: str | None,
) -> int:
    check_not_draining(services)
    problem, board = problem_or_404(services, caller, problem_name)
    deadline = None if caller.role == "admin" else board.deadline
    # A repeated request is answered after the deadline, too; the ledger knows it by its key.
    is_first = idempotency_key is None
    if is_first and deadline is not None and visibility.deadline_passed(board, services.now()):
        fail(403, "deadline_passed", str(DeadlinePassed(problem_name, deadline)))
    submission = _read(problem, file)
    wanted_gpu = gpu.strip() or problem.spec.gpu
    _check_workers(services, wanted_gpu)
    try:
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
            deadline=deadline,
            idempotency_key=idempotency_key,
        )
    except KeyReused as reused:
        fail(409, "key_reused", str(reused))
    except DeadlinePassed as late:
        fail(403, "deadline_passed", str(late))
    except QuotaExceeded as exceeded:
        fail(403, "quota_exceeded", str(exceeded))
    except SubmissionRefused as refused:
        status, code = _REFUSALS[type(refused)]
        fail(status, code, str(refused), {"Retry-After": str(refused.retry_after_s)})
    # The caller may have been banned while the file was uploaded, after they were authenticated.
    account = services.accounts.user(caller.name)
    if account is not None and account.banned_at is not None:
        services.ledger.cancel(number, caller.name)
        raise banned(account.banned_reason or "")
    return number


def _read(problem: Problem, file: UploadFile) -> Submission:
    """The file as a submission. Raises `Refusal` for an unknown language or a file too large."""
    path = PurePosixPath((file.filename or "").replace("\\", "/"))
    language = language_of(path)
    if language is None:
        extensions = " and ".join(LANGUAGES)
        fail(415, "unknown_language", f"a submission is one file, and files end in {extensions}")
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
    gpus = sorted({worker.gpu for worker in alive if worker.gpu is not None})
    if not any(gpu_matches(one, gpu) for one in gpus):
        available = comma_separated(gpus)
        message = f"no worker has the GPU type '{gpu}'; GPUs available now: {available}"
        fail(422, "no_worker", message)
