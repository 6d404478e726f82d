"""`grade practice --server`: a batch of one file, whose report is shown as that of a practice here.

Batches are graded behind every submission, have no results on a board, and belong to their users.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.local_grading import exit_status, print_report, unwind_on_sigterm
from grader.cli.remote import RefusedByServer, Unreachable, problem_name
from grader.cli.remote_batch import cancelled_unless_read, hand_in, results, source_limit
from grader.cli.remote_submit import RemoteProgress, as_report

if TYPE_CHECKING:
    from grader.cli.remote import Client
    from grader.submission import Submission


def practice_remote(
    client: Client, problem: str, file: Path, gpu: str | None, as_json: bool
) -> int:
    """Grade FILE on a server without recording the result, print its report, and return the exit
    status. Ctrl-C cancels it."""
    from grader.cli.output.progress import show_progress
    from grader.cli.output.terminal import print_json, print_note
    from grader.submission import Submission

    name = problem_name(problem)
    submission = Submission.read(file, source_limit(client, name))
    number = hand_in(client, name, [_item(submission, file)], gpu, waits_for_room=False)
    if not as_json:
        print_note(f"practice on {client.server}, as batch {number}: nothing is put on the board")
    with (
        unwind_on_sigterm(),
        show_progress(not as_json) as display,
        cancelled_unless_read(client, number),
    ):
        line = _line(client, number, lambda status: display(_progress(status)))
    if "report" in line:
        answer = line["report"] | {"submission_name": submission.name}
    else:
        answer = _judge_error(name, submission, line["error"])
    report = as_report(answer)
    if not as_json:
        return print_report(report, as_json=False)
    print_json(answer)
    return exit_status(report)


def _item(submission: Submission, file: Path) -> dict[str, Any]:
    """The file as an item of a batch. Raises click.UsageError if it cannot be one."""
    try:
        source = submission.source.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{file}: it is not UTF-8, which a server takes only") from None
    return {"key": "practice", "source": source, "language": submission.language}


def _line(
    client: Client, number: int, on_status: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """How the only item of a batch ended: with a `report`, or an `error` of the server."""
    try:
        line = next(results(client, number, on_status), None)
    except (Unreachable, RefusedByServer) as error:
        if isinstance(error, RefusedByServer) and error.status < 500:
            raise
        return {"error": error.message}
    if line is None:
        raise click.ClickException(f"batch {number} was cancelled on the server")
    return line


def _progress(status: dict[str, Any]) -> RemoteProgress:
    return RemoteProgress("queue" if status["state"] == "queued" else "grading", "", 0, 0)


def _judge_error(problem: str, submission: Submission, reason: str) -> dict[str, Any]:
    """A `judge_error` report of a file that the server could not grade."""
    return {
        "problem": problem,
        "problem_digest": "",
        "submission_sha256": submission.sha256,
        "submission_name": submission.name,
        "language": submission.language,
        "verdict": "judge_error",
        "reason": reason,
        "ranked": False,
        "device": "cuda",
        "sandbox": "not known",
    }
