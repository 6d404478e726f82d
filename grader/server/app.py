"""The web application: routers, middleware, and the handlers that turn exceptions into answers."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from grader import __version__
from grader.board import BoardError
from grader.db.engine import DiskFull
from grader.fleet import Ledger
from grader.report import one_line
from grader.server.api import (
    admin,
    admin_groups,
    admin_teams,
    batches,
    boards,
    events,
    own_tokens,
    submissions,
    teams,
    worker_api,
)
from grader.server.api.schemas import Health
from grader.server.http.auth import ServicesDep, check_not_draining
from grader.server.http.errors import (
    Refusal,
    disk_full,
    error_response,
    error_responses,
    error_schemas,
    fail,
    unavailable,
)
from grader.server.http.etag import VersionName
from grader.server.http.identity_provider import IdentityProvider
from grader.server.http.logs import RequestLog
from grader.server.http.middleware import AdmissionMiddleware
from grader.server.http.response_cache import (
    MAX_AGE_S,
    ResponseCache,
    boards_version,
    queue_version,
)
from grader.server.pages import (
    account_routes,
    admin_routes,
    board_routes,
    group_admin_routes,
    guide_routes,
    join_routes,
    preview_routes,
    problem_admin_routes,
    rejudge_routes,
    session_routes,
    sign_in_routes,
    submission_routes,
    submit_routes,
    team_admin_routes,
    user_admin_routes,
)
from grader.server.pages.templates import STATIC, render_error
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.access import counted_problems
from grader.server.services.container import Services
from grader.server.services.standings import CACHE_AGE_S
from grader.server.services.ttl_cache import TtlCache

log = logging.getLogger(__name__)

API = "/api/v1"
DISK_FULL_S = 60.0
"""How long a write that found the disk full is reported."""

_CODES = {400: "bad_request", 404: "not_found", 405: "wrong_method"}
_SERVICE_ERRORS = {
    NotFound: (404, "not_found"),
    Conflict: (409, "conflict"),
    Invalid: (422, "invalid"),
}

operation = APIRouter()


@operation.get(
    "/healthz",
    response_model=Health,
    responses=error_responses(),
    summary="Health check",
    tags=["operation"],
)
def healthz(services: ServicesDep) -> Health:
    """Run a small database query. While the server drains, or its database's disk is full or nearly
    so, this answers 503, so that a load balancer sends new requests elsewhere; other requests are
    still served."""
    check_not_draining(services)
    services.submissions.states()
    if problem := _disk_problem(services.ledger, services.settings.min_free_bytes):
        fail(503, "disk_full", problem, {"Retry-After": "60"})
    return Health(status="ok")


def _disk_problem(ledger: Ledger, min_free_bytes: int) -> str | None:
    """What is wrong with the disk, as one line for the operator; None if it has room.

    PostgreSQL does not say what its disk has free: there, only failed writes tell.
    """
    if (seconds := ledger.seconds_since_disk_full()) < DISK_FULL_S:
        return f"the database's disk was full {seconds:.0f} s ago; make room on it"
    free_bytes = ledger.free_bytes()
    if free_bytes is not None and free_bytes < min_free_bytes:
        return (
            f"the database's disk is nearly full: {free_bytes:,} bytes are free, and "
            f"{min_free_bytes:,} must be; make room on it"
        )
    return None


@operation.get(
    "/metrics",
    response_class=Response,
    responses=error_responses()
    | {200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
    summary="Prometheus metrics",
    tags=["operation"],
)
def metrics(services: ServicesDep) -> Response:
    """Jobs by state, results by verdict, the age of the queue, workers, storage, and request
    times."""
    return Response(services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@operation.head(
    f"{API}/openapi.json",
    response_class=Response,
    responses=error_responses(),
    summary="Headers of the OpenAPI document",
    tags=["operation"],
)
@operation.get(
    f"{API}/openapi.json",
    response_model=dict[str, Any],
    responses=error_responses(),
    summary="The OpenAPI document",
    tags=["operation"],
)
def openapi_document(request: Request) -> JSONResponse:
    """This document: every route of the API, what it takes and what it answers."""
    return JSONResponse(request.app.openapi())


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, with the schemas that every route's errors refer to."""
        document = super().openapi()
        document["components"]["schemas"].update(error_schemas())
        return document


