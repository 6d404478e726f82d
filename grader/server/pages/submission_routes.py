"""Pages of submissions: one submission, a comparison of two, and the queue."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from grader.fleet import State
from grader.server.http.auth import Caller, ServicesDep, check_form, csrf_field
from grader.server.http.errors import fail
from grader.server.http.etag import personal_content
from grader.server.http.lookup import submission_or_404
from grader.server.http.response_cache import queue_version
from grader.server.http.withdraw import withdraw_result
from grader.server.pages.board_views import board_of_submission
from grader.server.pages.highlighting import numbered_source
from grader.server.pages.submission_views import (
    MAX_DIFF_LINES,
    compare_cases,
    compare_scores,
    source_diff,
    source_text,
    submission_view,
    suggested_comparisons,
    view_of,
)
from grader.server.pages.templates import (
    FragmentCache,
    QueueCache,
    render,
    render_fragment,
    wants_fragment,
)
from grader.server.services.accounts import User
from grader.server.services.queue_snapshot import QueueSnapshot, read_queue
from grader.server.services.visibility import sees_more

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/submissions/{number}")
def submission_page(
    request: Request, services: ServicesDep, caller: Caller, cache: FragmentCache, number: int
) -> Response:
    """The verdict, cases, times, errors, log and source of a submission."""
    job, summary, access = submission_or_404(services, caller, number)
    board = board_of_submission(services, caller, summary)

    def make(**more: object) -> Markup:
        submission = view_of(services, job, summary, access, board)
        source = source_text(services, submission)
        return render_fragment(
            "_submission.html",
            submission=submission,
            source=None if source is None else numbered_source(source, summary.language),
            comparisons=suggested_comparisons(submission),
            now=services.now(),
            **more,
        )

    # Only the public part is cached: sources and logs may be too large to keep many of them.
    is_public = job.state is State.DONE and not (access.details or access.source)
    if is_public:
        version = (summary, board and board.version)
        content = cache.get(("submission", number, access), make, version)
    else:
        content = make(caller=caller, csrf=csrf_field(request))
    return render(
        request,
        "submission.html",
        shared=is_public,
        own=lambda user: None if user.name == job.user else "",
        preview=f"/submissions/{number}/preview.png",
        job=job,
        verdict=summary.verdict if access.result else None,
        score_us=summary.score_us if access.result else None,
        content=content,
    )


@router.get("/submissions/{number}/state")
def submission_state(
    request: Request, services: ServicesDep, caller: Caller, number: int, on: str = "submission"
) -> Response:
    """A submission's state as a fragment. Once it is done, htmx reloads the submission's page.

    `on` names the page that shows the fragment: ``submission`` or ``submit``.
    """
    submission = submission_view(services, caller, number)
    is_over = submission.job.state in (State.DONE, State.CANCELLED)
    headers = {"HX-Refresh": "true"} if is_over and on == "submission" else {}
    return render(request, "_state.html", headers=headers, submission=submission, on=on)


@router.get("/submissions/{number}/compare")
def redirect_to_comparison(number: int, other: int) -> Response:
    """Redirect the form's request to the comparison's own address."""
    return RedirectResponse(f"/submissions/{number}/compare/{other}", 303)


@router.get("/compare")
def redirect_to_ticked(pick: Annotated[list[int], Query(max_length=100)] = []) -> Response:  # noqa: B006
    """Redirect the form of a user's page to the comparison of the two that are ticked."""
    if len(pick) != 2:
        fail(422, "not_two", "go back and tick two results")
    return RedirectResponse(f"/submissions/{pick[0]}/compare/{pick[1]}", 303)


@router.get("/submissions/{number}/compare/{other}")
def comparison_page(
    request: Request, services: ServicesDep, caller: Caller, number: int, other: int
) -> Response:
    """Two submissions side by side."""
    left = submission_view(services, caller, number)
    right = submission_view(services, caller, other)
    sources = source_text(services, left), source_text(services, right)
    diff = None if None in sources else source_diff(sources[0] or "", sources[1] or "")
    return render(
        request,
        "compare.html",
        left=left,
        right=right,
        overall=compare_scores(left, right),
        comparisons=compare_cases(left, right),
        diff=diff,
        diff_lines=MAX_DIFF_LINES,
    )


@router.get("/queue")
def queue_page(
    request: Request, services: ServicesDep, caller: Caller, cache: QueueCache
) -> Response:
    """One's own jobs, what is graded now, what waits, what was graded last, and the workers."""
    problems = services.problems
    is_public = not sees_more(caller)
    viewer = None if is_public else caller

    def make() -> tuple[QueueSnapshot, Markup]:
        queue = read_queue(services, viewer)
        rows = queue.rows(viewer)
        return queue, render_fragment("_queue.html", queue=queue, rows=rows, problems=problems)

    queue, content = cache.get("public", make, queue_version(services)) if is_public else make()

    def own(user: User) -> Markup:
        rows = queue.own_rows(user)
        return render_fragment("_queue_own.html", rows=rows, now=queue.now, problems=problems)

    if caller is not None:
        regions = {"own": own(caller)}
        content = Markup(personal_content(content.encode(), regions).decode())
    template = "_content.html" if wants_fragment(request) else "queue.html"
    return render(request, template, shared=True, version="queue", own=own, content=content)


@router.post("/submissions/{number}/cancel")
def cancel(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    number: int,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Cancel one's own submission; an admin cancels any."""
    user = check_form(request, caller, csrf)
    submission = submission_view(services, user, number)
    if user.role == "admin":
        services.admin.cancel(number, user.name)
    elif user.name == submission.job.user:
        services.ledger.cancel(number, user.name)
    else:
        fail(403, "not_yours", "only its author can cancel a submission")
    if wants_fragment(request):  # an event shows the new state
        return Response(status_code=204)
    return RedirectResponse(f"/submissions/{number}", 303)


@router.post("/submissions/{number}/withdraw")
def withdraw(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    number: int,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Take one's own result off its board."""
    withdraw_result(services, check_form(request, caller, csrf), number)
    return RedirectResponse(f"/submissions/{number}", 303)


@router.post("/submissions/{number}/restore")
def restore(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    number: int,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Let one's own withdrawn result count again."""
    withdraw_result(services, check_form(request, caller, csrf), number, undo=True)
    return RedirectResponse(f"/submissions/{number}", 303)
