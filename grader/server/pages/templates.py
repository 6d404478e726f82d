"""Rendering of templates and page fragments, and the addresses of static files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grader import format
from grader.kernel_languages import reported_language
from grader.problem.catalogue import HARDEST, LIMITS, TOPICS, dtypes_of
from grader.report import provenance
from grader.server.http.auth import csrf_field
from grader.server.http.errors import Refusal
from grader.server.http.etag import CacheableResponse, Version, share
from grader.server.pages.board_views import BREAKDOWN_ROWS
from grader.server.pages.charts import error_map, record_history, timing
from grader.server.pages.submission_views import share_done
from grader.server.services.accounts import User
from grader.server.services.queue_snapshot import QueueSnapshot
from grader.server.services.ttl_cache import TtlCache

SERVER = Path(__file__).parent.parent
STATIC = SERVER / "static"


async def _fragment_cache(request: Request) -> TtlCache[Markup]:
    cache: TtlCache[Markup] = request.app.state.fragment_cache
    return cache


FragmentCache = Annotated[TtlCache[Markup], Depends(_fragment_cache)]
"""Rendered fragments that several requests share."""


async def _queue_cache(request: Request) -> TtlCache[tuple[QueueSnapshot, Markup]]:
    cache: TtlCache[tuple[QueueSnapshot, Markup]] = request.app.state.queue_cache
    return cache


QueueCache = Annotated[TtlCache[tuple[QueueSnapshot, Markup]], Depends(_queue_cache)]
"""The queue as everybody may see it, and its fragment."""


def render(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    shared: bool = False,
    version: Version = "boards",
    own: Callable[[User], str | Mapping[str, str] | None] | None = None,
    secret: bool = False,
    **values: Any,
) -> Response:
    """A template as a response, with the values that every page needs.

    shared: whether the page is the same for all callers without an account, and changes only when
        `version` changes.
    own: the HTML of the page's region `own`, or of several regions by name, for a signed-in caller
        who is no admin; None if the rest of this caller's page differs too. Without `own`, every
        signed-in caller's does. It is kept with the page, and called for other callers than this
        one.
    secret: whether the page holds a secret, so that no browser keeps it.
    """
    services = request.app.state.services
    caller = getattr(request.state, "caller", None)
    common = {
        "caller": caller,
        "csrf": csrf_field(request) if hasattr(request.state, "caller") else "",
        "now": services.now(),
        "path": request.url.path,
        "site": str(request.base_url).rstrip("/"),
        "preview": None,
    }
    text = environment.get_template(template).render(common | values)
    # htmx requests a fragment at the page's own address; a cache must not mix up the two.
    headers = {"Vary": "HX-Request, Cookie"} | dict(headers or {})
    if status == 200 and caller is None and not secret:  # a page for one user is not cached
        response = CacheableResponse(text.encode(), "text/html", headers)
        if shared:
            share(request, response, version, _regions(own))
        return response.to(request)
    if shared and caller is not None and own is not None and own(caller) is not None:
        share(request, CacheableResponse(b"", "text/html"), version, _regions(own))
    return HTMLResponse(text, status, headers)


def _regions(
    own: Callable[[User], str | Mapping[str, str] | None] | None,
) -> Callable[[Request], dict[str, str] | None] | None:
    """The regions of a shared page that differ between signed-in callers."""
    if own is None:
        return None

    def regions(request: Request) -> dict[str, str] | None:
        caller = request.state.caller
        content = own(caller)
        if content is None:
            return None
        person = _person(caller, csrf_field(request))
        return {"person": person, **({"own": content} if isinstance(content, str) else content)}

    return regions


@lru_cache(maxsize=1024)
def _person(caller: User, csrf: str) -> Markup:
    """The page's region `person`. It is made for every answer to a signed-in caller."""
    return render_fragment("_person.html", caller=caller, csrf=csrf)


def render_fragment(template: str, **values: Any) -> Markup:
    """A template as a part of a page."""
    return Markup(environment.get_template(template).render(values))  # autoescaped


def wants_fragment(request: Request) -> bool:
    """Whether htmx asks for a part of a page."""
    return request.headers.get("hx-request") == "true"


def show_token(request: Request, owner: str, token: str) -> Response:
    """The page that shows a user's new token, this once."""
    server = str(request.base_url).rstrip("/")
    return render(request, "token.html", secret=True, owner=owner, token=token, server=server)


def render_error(request: Request, refusal: Refusal) -> Response:
    """A refusal as a page."""
    return render(
        request,
        "error.html",
        status=refusal.status_code,
        headers=refusal.headers,
        code=refusal.status_code,
        message=refusal.detail,
    )


def _asset_url(name: str) -> str:
    """The address of a static file. It contains the file's hash, so browsers load a new version."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(SERVER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: tuple[Callable[..., str], ...] = (
        format.micros, format.margin, format.percent, format.budget, format.ratio, format.gap,
        format.number, format.small, format.wait, format.age, format.ahead, format.moment,
        format.parameters, format.verdict, format.tone,
    )  # fmt: skip
    made.filters.update({function.__name__: function for function in filters})
    made.filters["segment"] = lambda text: quote(text, safe="")
    vendored = (f"vendor/{name}.min.js" for name in ("htmx", "htmx-ext-sse", "codemirror"))
    assets = ("grade.css", "grade.js", "editor.js", "icon.svg", *vendored)
    made.globals.update(
        assets={name: _asset_url(name) for name in assets},
        roofline_bar=timing.roofline_bar,
        share_bar=timing.share_bar,
        distribution=timing.distribution,
        strip=timing.strip,
        record_chart=record_history.record,
        sparkline=record_history.sparkline,
        error_histogram=error_map.error_histogram,
        error_location=error_map.error_location,
        share_done=share_done,
        meanings=format.MEANINGS,
        rules=format.RULES,
        stages=format.STAGES,
        topics=TOPICS,
        limits=LIMITS,
        dtypes_of=dtypes_of,
        hardest=HARDEST,
        provenance=provenance,
        reported_language=reported_language,
        breakdown_rows=BREAKDOWN_ROWS,
    )
    return made


environment = _environment()
