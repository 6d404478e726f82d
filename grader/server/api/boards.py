"""Problems and their leaderboards, as the API tells them under `/api/v1`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from grader.fleet.job import is_of_type
from grader.problem import Problem
from grader.server.api.schemas import (
    BoardShown,
    EntryShown,
    Leaderboard,
    Problems,
    ProblemShown,
    ProblemSummary,
    Words,
)
from grader.server.http.auth import Caller, Tools, errors, fail
from grader.server.http.etag import Answer, share
from grader.server.services import visibility
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.services import Services
from grader.server.services.standings import Race

router = APIRouter()

ENTRIES = 1000
"""The most entries in one answer, about 250 KB."""

ProblemName = Annotated[Words, Path(description="A problem's name.")]


@router.get(
    "/problems",
    response_model=Problems,
    responses=errors(401),
    summary="List the problems",
    tags=["problems"],
)
def problems(tools: Tools, caller: Caller) -> Problems:
    """Every problem that the caller may see, by name."""
    settings = boards(tools)
    found = [
        _problem_summary(tools, problem, settings[name])
        for name, problem in tools.problems.items()
        if visibility.sees_board(caller, settings[name])
    ]
    return Problems(problems=found)


@router.get(
    "/problems/{name}",
    response_model=ProblemShown,
    responses=errors(401, 404),
    summary="A problem",
    tags=["problems"],
)
def problem(tools: Tools, caller: Caller, name: ProblemName) -> Response:
    """Its statement, arguments, cases, tolerances and limits."""
    found, board = visible(tools, caller, name)
    summary = _problem_summary(tools, found, board)
    spec = found.spec.model_dump(mode="json")
    whole = ProblemShown(**dict(summary), statement=found.statement, spec=spec)
    return Response(whole.model_dump_json(), media_type="application/json")


@router.get(
    "/leaderboards/{name}",
    response_model=Leaderboard,
    responses=errors(401, 404) | {304: {"description": "It is still what If-None-Match says."}},
    summary="Who is ahead",
    tags=["problems"],
)
def leaderboard(
    request: Request,
    tools: Tools,
    caller: Caller,
    name: ProblemName,
    gpu: Annotated[Words | None, Query(description="A GPU's name, or words of it.")] = None,
    limit: Annotated[int, Query(ge=1, le=ENTRIES, description="How many at most.")] = ENTRIES,
    offset: Annotated[int, Query(ge=0, description="How many to leave out, best first.")] = 0,
) -> Response:
    """Each user's best ranked result on one GPU, for the problem as it is now.

    Without `gpu` it is the GPU that comes first by name. A board of more than `limit` users comes
    in parts; `total` says how many there are.
    """
    found, board = visible(tools, caller, name)
    races = sorted(tools.races.now()(found.digest), key=lambda race: race.gpu)
    gpus = [race.gpu for race in races]
    chosen = next((race for race in races if gpu == race.gpu or is_of_type(race.gpu, gpu)), None)
    if gpu is not None and chosen is None:
        fail(404, "no_such_gpu", f"no ranked result on such a GPU; there are: {listed(gpus)}")

    part = slice(offset, offset + limit)

    def make() -> Answer:
        shown = _leaderboard(tools, found, board, chosen, gpus, part)
        return Answer(shown.model_dump_json().encode(), "application/json")

    is_over = visibility.is_over(board, tools.now())
    key = (name, chosen and chosen.gpu, offset, limit)
    answer = tools.leaderboards.get(key, make, ([race.version for race in races], board, is_over))
    return share(request, answer).to(request)


def visible(tools: Services, caller: User | None, name: str) -> tuple[Problem, BoardSettings]:
    """A problem and its board. Raises the refusal of one that is not there for the caller."""
    found = tools.problems.get(name)
    if found is not None:
        board = tools.office.board(name)
        if visibility.sees_board(caller, board):
            return found, board
    settings = boards(tools)
    names = [one for one, board in settings.items() if visibility.sees_board(caller, board)]
    fail(404, "no_such_problem", f"there is no such problem here; there are: {listed(names)}")


def boards(tools: Services) -> dict[str, BoardSettings]:
    """The settings of every board."""
    given = tools.office.boards()
    return {name: given.get(name, BoardSettings()) for name in tools.problems}


def _leaderboard(
    tools: Services,
    problem: Problem,
    board: BoardSettings,
    race: Race | None,
    gpus: list[str],
    part: slice,
) -> Leaderboard:
    everyone = race.racers if race else ()
    racers = everyone[part]
    details = tools.races.details([racer.result_id for racer in racers])
    return Leaderboard(
        problem=problem.name,
        digest=problem.digest,
        gpu=race.gpu if race else None,
        gpus=gpus,
        board=_board(tools, board),
        total=len(everyone),
        entries=[EntryShown.of(racer, details[racer.result_id]) for racer in racers],
    )


def _problem_summary(tools: Services, problem: Problem, board: BoardSettings) -> ProblemSummary:
    return ProblemSummary(
        name=problem.name,
        digest=problem.digest,
        title=problem.spec.title,
        summary=problem.spec.summary,
        board=_board(tools, board),
        gpus=tools.ledger.board.gpus(problem.digest),
    )


def _board(tools: Services, board: BoardSettings) -> BoardShown:
    return BoardShown(
        deadline=board.deadline,
        over=visibility.is_over(board, tools.now()),
        hidden=board.hidden,
        publish_sources=board.publish_sources,
        note=board.note,
    )


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names) or "none"
