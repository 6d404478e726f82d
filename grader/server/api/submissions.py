"""The API that competitors and pages use, under `/api/v1`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, File, Form, Path, Query, Request, Response, UploadFile
from fastapi.responses import PlainTextResponse

from grader.fleet import Job, QueueFull, Refused, State, TooLate
from grader.fleet.job import is_of_type, obstacle
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.server.api.boards import boards, listed, visible
from grader.server.api.schemas import (
    Me,
    Queue,
    Shown,
    Step,
    Submissions,
    Summary,
    Taken,
    Told,
    Waiting,
    Words,
)
from grader.server.http.auth import (
    Caller,
    Competitor,
    Known,
    Tools,
    banned,
    check_open,
    errors,
    fail,
)
from grader.server.services import visibility
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.services import Services
from grader.server.services.submission_queries import Line
from grader.server.services.visibility import Sight
from grader.submission import LANGUAGES, Language, Submission, language_of

router = APIRouter()

Number = Annotated[int, Path(description="A submission's number.")]


@router.post(
    "/submissions",
    status_code=202,
    response_model=Taken,
    responses=errors(401, 403, 404, 415),
    summary="Hand in a kernel",
    tags=["submissions"],
)
def submit(
    request: Request,
    response: Response,
    tools: Tools,
    caller: Competitor,
    problem: Annotated[Words, Form(description="The problem's name.")],
    file: Annotated[UploadFile, File(description="One .py or .cu file.")],
    gpu: Annotated[Words, Form(description="A type of GPU, such as H100; any when empty.")] = "",
) -> Taken:
    """Store one source file and queue it for grading.

    When this answers, the submission cannot be lost. Its report will be at `url`.
    """
    wait_s = request.state.throttle.submission(caller.name)
    if wait_s is not None:
        fail(
            429,
            "too_often",
            f"too many submissions within a minute; try again in {wait_s} s",
            {"Retry-After": str(wait_s)},
        )
    number = hand_in(tools, caller, problem, file.filename or "", file, gpu)
    response.headers["Location"] = _url(request, number)
    return Taken(id=number, state=State.QUEUED, url=_url(request, number))


def hand_in(
    tools: Services, caller: User, problem: str, name: str, file: UploadFile, gpu: str
) -> int:
    """Queue one file of a caller's and return its number. Raises the refusal of what is wrong."""
    check_open(tools)
    asked, board = visible(tools, caller, problem)
    deadline = None if caller.role == "admin" else board.deadline
    if deadline is not None and visibility.is_over(board, tools.now()):
        fail(403, "deadline_passed", str(TooLate(problem, deadline)))
    submission = _read(asked, name, file)
    wanted = gpu.strip() or asked.spec.gpu
    _check_workers(tools, submission.language, wanted)
    try:
        number = tools.ledger.submit(
            caller.name,
            asked.name,
            asked.digest,
            submission,
            wanted,
            max_in_flight=tools.settings.max_in_flight,
            max_queue=tools.settings.max_queue,
            deadline=deadline,
        )
    except TooLate as late:
        fail(403, "deadline_passed", str(late))
    except Refused as refusal:
        full = isinstance(refusal, QueueFull)
        fail(
            503 if full else 429,
            "queue_full" if full else "too_many_in_flight",
            str(refusal),
            {"Retry-After": str(refusal.retry_after_s)},
        )
    # The caller was known to us before the file came, which may have taken a while.
    account = tools.accounts.user(caller.name)
    if account is not None and account.banned_at is not None:
        tools.ledger.cancel(number, caller.name)
        raise banned(account.banned_reason or "")
    return number


