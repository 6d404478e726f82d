"""Pages that explain: the rules, and the HTTP API."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from grader.problem.domain import DRAWN_CASES
from grader.problem.spec import Limits
from grader.report import Rule
from grader.server.http.auth import ServicesDep
from grader.server.pages.api_views import FOLDED, GROUPS, operations
from grader.server.pages.templates import FragmentCache, render, render_fragment

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

RULES = {
    Rule.TIME_CLAIM: "Report a shorter time than the judge’s own clock allows.",
    Rule.WORK_OUTSIDE_CALL: "Work before a call’s inputs are there or after it has returned, in "
    "another thread, stream or process, or run calls side by side.",
    Rule.CARRIED_ANSWER: "Carry an answer over from the inputs of another call.",
    Rule.MEMORY_TAMPERED: "Write to an input, or to lent memory that is not an output.",
    Rule.BELOW_FLOOR: "Be faster than the GPU can move the data or do the arithmetic. It may be a "
    "mistake of ours, so an admin looks at each such result.",
}
"""Rule → what a submission must not do."""


@router.get("/rules")
def rules_page(request: Request, services: ServicesDep) -> Response:
    """What is allowed, what is rejected, how ranks are made, and the limits."""
    return render(
        request,
        "rules.html",
        shared=True,
        own=lambda _user: "",
        rules=RULES,
        limits=Limits(),
        drawn=DRAWN_CASES,
        settings=services.settings,
    )


@router.get("/api")
def api_page(request: Request, cache: FragmentCache) -> Response:
    """Every route of the API, with its parameters, its answer and an example."""

    def make() -> Markup:
        groups = operations(request.app.openapi())
        return render_fragment("_api.html", groups=groups, headings=GROUPS, folded=FOLDED)

    return render(
        request,
        "api.html",
        shared=True,
        own=lambda _user: "",
        content=cache.get("api", make),
    )
