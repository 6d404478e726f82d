"""The pages: what a browser asks for, and what it is sent. All of it works without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, File, Form, Query, Request, Response, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup
from starlette.staticfiles import StaticFiles

from grader.fleet import State
from grader.server.api import submissions
from grader.server.api.schemas import Words
from grader.server.http.auth import COOKIE, Caller, Tools, banned, check_csrf, csrf_field, fail
from grader.server.http.middleware import too_often
from grader.server.http.ttl_cache import Fresh
from grader.server.pages import markdown, views
from grader.server.pages.highlighting import coloured
from grader.server.pages.templates import STATIC, piece, render
from grader.server.pages.views import Views
from grader.server.services.accounts import SESSION
from grader.server.services.standings import FRESH_S, on_record

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


def mount(app: FastAPI) -> None:
    """Put the pages and what they load into the application."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.state.desk = Desk(Views(app.state.services), Fresh(FRESH_S))


class Desk:
    """What the pages are made with, made once."""

    def __init__(self, shown: Views, fresh: Fresh[Markup]) -> None:
        self.views = shown
        self.fresh = fresh


def error_page(
    request: Request, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A refusal as a page."""
    return render(
        request, "error.html", status=status, headers=headers, code=status, message=message
    )


# Boards ------------------------------------------------------------------------------------------


@router.get("/")
def page_home(request: Request, tools: Tools, caller: Caller) -> Response:
    """The boards."""
    desk = _desk(request)
    places = desk.views.places(caller)

    def make() -> Markup:
        cards = [(place, desk.views.race(place, None)) for place in places]
        return piece("_boards.html", cards=cards, now=tools.now())

    names = tuple(place.name for place in places)
    shown = desk.fresh.get(("home", names), make, [place.version for place in places])
    return render(request, "home.html", shared=True, boards=shown)


@router.get("/problems/{name}")
def page_problem(request: Request, caller: Caller, name: str) -> Response:
    """Statement, how to start, baselines."""
    desk = _desk(request)
    place = desk.views.place(caller, name)
    race = desk.views.race(place, None)
    return render(
        request,
        "problem.html",
        shared=True,
        place=place,
        race=race,
        yardsticks=desk.views.races.yardsticks(place.problem, race) if race else [],
        records=on_record(place.problem),
        statement=_statement(place.problem.digest, place.problem.statement),
        server=str(request.base_url).rstrip("/"),
    )


@router.get("/leaderboards/{name}")
def page_leaderboard(
    request: Request,
    tools: Tools,
    caller: Caller,
    name: str,
    gpu: str | None = None,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Who is ahead on one GPU."""
    desk = _desk(request)
    place = desk.views.place(caller, name)
    race = desk.views.race(place, gpu)
    page = min(page, views.pages_of(race)) if race else 1
    me = caller.name if caller else None
    if race and me not in {racer.user for racer in views.racers_of(race, page)}:
        me = None  # whoever is not on it sees what all see

    def make() -> Markup:
        if race is None:
            return piece(
                "_nobody.html", place=place, records=on_record(place.problem),
                practised=desk.views.practised(caller, place), now=tools.now(),
            )  # fmt: skip
        table = desk.views.table(place, race, page)
        return piece("_race.html", table=table, me=me, now=tools.now())

    version = (place.version, None if race else tools.shelf.version())
    shown = desk.fresh.get((name, gpu, page, me), make, version)
    return render(request, "leaderboard.html", shared=True, place=place, race=shown, gpu=gpu)


# Submissions -------------------------------------------------------------------------------------


@router.get("/submissions/{number}")
def page_submission(request: Request, tools: Tools, caller: Caller, number: int) -> Response:
    """Verdict, cases, times, what went wrong, log, source."""
    desk = _desk(request)
    job, line, allowed = submissions.look_up(tools, caller, number)
    place = desk.views.place_of(line)

    def make(**more: object) -> Markup:
        seen = desk.views.seen(job, line, allowed, place)
        source = desk.views.source(seen)
        return piece(
            "_submission.html",
            seen=seen,
            source=None if source is None else coloured(source, line.language),
            rivals=desk.views.rivals(seen),
            now=tools.now(),
            **more,
        )

    # What strangers see; sources and logs may be too large to keep many of them.
    public = job.state is State.DONE and not (allowed.details or allowed.source)
    if public:
        version = (line, place and place.version)
        shown = desk.fresh.get(("submission", number, allowed), make, version)
    else:
        shown = make(caller=caller, csrf=csrf_field(request))
    return render(request, "submission.html", shared=public, job=job, shown=shown)


@router.get("/submissions/{number}/state")
def page_state(request: Request, caller: Caller, number: int, on: str = "submission") -> Response:
    """Where a submission is, as a piece of a page. When it is done, that page is loaded anew."""
    seen = _desk(request).views.submission(caller, number)
    over = seen.job.state in (State.DONE, State.CANCELLED)
    headers = {"HX-Refresh": "true"} if over and on == "submission" else {}
    return render(request, "_state.html", headers=headers, seen=seen, on=on)


@router.get("/submissions/{number}/compare")
def page_choose(request: Request, caller: Caller, number: int, other: int) -> Response:
    """What the form for comparing sends; the comparison has an address of its own."""
    return RedirectResponse(f"/submissions/{number}/compare/{other}", 303)


@router.get("/submissions/{number}/compare/{other}")
def page_compare(request: Request, caller: Caller, number: int, other: int) -> Response:
    """Two submissions side by side."""
    desk = _desk(request)
    left, right = desk.views.submission(caller, number), desk.views.submission(caller, other)
    sources = desk.views.source(left), desk.views.source(right)
    diff = None if None in sources else views.difference(sources[1] or "", sources[0] or "")
    return render(
        request,
        "compare.html",
        left=left,
        right=right,
        duels=views.duels(left, right),
        diff=diff,
        diff_lines=views.DIFF_LINES,
    )


@router.get("/users/{name:path}")
def page_user(request: Request, caller: Caller, name: Words, before: int | None = None) -> Response:
    """Where a user stands, and what he handed in."""
    desk = _desk(request)
    standings = desk.views.standings(caller, name)
    lines, more = desk.views.lines(caller, limit=30, user=name, before=before)
    if not (standings or lines or before or (caller and caller.name == name)):
        fail(404, "no_such_user", "nobody of this name has handed anything in")
    return render(
        request, "user.html", user=name, standings=standings, lines=lines, more=more,
        problems=desk.views.services.problems,
    )  # fmt: skip


@router.get("/queue")
def page_queue(request: Request, tools: Tools, caller: Caller) -> Response:
    """What is graded now, what waits, what was just graded, and by whom."""
    desk = _desk(request)
    lines, _ = desk.views.lines(caller, limit=40)
    return render(
        request,
        "_queue.html" if _ispiece(request) else "queue.html",
        jobs=desk.views.queue(caller),
        graded=[(line, seen) for line, seen in lines if line.state is State.DONE][:12],
        obstacle=submissions.obstacles(tools),
        workers=tools.ledger.workers(tools.settings.worker_alive_s),
        problems=tools.problems,
    )


# Handing in --------------------------------------------------------------------------------------


@router.get("/submit")
def page_submit(request: Request, tools: Tools, caller: Caller, problem: str = "") -> Response:
    """The form to hand in with."""
    if caller is None:
        return _to_login(request)
    places = [place for place in _desk(request).views.places(caller) if not place.over]
    alive = tools.ledger.workers(tools.settings.worker_alive_s)
    gpus = sorted({worker.gpu for worker in alive if worker.gpu})
    return render(request, "submit.html", places=places, chosen=problem, gpus=gpus)


@router.post("/submit")
def page_hand_in(
    request: Request,
    tools: Tools,
    caller: Caller,
    problem: Annotated[Words, Form()],
    file: Annotated[UploadFile, File()],
    csrf: Annotated[str, Form()] = "",
    gpu: Annotated[Words, Form()] = "",
) -> Response:
    """Hand in, and watch: in the same page with htmx, on the submission's own page without."""
    if caller is None:
        fail(401, "no_session", "your session has ended; log in again")
    check_csrf(request, csrf)
    if caller.role == "worker":
        fail(403, "wrong_role", "a worker cannot hand in")
    if (wait_s := request.state.throttle.submission(caller.name)) is not None:
        raise too_often("too many submissions within a minute", wait_s)
    number = submissions.hand_in(tools, caller, problem, file.filename or "", file, gpu)
    if not _ispiece(request):
        return RedirectResponse(f"/submissions/{number}", 303)
    seen = _desk(request).views.submission(caller, number)
    return render(request, "_live.html", seen=seen, on="submit")


@router.post("/submissions/{number}/cancel")
def page_cancel(
    request: Request, tools: Tools, caller: Caller, number: int, csrf: Annotated[str, Form()] = ""
) -> Response:
    """Cancel one's own submission."""
    if caller is None:
        fail(401, "no_session", "your session has ended; log in again")
    check_csrf(request, csrf)
    seen = _desk(request).views.submission(caller, number)
    if caller.role == "admin":
        tools.office.cancel(number, caller.name)
    elif caller.name == seen.job.user:
        tools.ledger.cancel(number, caller.name)
    else:
        fail(403, "not_yours", "only its author can cancel a submission")
    return RedirectResponse(f"/submissions/{number}", 303)


# Sessions ----------------------------------------------------------------------------------------


@router.get("/login")
def page_login(request: Request, caller: Caller, to: str = "/") -> Response:
    """Where one pastes a token."""
    return render(request, "login.html", to=_own(to), message=None)


@router.post("/login")
def page_open_session(
    request: Request,
    tools: Tools,
    token: Annotated[str, Form(max_length=200)] = "",
    to: Annotated[str, Form()] = "/",
) -> Response:
    """Exchange a token for a session's cookie."""
    address = request.client.host if request.client else "unknown"
    throttle = request.state.throttle
    if (wait_s := throttle.is_guessing(address)) is not None:
        raise too_often("too many tokens that are not valid from this address", wait_s)
    token = token.strip()
    session = tools.accounts.open_session(token) if token.isascii() else None
    if session is None and (reason := tools.accounts.banned(token)) is not None:
        raise banned(reason)
    if session is None:
        throttle.failure(address, token)
        message = "This token is not valid. Paste all of it, or ask an admin for another one."
        return render(request, "login.html", status=401, to=_own(to), message=message)
    answer = RedirectResponse(_own(to), 303)
    answer.set_cookie(
        COOKIE, session, max_age=int(SESSION.total_seconds()), httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


@router.post("/logout")
def page_logout(
    request: Request, tools: Tools, caller: Caller, csrf: Annotated[str, Form()] = ""
) -> Response:
    """End the session."""
    if caller is not None and (session := request.cookies.get(COOKIE)):
        check_csrf(request, csrf)
        tools.accounts.close_session(session)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


# Pieces ------------------------------------------------------------------------------------------


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def _ispiece(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _own(to: str) -> str:
    """An address of ours to go on to; the first page for anything else."""
    ours = to.startswith("/") and not to.startswith("//") and "\\" not in to
    return to if ours and to.isprintable() else "/"


def _to_login(request: Request) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"/login?to={quote(request.url.path + query)}", 303)


_statements: dict[str, Markup] = {}


def _statement(digest: str, text: str) -> Markup:
    """Rendered once for each version of a problem; there are as many as problems were loaded."""
    if digest not in _statements:
        _statements[digest] = markdown.render(text)
    return _statements[digest]
