"""The application: the routers behind the gate, and what becomes of errors."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from grader import __version__
from grader.board import BoardError
from grader.report import one_line
from grader.server.api import admin, boards, events, submissions, worker_api
from grader.server.api.schemas import Health
from grader.server.http.auth import ErrorReply, Refusal, Tools, check_open
from grader.server.http.logs import Journal
from grader.server.http.middleware import Gate, refused, unavailable
from grader.server.http.response_cache import Front, changing
from grader.server.pages import routes
from grader.server.services.errors import Conflict, Invalid, NotThere
from grader.server.services.services import Services

log = logging.getLogger(__name__)

API = "/api/v1"

_CODES = {400: "bad_request", 404: "not_found", 405: "wrong_method"}
_MEANT = {NotThere: (404, "not_found"), Conflict: (409, "conflict"), Invalid: (422, "invalid")}

root = APIRouter()


@root.get(
    "/healthz",
    response_model=Health,
    responses={503: {"model": ErrorReply, "description": "It cannot work now, or stops."}},
    summary="Whether the server works",
    tags=["operation"],
)
def healthz(tools: Tools) -> Health:
    """Ask the database a small question. A server that stops sends those who ask elsewhere, while
    it still answers all that is not new work."""
    check_open(tools)
    tools.shelf.states()
    return Health(status="ok")


@root.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
    summary="Numbers for Prometheus",
    tags=["operation"],
)
def metrics(tools: Tools) -> Response:
    """Jobs by state, results by verdict, the queue's age, workers, and times of requests."""
    return Response(tools.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def create_app(services: Services) -> FastAPI:
    """The whole application over these services."""
    app = FastAPI(
        title="grade",
        summary="A leaderboard for GPU kernels.",
        version=__version__,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        strict_content_type=False,
    )
    app.state.services = services
    for module in (submissions, boards, events, admin, worker_api):
        app.include_router(module.router, prefix=API)
    app.include_router(root)
    routes.mount(app)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(BoardError, _on_database)
    for kind in _MEANT:
        app.add_exception_handler(kind, _on_meant)
    app.add_middleware(Front, look=partial(changing, services))
    app.add_middleware(Gate, services=services, answer=_answer)
    app.add_middleware(Journal, metrics=services.metrics)
    return app


async def _on_http(request: Request, error: Any) -> Response:
    if isinstance(error, Refusal):
        return _answer(request, error)
    code = _CODES.get(error.status_code, "error")
    message = {404: "there is nothing here", 405: f"{request.method} is not for this address"}.get(
        error.status_code, one_line(str(error.detail))
    )
    return _answer(request, Refusal(error.status_code, code, message, error.headers))


async def _on_invalid(request: Request, error: Any) -> Response:
    """Which value makes no sense, and why; never the value, which may be a secret."""
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"][1:]) or str(first["loc"][0])
    why = first["msg"].removeprefix("Value error, ")  # which pydantic puts before words of ours
    return _answer(request, Refusal(422, "invalid", one_line(f"{where}: {why}")))


async def _on_meant(request: Request, error: Any) -> Response:
    status, code = _MEANT[type(error)]
    return _answer(request, Refusal(status, code, one_line(str(error))))


async def _on_database(request: Request, error: Any) -> Response:
    log.error("%s", one_line(str(error), 1000))
    return _answer(request, unavailable())


def _answer(request: Request, refusal: Refusal) -> Response:
    """JSON for programs, a page for people."""
    is_page = not request.url.path.startswith(("/api/", "/healthz", "/metrics"))
    if is_page and "text/html" in request.headers.get("accept", ""):
        return routes.error_page(request, refusal.status_code, refusal.detail, refusal.headers)
    return refused(refusal)
