"""Problems and their leaderboards, under `/api/v1`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from grader.fleet.job import gpu_matches
from grader.problem import Problem
from grader.problem.catalogue import dtypes_of
from grader.server.api.schemas import (
    BoardInfo,
    Leaderboard,
    LeaderboardEntry,
    ProblemDetail,
    ProblemList,
    ProblemSummary,
    ProblemVersionInfo,
    ProblemVersionList,
    VerdictNumbers,
    VerdictReport,
)
from grader.server.http.auth import OPTIONAL_TOKEN, Caller, ServicesDep
from grader.server.http.errors import error_responses, fail
from grader.server.http.etag import NOT_MODIFIED, CacheableResponse, share
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import comma_separated, problem_or_404, version_or_404
from grader.server.services import visibility
from grader.server.services.access import counted_problems, daily_left, visible_problems
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.standings import GpuLeaderboard
from grader.server.services.ttl_cache import TtlCache

router = APIRouter()

MAX_ENTRIES = 1000
"""The most entries in one answer, about 250 KB."""

ProblemName = Annotated[PrintableText, Path(description="A problem's name.")]


@router.get(
    "/problems",
    response_model=ProblemList,
    responses=error_responses(),
    openapi_extra=OPTIONAL_TOKEN,
    summary="List the problems",
    tags=["problems"],
)
def list_problems(services: ServicesDep, caller: Caller) -> ProblemList:
    """Every problem that the caller may see, by name."""
    return ProblemList(
        problems=[
            _problem_summary(services, caller, problem, board)
            for problem, board in visible_problems(services, caller)
        ]
    )


@router.get(
    "/verdicts",
    response_model=VerdictReport,
    responses=error_responses(),
    openapi_extra=OPTIONAL_TOKEN,
    summary="What was rejected, and why, in numbers",
    tags=["problems"],
)
def get_verdicts(services: ServicesDep, caller: Caller) -> VerdictReport:
    """The results of boards that the caller may see, after their deadlines, by verdict, broken
    rule, problem and month. At most a minute old."""
    summary = services.verdicts.summary(counted_problems(services, caller))
    return VerdictReport(
        **VerdictNumbers.of(summary.total).model_dump(),
        problems={name: VerdictNumbers.of(tally) for name, tally in summary.problems},
        months={month: VerdictNumbers.of(tally) for month, tally in summary.months},
    )


@router.get(
    "/problems/{name}",
    response_model=ProblemDetail,
    responses=error_responses(404),
    openapi_extra=OPTIONAL_TOKEN,
    summary="A problem",
    tags=["problems"],
)
def get_problem(services: ServicesDep, caller: Caller, name: ProblemName) -> Response:
    """The statement, arguments, cases, tolerances and limits."""
    problem, board = problem_or_404(services, caller, name)
    summary = _problem_summary(services, caller, problem, board)
    spec = problem.spec.model_dump(mode="json")
    left = daily_left(services, caller, {problem.name: board}).get(problem.name)
    detail = ProblemDetail(**dict(summary), statement=problem.statement, spec=spec, daily_left=left)
    return Response(detail.model_dump_json(), media_type="application/json")


@router.get(
    "/problems/{name}/versions",
    response_model=ProblemVersionList,
    responses=error_responses(404),
    openapi_extra=OPTIONAL_TOKEN,
    summary="The versions of a problem",
    tags=["problems"],
)
def list_versions(services: ServicesDep, caller: Caller, name: ProblemName) -> ProblemVersionList:
    """Every version by number. Each has leaderboards of its own."""
    problem, board = problem_or_404(services, caller, name)
    as_of = visibility.frozen_since(caller, board, services.now())
    return ProblemVersionList(
        problem=problem.name,
        versions=[
            ProblemVersionInfo.of(version, problem.digest)
            for version in services.standings.versions(problem, as_of)
        ],
    )


@router.get(
    "/leaderboards/{name}",
    response_model=Leaderboard,
    responses=error_responses(404) | NOT_MODIFIED,
    openapi_extra=OPTIONAL_TOKEN,
    summary="A leaderboard",
    tags=["problems"],
)
def get_leaderboard(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    name: ProblemName,
    gpu: Annotated[PrintableText | None, Query(description="A GPU's name, or words of it.")] = None,
    version: Annotated[
        PrintableText | None,
        Query(description="A version's number, or 6 or more characters of its digest."),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_ENTRIES, description="How many entries at most.")
    ] = MAX_ENTRIES,
    offset: Annotated[int, Query(ge=0, description="How many entries to skip, best first.")] = 0,
) -> Response:
    """Each user's or team's best ranked result on one GPU, for one version of the problem. While
    the board is frozen, as at that moment.

    Without `version`, the current one. Without `gpu`, the GPU that comes first by name. A
    leaderboard with more than `limit` users comes in parts; `total` is the number of all entries.
    """
    problem, board = problem_or_404(services, caller, name)
    digest = version_or_404(services, problem, version).digest if version else problem.digest
    as_of = visibility.frozen_since(caller, board, services.now())
    leaderboards = sorted(
        services.standings.snapshot()(digest, as_of), key=lambda leaderboard: leaderboard.gpu
    )
    gpus = [leaderboard.gpu for leaderboard in leaderboards]
    leaderboard = next(
        (
            leaderboard
            for leaderboard in leaderboards
            if gpu == leaderboard.gpu or gpu_matches(leaderboard.gpu, gpu)
        ),
        None,
    )
    if gpu is not None and leaderboard is None:
        available = comma_separated(gpus)
        fail(404, "no_such_gpu", f"no ranked result on such a GPU; there are: {available}")

    def make() -> CacheableResponse:
        part = slice(offset, offset + limit)
        content = _leaderboard(services, problem, digest, board, leaderboard, gpus, part)
        return CacheableResponse(content.model_dump_json().encode(), "application/json")

    cache: TtlCache[CacheableResponse] = request.app.state.leaderboard_cache
    info = _board_info(services, board)
    key = (name, digest, as_of, leaderboard and leaderboard.gpu, offset, limit)
    versions = [leaderboard.version for leaderboard in leaderboards]
    response = cache.get(key, make, (versions, info.model_dump()))
    return share(request, response).to(request)


def _leaderboard(
    services: Services,
    problem: Problem,
    digest: str,
    board: BoardSettings,
    leaderboard: GpuLeaderboard | None,
    gpus: list[str],
    part: slice,
) -> Leaderboard:
    everyone = leaderboard.standings if leaderboard else ()
    standings = everyone[part]
    details = services.standings.details([standing.result_id for standing in standings])
    return Leaderboard(
        problem=problem.name,
        digest=digest,
        gpu=leaderboard.gpu if leaderboard else None,
        gpus=gpus,
        board=_board_info(services, board),
        total=len(everyone),
        entries=[
            LeaderboardEntry.of(standing, details[standing.result_id]) for standing in standings
        ],
    )


def _problem_summary(
    services: Services, caller: User | None, problem: Problem, board: BoardSettings
) -> ProblemSummary:
    as_of = visibility.frozen_since(caller, board, services.now())
    leaderboards = services.standings.snapshot()(problem.digest, as_of)
    return ProblemSummary(
        name=problem.name,
        digest=problem.digest,
        title=problem.spec.title,
        summary=problem.spec.summary,
        topic=problem.spec.topic,
        difficulty=problem.spec.difficulty,
        limited_by=problem.spec.limited_by,
        dtypes=list(dtypes_of(problem.spec)),
        board=_board_info(services, board),
        gpus=sorted(leaderboard.gpu for leaderboard in leaderboards),
    )


def _board_info(services: Services, board: BoardSettings) -> BoardInfo:
    return BoardInfo(
        deadline=board.deadline,
        over=visibility.deadline_passed(board, services.now()),
        hidden=visibility.is_hidden(board, services.now()),
        publish_sources=board.publish_sources,
        note=board.note,
        daily_limit=board.daily_limit,
        freeze_at=board.freeze_at,
        frozen=visibility.is_frozen(board, services.now()),
        team_size=board.team_size,
    )
