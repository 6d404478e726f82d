"""Pages of boards: the home page, a problem, a leaderboard, a user, and all verdicts in numbers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from grader.problem.catalogue import LIMITS, TOPICS, Filter
from grader.problem.spec import DTYPES
from grader.server.http.auth import Caller, ServicesDep
from grader.server.http.errors import fail
from grader.server.http.etag import personal_content
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import team_or_404
from grader.server.http.response_cache import user_version
from grader.server.pages import board_views, markdown
from grader.server.pages.templates import FragmentCache, render, render_fragment
from grader.server.services.access import counted_problems, find_team, list_submissions
from grader.server.services.accounts import User
from grader.server.services.standings import GpuLeaderboard, recorded_times
from grader.server.services.user_progress import ProblemState

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MONTHS = 24
"""Months that the page of verdicts shows."""


@router.get("/")
def home_page(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    cache: FragmentCache,
    q: Annotated[str, Query(max_length=100)] = "",
    topic: str = "",
    dtype: str = "",
    limited_by: str = "",
) -> Response:
    """The boards by topic, filtered, with the learning path and the reader's own state."""
    wanted = Filter(topic or None, dtype or None, limited_by or None, q)
    boards = board_views.board_views(services, caller)
    progress = services.progress.snapshot()
    shown = board_views.catalogue(boards, wanted)

    def make() -> Markup:
        cards = {board.name: board_views.leaderboard_of(board, None) for board in boards}
        return render_fragment("_boards.html", shown=shown, cards=cards, now=services.now())

    # Whatever a reader types must not push the pages that many readers share out of the caches.
    if wanted in _COMMON_FILTERS:
        names = tuple(board.name for board in boards)
        is_admin = caller is not None and caller.role == "admin"
        versions = [board.version for board in boards]
        content = cache.get(("home", wanted, names, is_admin), make, versions)
    else:
        content = make()
    digests = {board.name: board.problem.digest for board in boards}
    steps = {step.problem: problem.spec.title for step, problem in shown.steps}

    def own(user: User) -> Mapping[str, str]:
        return _own_states(progress.get(user.name, {}), digests, steps)

    if caller is not None:
        content = Markup(personal_content(content.encode(), own(caller)).decode())
    is_shared = request.url.query == _COMMON_FILTERS.get(wanted)
    return render(
        request,
        "home.html",
        shared=is_shared,
        own=own,
        preview="/preview.png",
        content=content,
        announcements=services.announcements.current(),
    )


_COMMON_FILTERS = {
    Filter(): "",
    **{Filter(topic=topic): urlencode({"topic": topic}) for topic in TOPICS},
    **{Filter(dtype=dtype): urlencode({"dtype": dtype}) for dtype in DTYPES},
    **{Filter(limited_by=limit): urlencode({"limited_by": limit}) for limit in LIMITS},
}
"""No filter, or one value: the lists that are kept, and the one query whose page is shared."""


def _own_states(
    states: Mapping[str, ProblemState], digests: Mapping[str, str], steps: Mapping[str, str]
) -> Mapping[str, str]:
    """The regions of the home page that show what one user has reached. `digests` has the version
    of each problem that the user may see, `steps` the title of each on the learning path."""
    regions = {}
    for name, state in states.items():
        if name in digests:
            best_us = state.best_us.get(digests[name])
            regions[f"own-{name}"] = render_fragment("_own.html", state=state, best_us=best_us)
            if state.accepted:
                regions[f"step-{name}"] = render_fragment("_done.html")
    accepted = [name for name in digests if name in states and states[name].accepted]
    following = next(((name, steps[name]) for name in steps if name not in accepted), None)
    regions["own"] = render_fragment(
        "_own_summary.html",
        accepted=len(accepted),
        tried=sum(name in digests for name in states) - len(accepted),
        total=len(digests),
        following=following,
    )
    return regions


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
        preview=f"/problems/{name}/preview.png",
        announcements=services.announcements.current(),
        board=board,
        leaderboard=leaderboard,
        baselines=baselines,
        recorded_times=recorded_times(board.problem),
        statement=_rendered_statement(board.problem.statement),
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
    language: Annotated[str, Query(max_length=20)] = "",
    user: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """The standings on one GPU, of the current or of another version of the problem: all entries,
    or those in a language or of users and teams whose names contain a text."""
    board = board_views.board_view(services, caller, name, version)
    others = board_views.other_versions(services, board)
    leaderboard = board_views.leaderboard_of(board, gpu)
    is_known = leaderboard is not None and language in board_views.languages_of(leaderboard)
    wanted = board_views.EntryFilter(language if is_known else "", user.strip())
    found = wanted.of(leaderboard, services.standings) if leaderboard else ()
    page = min(page, board_views.page_count(found))
    users = frozenset(one.user for one in board_views.page_of(found, page))
    # The page is the same for all callers who are not on it.
    mine = leaderboard.of(*caller.entry_names) if leaderboard and caller else None
    me = mine.user if mine and mine.user in users else None

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
        table = board_views.leaderboard_page(services, board, leaderboard, wanted, found, page)
        return render_fragment(
            "_standings.html", table=table, board=board, others=others, me=me, now=services.now()
        )

    # Whatever a reader types must not push the pages that many readers share out of the caches.
    if wanted.words:
        content = make()
    else:
        changes = (board.version, others, None if leaderboard else services.submissions.version())
        is_admin = caller is not None and caller.role == "admin"
        key = (name, board.digest, gpu, wanted.language, page, me, is_admin)
        content = cache.get(key, make, changes)

    own = _OwnRow(weakref.ref(leaderboard) if leaderboard else None, board.query, users)
    if caller is not None:
        regions = {"own": own.link(caller) or ""}
        content = Markup(personal_content(content.encode(), regions).decode())
    return render(
        request,
        "leaderboard.html",
        shared=not wanted.words,
        own=own,
        preview=f"/leaderboards/{name}/preview.png{_query(gpu=gpu, version=version)}",
        announcements=services.announcements.current(),
        board=board,
        standings=content,
    )


