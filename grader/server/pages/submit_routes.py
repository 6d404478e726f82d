"""The submit page with its editor, the starters that it offers, and its form."""

from __future__ import annotations

from io import BytesIO
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.problem.scaffold import scaffold
from grader.server.http.auth import Caller, ServicesDep, check_form
from grader.server.http.errors import fail
from grader.server.http.etag import CacheableResponse, share
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import problem_or_404, source_or_refusal, submission_or_404
from grader.server.http.submit import submit_upload
from grader.server.pages.board_views import board_views
from grader.server.pages.submission_views import submission_view
from grader.server.pages.templates import render, wants_fragment
from grader.server.services.access import daily_left
from grader.submission import STARTERS, Submission, extensions

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

Starter = Literal["triton", "cuda", "torch"]
"""A kind of starter, the keys of `STARTERS`."""

LABELS: dict[Starter, str] = {"triton": "Triton", "cuda": "CUDA C++", "torch": "PyTorch"}


@router.get("/submit")
def submit_page(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    problem: str = "",
    origin: Annotated[int | None, Query(alias="from")] = None,
) -> Response:
    """The submit form. With `from`, it holds the source of that submission to its problem."""
    if caller is None:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?to={quote(request.url.path + query)}", 303)
    source, language = "", "triton"
    if origin is not None:
        job, summary, access = submission_or_404(services, caller, origin)
        content = source_or_refusal(services, summary, access)
        source, problem = content.decode("utf-8", "replace"), job.problem
        language = _language_of(Submission(job.name, job.language, content))
    boards = [board for board in board_views(services, caller) if not board.over]
    alive = services.ledger.workers(services.settings.worker_alive_s)
    return render(
        request,
        "submit.html",
        boards=boards,
        chosen=problem if any(board.name == problem for board in boards) else "",
        gpus=sorted({one.gpu for one in alive if one.gpu and not one.is_drained}),
        languages=LABELS,
        language=language,
        source=source,
        origin=origin,
        for_team=[board.problem.spec.title for board in boards if board.settings.team_size]
        if caller.team
        else [],
        extensions=extensions(any(board.problem.takes_solutions for board in boards)),
        left=daily_left(services, caller, {board.name: board.settings for board in boards}),
    )


def _language_of(submission: Submission) -> Starter:
    """What the language switch shows for a file."""
    if submission.language == "cuda":
        return "cuda"
    return "triton" if submission.uses_triton else "torch"


@router.get("/problems/{name}/starters/{language}")
def starter(
    request: Request, services: ServicesDep, caller: Caller, name: str, language: Starter
) -> Response:
    """The starter file of a problem, as `grade new` writes it."""
    problem, _ = problem_or_404(services, caller, name)
    content = CacheableResponse(scaffold(problem, language).encode(), "text/plain")
    return share(request, content, regions=lambda _request: {}).to(request)


@router.post("/submit")
def submit(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    problem: Annotated[PrintableText, Form()],
    file: Annotated[UploadFile | None, File()] = None,
    source: Annotated[str, Form()] = "",
    language: Annotated[Starter, Form()] = "triton",
    csrf: Annotated[str, Form()] = "",
    gpu: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Submit a file, or the text of the form if none is chosen. With htmx, answer with a fragment
    that shows the progress; without, redirect to the submission's page."""
    user = check_form(request, caller, csrf)
    if user.role == "worker":
        fail(403, "wrong_role", "a worker cannot submit")
    upload = file if file is not None and file.filename else _typed(source, language)
    number = submit_upload(request, services, user, problem, upload, gpu)
    if not wants_fragment(request):
        return RedirectResponse(f"/submissions/{number}", 303)
    submission = submission_view(services, user, number)
    return render(request, "_live.html", submission=submission, on="submit")


def _typed(source: str, language: Starter) -> UploadFile:
    """Text from the form as a file. A browser sends its line ends as CRLF."""
    if not source.strip():
        fail(422, "no_source", "choose a file, or type a source")
    content = source.replace("\r\n", "\n").encode("utf-8", "replace")
    return UploadFile(BytesIO(content), filename=f"submission{STARTERS[language]}")
