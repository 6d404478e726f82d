"""Pages of boards: the home page, a problem, a leaderboard, a user."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from grader.server.http.auth import Caller, ServicesDep
from grader.server.http.errors import fail
from grader.server.http.fields import PrintableText
from grader.server.http.response_cache import user_version
from grader.server.pages import board_views, markdown
from grader.server.pages.templates import FragmentCache, render, render_fragment
from grader.server.services.access import list_submissions
from grader.server.services.accounts import User
from grader.server.services.standings import recorded_times

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def home_page(
    request: Request, services: ServicesDep, caller: Caller, cache: FragmentCache
) -> Response:
    """The boards."""
    boards = board_views.board_views(services, caller)

    def make() -> Markup:
        cards = [(board, board_views.leaderboard_of(board, None)) for board in boards]
        return render_fragment("_boards.html", cards=cards, now=services.now())

    names = tuple(board.name for board in boards)
    content = cache.get(("home", names), make, [board.version for board in boards])
    return render(request, "home.html", shared=True, own=_nothing, boards=content)


@router.get("/problems/{name}")
def problem_page(request: Request, services: ServicesDep, caller: Caller, name: str) -> Response:
    """The statement, how to start, and the baselines."""
    board = board_views.board_view(services, caller, name)
    leaderboard = board_views.leaderboard_of(board, None)
    baselines = services.standings.baselines(board.problem, leaderboard) if leaderboard else []
    return render(
        request,
        "problem.html",
        shared=True,
        own=_nothing,
        board=board,
        leaderboard=leaderboard,
        baselines=baselines,
        recorded_times=recorded_times(board.problem),
        statement=_rendered_statement(board.problem.statement),
        server=str(request.base_url).rstrip("/"),
    )


@router.get("/leaderboards/{name}")
def leaderboard_page(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    cache: FragmentCache,
    name: str,
    gpu: str | None = None,
    version: PrintableText | None = None,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """The standings on one GPU, of the current or of another version of the problem."""
    board = board_views.board_view(services, caller, name, version)
    others = board_views.other_versions(services, board)
    leaderboard = board_views.leaderboard_of(board, gpu)
    page = min(page, board_views.page_count(leaderboard)) if leaderboard else 1
    entries = board_views.entries_on(leaderboard, page) if leaderboard else ()
    users = frozenset(one.user for one in entries)
    # The page is the same for all callers who are not on it.
    me = caller.name if caller and caller.name in users else None

    def make() -> Markup:
        if leaderboard is None:
            return render_fragment(
                "_no_entries.html",
                board=board,
                others=others,
                recorded_times=[] if board.other else recorded_times(board.problem),
                cpu_accepted=board_views.cpu_accepted(services, caller, board),
                now=services.now(),
            )
        table = board_views.leaderboard_page(services, board, leaderboard, page)
        return render_fragment(
            "_standings.html", table=table, board=board, others=others, me=me, now=services.now()
        )

    changes = (board.version, others, None if leaderboard else services.submissions.version())
    content = cache.get((name, board.digest, gpu, page, me), make, changes)
    return render(
        request,
        "leaderboard.html",
        shared=True,
        own=lambda user: None if user.name in users else "",
        board=board,
        standings=content,
    )


@router.get("/users/{name:path}")
def user_page(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    name: PrintableText,
    before: int | None = None,
) -> Response:
    """A user's ranks and submissions."""
    standings = board_views.user_standings(services, caller, name)
    submissions, next_before = list_submissions(
        services, caller, limit=30, user=name, before=before
    )
    is_own = caller is not None and caller.name == name
    if not (standings or submissions or before or is_own):
        fail(404, "no_such_user", "there are no submissions by a user of this name")
    return render(
        request,
        "user.html",
        shared=not is_own,
        version=partial(user_version, services, name),
        own=lambda user: None if user.name == name else "",
        user=name,
        standings=standings,
        submissions=submissions,
        next_before=next_before,
        problems=services.problems,
    )


def _nothing(_user: User) -> str:
    """The own region of a page that has none."""
    return ""


@lru_cache(maxsize=256)
def _rendered_statement(text: str) -> Markup:
    """A statement as HTML. It takes long to render and never changes while the server runs."""
    return markdown.render(text)