def _query(**values: str | None) -> str:
    """A link's query with the values that are set; empty without one."""
    query = urlencode({name: value for name, value in values.items() if value is not None})
    return f"?{query}" if query else ""


@dataclass(frozen=True)
class _OwnRow:
    """The link to a reader's own row of a leaderboard. It is kept with the page, so it must not
    keep the leaderboard, which is large, when that is replaced."""

    leaderboard: weakref.ref[GpuLeaderboard] | None
    query: str
    """The beginning of a link's query to the version of the problem."""
    users: frozenset[str]
    """The users and teams who are on the page."""

    def __call__(self, user: User) -> str | None:
        """The page's region `own`; None for a user on the page, whose row is marked there."""
        return self.link(user) if self.users.isdisjoint(user.entry_names) else None

    def link(self, user: User) -> str | None:
        """The link; empty for a user without an entry, None if the leaderboard is gone."""
        if self.leaderboard is None:
            return ""
        leaderboard = self.leaderboard()
        if leaderboard is None:
            return None
        row = board_views.own_row(leaderboard, user)
        if row is None:
            return ""
        return render_fragment(
            "_own_row.html",
            leaderboard=leaderboard,
            query=self.query,
            entry=row[0],
            page=row[1],
            is_here=row[0].user in self.users,
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
    team = services.teams.of_user(name)
    if not (standings or submissions or before or is_own):
        fail(404, "no_such_user", "there are no submissions by a user of this name")
    return render(
        request,
        "user.html",
        shared=not is_own,
        version=partial(user_version, services, name),
        own=lambda user: None if user.name == name else "",
        user=name,
        is_own=is_own,
        team=None,
        users_team=find_team(services, caller, team) if team else None,
        tokens=services.accounts.tokens(name) if is_own else [],
        identities=services.sign_ins.identities(name) if is_own else [],
        providers=services.providers.values(),
        standings=standings,
        bests=board_views.personal_bests(services, caller, name, standings),
        submissions=submissions,
        next_before=next_before,
        problems=services.problems,
    )


@router.get("/teams/{name}")
def team_page(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    name: PrintableText,
    before: int | None = None,
) -> Response:
    """A team's members, ranks and submissions."""
    team = team_or_404(services, caller, name)
    standings = board_views.user_standings(services, caller, team.name)
    bests = board_views.personal_bests(services, caller, team.name, standings)
    submissions, next_before = list_submissions(
        services, caller, limit=30, team=team.name, before=before
    )
    return render(
        request,
        "team.html",
        team=team,
        is_own=caller is not None and caller.team == team.name,
        standings=standings,
        bests=bests,
        submissions=submissions,
        next_before=next_before,
        problems=services.problems,
    )


@router.get("/verdicts")
def verdicts_page(request: Request, services: ServicesDep, caller: Caller) -> Response:
    """What was rejected and why, in numbers."""
    summary = services.verdicts.summary(counted_problems(services, caller))
    titles = {name: problem.spec.title for name, problem in services.problems.items()}
    return render(
        request,
        "verdicts.html",
        shared=True,
        own=_nothing,
        total=summary.total,
        verdicts=summary.total.verdicts.most_common(),
        problems=[(titles[name], tally) for name, tally in summary.problems],
        months=summary.months[:MONTHS],
    )


def _nothing(_user: User) -> str:
    """The own region of a page that has none."""
    return ""


@lru_cache(maxsize=256)
def _rendered_statement(text: str) -> Markup:
    """A statement as HTML. It takes long to render and never changes while the server runs."""
    return markdown.render(text)
