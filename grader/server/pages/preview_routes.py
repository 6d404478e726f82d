"""Preview images of pages, for sites that show links to them.

Each shows what a reader without an account may see, for every reader.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from grader import format
from grader.fleet import State
from grader.server.http.auth import ServicesDep
from grader.server.http.etag import CacheableResponse, share
from grader.server.http.fields import PrintableText
from grader.server.pages.board_views import BoardView, board_view, board_views, leaderboard_of
from grader.server.pages.preview_image import MAX_ROWS, Preview, Row, Tone, draw
from grader.server.pages.submission_views import SubmissionView, submission_view
from grader.server.services.standings import GpuLeaderboard

router = APIRouter(include_in_schema=False, default_response_class=Response)

TONES: dict[str, Tone] = {"good": "good", "bad": "bad", "odd": "odd", "soft": "soft"}


@router.get("/preview.png")
def home_preview(request: Request, services: ServicesDep) -> Response:
    """The number of problems and of entries."""
    boards = board_views(services, None)
    leaderboards = [one for board in boards for one in board.leaderboards]
    entries = sum(len(one.standings) for one in leaderboards)
    gpus = {one.gpu for one in leaderboards}
    where = f"{len(gpus)} GPUs" if len(gpus) > 1 else "".join(gpus)
    return _image(
        request,
        Preview(
            "Write the fastest correct kernel.",
            "Triton, CUDA C++, or any Python that launches kernels, checked against a float64 "
            "reference and ranked on the GPU that it ran on.",
            f"{len(boards)} {'problem' if len(boards) == 1 else 'problems'}",
            note=f"{entries:,} ranked on {where}" if gpus else "",
        ),
    )


@router.get("/problems/{name}/preview.png")
def problem_preview(request: Request, services: ServicesDep, name: str) -> Response:
    """The title, the summary and the time to beat."""
    board = board_view(services, None, name)
    spec, leaderboard = board.problem.spec, leaderboard_of(board, None)
    time = note = ""
    if leaderboard and leaderboard.leader:
        time = format.micros(leaderboard.leader.score_us)
        note = f"To beat: {leaderboard.leader.user} on {leaderboard.gpu}"
    return _image(
        request,
        Preview(
            spec.title,
            spec.summary,
            time,
            "accent",
            note=note or "No ranked result yet",
        ),
    )


@router.get("/leaderboards/{name}/preview.png")
def leaderboard_preview(
    request: Request,
    services: ServicesDep,
    name: str,
    gpu: str | None = None,
    version: PrintableText | None = None,
) -> Response:
    """The first ranks."""
    board = board_view(services, None, name, version)
    leaderboard = leaderboard_of(board, gpu)
    return _image(request, _ranking(board, leaderboard))


def _ranking(board: BoardView, leaderboard: GpuLeaderboard | None) -> Preview:
    title = board.problem.spec.title
    if leaderboard is None:
        return Preview(title, "No ranked result yet. The first accepted one leads this board.")
    rows = tuple(
        Row(str(entry.rank), entry.user, format.micros(entry.score_us))
        for entry in leaderboard.standings[:MAX_ROWS]
    )
    return Preview(title, leaderboard.gpu, rows=rows, note=f"{len(leaderboard.standings)} ranked")


@router.get("/submissions/{number}/preview.png")
def submission_preview(request: Request, services: ServicesDep, number: int) -> Response:
    """The verdict and the score."""
    submission = submission_view(services, None, number)
    image = CacheableResponse(draw(_result(submission)), "image/png")
    # Leaderboards tell nothing of the progress of a grading.
    return (_shared(request, image) if submission.job.state is State.DONE else image).to(request)


def _result(submission: SubmissionView) -> Preview:
    job, report, board = submission.job, submission.report, submission.board
    title = board.problem.spec.title if board else job.problem
    who = f"Submission {submission.id} by {job.user}"
    if report is None:
        is_done = job.state is State.DONE
        note = "Others’ results are shown after the deadline." if is_done else ""
        return Preview(title, who, "Graded" if is_done else "In progress", "soft", note=note)
    rows = [("Time", format.micros(report.score_us))] if report.score_us else []
    rows += [("Rank", str(submission.rank))] if submission.rank else []
    rows += [(f"Speedup over {name}", format.ratio(one)) for name, one in report.speedup.items()]
    return Preview(
        title,
        who,
        format.verdict(report.verdict),
        TONES.get(format.tone(report.verdict), "ink"),
        tuple(Row("", name, value) for name, value in rows[: MAX_ROWS - 2]),
        "This result does not count" if submission.summary.void else report.gpu or "On a CPU",
    )


def _image(request: Request, preview: Preview) -> Response:
    return _shared(request, CacheableResponse(draw(preview), "image/png")).to(request)


def _shared(request: Request, image: CacheableResponse) -> CacheableResponse:
    """Let the image be kept until a leaderboard changes, also for callers with an account."""
    return share(request, image, regions=lambda _request: {})