@router.get(
    "/submissions",
    response_model=Submissions,
    responses=errors(401),
    summary="List submissions",
    tags=["submissions"],
)
def submissions(
    request: Request,
    tools: Tools,
    caller: Caller,
    user: Annotated[Words | None, Query(description="Only this user's.")] = None,
    problem: Annotated[Words | None, Query(description="Only of this problem.")] = None,
    state: Annotated[State | None, Query(description="Only in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(description="Go on below this number.")] = None,
) -> Submissions:
    """The newest submissions, newest first. What the caller may not see is null or left out."""
    settings = boards(tools)
    seen = [
        name
        for name, board in settings.items()
        if (problem is None or name == problem)
        and (visibility.sees_board(caller, board) or (caller and user == caller.name))
    ]
    is_admin = caller is not None and caller.role == "admin"
    lines = tools.shelf.lines(
        limit=limit, before=before, user=user, problems=seen, state=state, deleted=is_admin
    )
    shown = [
        _summary(request, line, allowed)
        for line in lines
        if (allowed := sight_of(tools, caller, line, settings[line.problem])).exists
    ]
    return Submissions(submissions=shown, before=lines[-1].id if len(lines) == limit else None)


@router.get(
    "/submissions/{number}",
    response_model=Shown,
    name="api_submission",
    responses=errors(401, 404),
    summary="A submission and its report",
    tags=["submissions"],
)
def submission(request: Request, tools: Tools, caller: Caller, number: Number) -> Response:
    """The report, as far as the caller may see it. Fields are null until it is done."""
    job, line, allowed = look_up(tools, caller, number)
    told = Told(
        id=number,
        state=job.state,
        user=job.user,
        position=job.position,
        progress=Step.of(job.progress),
        submitted_at=job.created_at,
        url=_url(request, number),
        counts=None if job.result_id is None or not allowed.result else not line.void,
    )
    known = {
        "problem": job.problem,
        "problem_digest": job.problem_digest,
        "submission_sha256": job.sha256 if allowed.details else None,
        "submission_name": job.name if allowed.details else None,
        "language": job.language if allowed.result else None,
    }
    report = report_of(tools, line, allowed)
    if report is not None:
        known |= dict(report) | {"rank": tools.races.rank(line)}
        known |= {"reason": report.reason or None, "log": report.log if allowed.details else None}
        if not allowed.details:
            known |= {"submission_sha256": None, "submission_name": None, "notes": None}
    for field in ("id", "seed"):
        known.pop(field, None)
    whole = Shown.model_validate(dict(told) | known)
    return Response(whole.model_dump_json(), media_type="application/json")


@router.get(
    "/submissions/{number}/source",
    response_class=PlainTextResponse,
    responses=errors(401, 403, 404),
    summary="What was handed in",
    tags=["submissions"],
)
def source(tools: Tools, caller: Caller, number: Number) -> Response:
    """The file's bytes, never to be shown as anything but text."""
    _, line, allowed = look_up(tools, caller, number)
    if not allowed.source:
        fail(403, "private_source", "this source is its author's; the board does not publish it")
    extension = next(ext for ext, language in LANGUAGES.items() if language == line.language)
    headers = {"Content-Disposition": f'attachment; filename="submission-{number}{extension}"'}
    return PlainTextResponse(tools.shelf.source(number) or b"", headers=headers)


@router.delete(
    "/submissions/{number}",
    status_code=204,
    responses=errors(401, 403, 404, 409),
    summary="Cancel a submission",
    tags=["submissions"],
)
def cancel(tools: Tools, caller: Competitor, number: Number) -> None:
    """Cancel one's own submission while it is not done. An admin deletes a done one."""
    job, _, _ = look_up(tools, caller, number)
    if caller.role == "admin":
        if tools.office.delete(number, caller.name) is None:
            fail(409, "deleted", f"submission {number} is {job.state}, or was deleted already")
        return
    if visibility.relation(caller, job.user) != "owner":
        fail(403, "not_yours", "only its author can cancel a submission")
    if not tools.ledger.cancel(number, caller.name):
        fail(409, "not_running", f"submission {number} is {job.state} already")


@router.get(
    "/queue",
    response_model=Queue,
    responses=errors(401),
    summary="What is graded now, and what waits",
    tags=["submissions"],
)
def queue(tools: Tools, caller: Caller) -> Queue:
    """The unfinished submissions of boards that the caller may see; rejudges are left out."""
    jobs, why = in_flight(tools, caller), obstacles(tools)
    return Queue(jobs=[Waiting.of(job, why(job)) for job in jobs])


@router.get(
    "/me", response_model=Me, responses=errors(401), summary="Whose token this is", tags=["users"]
)
def me(caller: Known) -> Me:
    """The caller's name and role."""
    return Me(name=caller.name, role=caller.role)


def in_flight(tools: Services, caller: User | None) -> list[Job]:
    """What is graded now and what waits, on the boards that a caller sees."""
    settings, now = boards(tools), tools.now()
    found = []
    for job in tools.ledger.queue():
        board = settings.get(job.problem)
        if board is None or job.rejudge_id or not visibility.sees_board(caller, board):
            continue
        found.append(as_seen(job, visibility.sight(caller, job.user, board, now)))
    return found


def obstacles(tools: Services) -> Callable[[Job], str | None]:
    """Tells of a job that waits why no worker that is there now could take it."""
    alive = tools.ledger.workers(tools.settings.worker_alive_s)
    return lambda job: obstacle(job, alive) if job.state is State.QUEUED else None


def look_up(tools: Services, caller: User | None, number: int) -> tuple[Job, Line, Sight]:
    """A submission, and what of it the caller is shown. Raises the refusal of one that is not
    there for him."""
    job, line = tools.ledger.job(number), tools.shelf.line(number)
    if job is not None and line is not None:
        allowed = sight_of(tools, caller, line, tools.office.board(line.problem))
        if allowed.exists:
            return as_seen(job, allowed), line, allowed
    fail(404, "no_such_submission", f"there is no submission {number}, or it is not shown to you")


def as_seen(job: Job, allowed: Sight) -> Job:
    """How far a grading is tells of its result: who came to be timed has passed the tests."""
    return job if allowed.result else replace(job, progress=None)


def sight_of(tools: Services, caller: User | None, line: Line, board: BoardSettings) -> Sight:
    """What of a submission a caller is shown."""
    return visibility.sight(
        caller,
        line.user,
        board,
        tools.now(),
        void=line.void,
        rejudges=line.rejudge_id is not None and line.state is not State.DONE,
        cancelled=line.state is State.CANCELLED,
    )


def report_of(tools: Services, line: Line, allowed: Sight) -> Report | None:
    """The report of a submission as far as it is shown; None where there is none."""
    if line.result_id is None or not allowed.result:
        return None
    return visibility.shown(tools.ledger.board.result(line.result_id).report, allowed)


def _read(problem: Problem, name: str, file: UploadFile) -> Submission:
    """The file as a submission. Raises the refusal of one that cannot be handed in."""
    path = PurePosixPath(name.replace("\\", "/"))
    language = language_of(path)
    if language is None:
        known = " and ".join(LANGUAGES)
        fail(415, "unknown_language", f"a submission is one file, and files end in {known}")
    limit = problem.spec.limits.source_bytes
    content = file.file.read(limit + 1)
    if len(content) > limit:
        fail(413, "too_large", f"{problem.name} takes files of up to {limit:,} bytes")
    return Submission(path.name, language, content)


def _check_workers(tools: Services, language: Language, gpu: str | None) -> None:
    """Raise the refusal of what no worker that is there now could ever grade."""
    if gpu is None and language == "python":
        return
    alive = tools.ledger.workers(tools.settings.worker_alive_s)
    gpus = sorted({worker.gpu for worker in alive if worker.gpu is not None})
    if not any(is_of_type(one, gpu) for one in gpus):
        what = f"the GPU type '{gpu}'" if gpu else "a .cu file, which needs a GPU"
        fail(422, "no_worker", f"nothing here can grade {what}; GPUs here now: {listed(gpus)}")


def _summary(request: Request, line: Line, allowed: Sight) -> Summary:
    seen = allowed.result
    return Summary(
        id=line.id,
        user=line.user,
        problem=line.problem,
        state=line.state,
        language=line.language if seen else None,
        verdict=line.verdict if seen else None,
        gpu=line.gpu if seen else None,
        ranked=line.ranked and not line.void if seen and line.verdict else None,
        score_us=line.score_us if seen and line.verdict is Verdict.ACCEPTED else None,
        submitted_at=line.created_at,
        url=_url(request, line.id),
    )


def _url(request: Request, number: int) -> str:
    return str(request.url_for("api_submission", number=number))
