"""The pages as a part of the application: their routers, static files, and fragment cache."""

from __future__ import annotations

from fastapi import FastAPI
from markupsafe import Markup
from starlette.staticfiles import StaticFiles

from grader.server.pages import board_routes, session_routes, submission_routes
from grader.server.pages.templates import STATIC
from grader.server.services.standings import CACHE_AGE_S
from grader.server.services.ttl_cache import TtlCache


def mount(app: FastAPI) -> None:
    """Add the pages and their static files to the application."""
    for module in (board_routes, submission_routes, session_routes):
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    fragment_cache: TtlCache[Markup] = TtlCache(CACHE_AGE_S)
    app.state.fragment_cache = fragment_cache