def create_app(services: Services) -> FastAPI:
    """The application over these services."""
    services.metrics.watch_verdicts(
        lambda: services.verdicts.summary(counted_problems(services, None)).total.verdicts
    )
    app = _Application(
        title="grade",
        summary="A leaderboard for GPU kernels.",
        version=__version__,
        openapi_url=None,  # `openapi_document` is a route of the document itself
        docs_url=None,  # its page loads scripts from another site
        redoc_url=None,
        routes=list(_routes()),
    )
    app.state.services = services
    app.state.identity_providers = {
        name: IdentityProvider(provider) for name, provider in services.providers.items()
    }
    app.state.leaderboard_cache = TtlCache(CACHE_AGE_S)  # of the API's leaderboards
    app.state.fragment_cache = TtlCache(CACHE_AGE_S)  # of parts of pages
    app.state.queue_cache = TtlCache(MAX_AGE_S)  # of the queue's page
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(BoardError, _on_database_error)
    for kind in _SERVICE_ERRORS:
        app.add_exception_handler(kind, _on_service_error)
    versions: dict[VersionName, Callable[[], object]] = {
        "boards": partial(boards_version, services),
        "queue": partial(queue_version, services),
    }
    app.add_middleware(ResponseCache, read_versions=versions)
    app.add_middleware(AdmissionMiddleware, services=services, on_refusal=_error_answer)
    app.add_middleware(RequestLog, metrics=services.metrics)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """The routes of every application of this process. FastAPI reads the signatures of them all at
    their first request, which takes 0.2 s of CPU time."""
    router = APIRouter(strict_content_type=False)
    for module in (submissions, own_tokens, teams, batches, boards, events):
        router.include_router(module.router, prefix=API)
    for module in (admin, admin_groups, admin_teams, worker_api):
        router.include_router(module.router, prefix=API)
    router.include_router(operation)
    for pages in (board_routes, submission_routes, submit_routes, guide_routes, preview_routes):
        router.include_router(pages.router)
    for pages in (session_routes, sign_in_routes, join_routes, account_routes):
        router.include_router(pages.router)
    for pages in (admin_routes, user_admin_routes, group_admin_routes, team_admin_routes):
        router.include_router(pages.router, prefix="/admin")
    for pages in (rejudge_routes, problem_admin_routes):
        router.include_router(pages.router, prefix="/admin")
    return router.routes


async def _on_http_error(request: Request, error: Any) -> Response:
    if isinstance(error, Refusal):
        return _error_answer(request, error)
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:  # a large upload is spooled
        return _error_answer(request, disk_full())
    code = _CODES.get(error.status_code, "error")
    message = {
        404: "there is nothing at this address",
        405: f"this address does not take {request.method}",
    }.get(error.status_code, one_line(str(error.detail)))
    return _error_answer(request, Refusal(error.status_code, code, message, error.headers))


async def _on_invalid_request(request: Request, error: Any) -> Response:
    """Names the first invalid value and the reason. The value itself may be a secret."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    why = first["msg"].removeprefix("Value error, ")  # pydantic's prefix to our own messages
    return _error_answer(request, Refusal(422, "invalid", one_line(f"{where}: {why}")))


async def _on_service_error(request: Request, error: Any) -> Response:
    status, code = _SERVICE_ERRORS[type(error)]
    return _error_answer(request, Refusal(status, code, one_line(str(error))))


async def _on_database_error(request: Request, error: Any) -> Response:
    log.error("%s", one_line(str(error), 1000))
    is_full = isinstance(error, DiskFull)
    return _error_answer(request, disk_full() if is_full else unavailable())


def _error_answer(request: Request, refusal: Refusal) -> Response:
    """A page for a browser, JSON for a program."""
    is_page = not request.url.path.startswith(("/api/", "/healthz", "/metrics"))
    if is_page and "text/html" in request.headers.get("accept", ""):
        return render_error(request, refusal)
    return error_response(refusal)
