"""Templates, what stands in all of them, and the files that pages load."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grader import format
from grader.server.http.auth import csrf_field
from grader.server.http.etag import Answer, share
from grader.server.pages import charts, views

HERE = Path(__file__).parent.parent
STATIC = HERE / "static"


def render(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    shared: bool = False,
    **values: Any,
) -> Response:
    """A template with what every page needs. `shared` says that what one sees without an account
    is the same for all, and changes with the boards only."""
    services = request.app.state.services
    frame = {
        "caller": getattr(request.state, "caller", None),
        "csrf": csrf_field(request) if hasattr(request.state, "caller") else "",
        "now": services.now(),
        "path": request.url.path,
    }
    text = environment.get_template(template).render(frame | values)
    # htmx asks at the same address for a piece of a page; no cache may take one for the other.
    told = {"Vary": "HX-Request, Cookie"} | dict(headers or {})
    if status == 200 and frame["caller"] is None:  # what a caller alone sees is kept nowhere
        answer = Answer(text.encode(), "text/html", told)
        return (share(request, answer) if shared else answer).to(request)
    return HTMLResponse(text, status, told)


def piece(template: str, **values: Any) -> Markup:
    """A part of a page, to be kept and put into pages."""
    return Markup(environment.get_template(template).render(values))  # autoescaped


def _asset(name: str) -> str:
    """The address of a file that pages load; it changes with the file, so that none is stale."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: tuple[Callable[..., str], ...] = (
        format.micros, format.margin, format.percent, format.budget, format.ratio, format.number,
        format.small, format.age, format.ahead, format.moment, format.parameters, format.verdict,
        format.tone,
    )  # fmt: skip
    made.filters.update({function.__name__: function for function in filters})
    made.filters["segment"] = lambda text: quote(text, safe="")
    vendored = (f"vendor/{name}.min.js" for name in ("htmx", "htmx-ext-sse"))
    assets = ("grade.css", "grade.js", "icon.svg", *vendored)
    made.globals.update(
        assets={name: _asset(name) for name in assets},
        bar=charts.bar,
        record=charts.record,
        sparkline=charts.sparkline,
        distribution=charts.distribution,
        errors=charts.errors,
        whereabouts=charts.place,
        how_far=views.how_far,
        meanings=format.MEANINGS,
        stages=format.STAGES,
        shapes=views.SHAPES,
    )
    return made


environment = _environment()
