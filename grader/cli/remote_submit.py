"""`grade submit --server`: upload a file, follow its grading, and exit as a local grading does."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.remote import path_segment, problem_name

if TYPE_CHECKING:
    from grader.cli.remote import Client
    from grader.report import Report

POLL_S = 2.0
"""Interval of polling when the event stream is not available."""

UPLOAD_TRIES = 3
"""How often an upload is tried while the connection fails."""

OUTAGE_S = 600.0
"""How long a server may be unreachable, as in a restart, before the command gives up."""

FINAL_STATES = ("done", "cancelled", "held")

OnState = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RemoteProgress:
    """Progress of a remote grading, as the progress display takes it."""

    stage: str
    case: str
    index: int
    total: int


def submit_remote(client: Client, problem: str, file: Path, gpu: str | None, as_json: bool) -> int:
    """Submit FILE, wait for its report, print it, and return the exit status."""
    from grader.cli.local_grading import exit_status, print_report
    from grader.cli.output.progress import show_progress
    from grader.cli.output.terminal import print_json, print_note
    from grader.cli.remote import RefusedByServer, Unreachable

    number = _upload(client, problem, file, gpu)
    page = f"{client.server}/submissions/{number}"
    if not as_json:
        print_note(f"submission {number}: {page}")
    try:
        with show_progress(not as_json) as display:
            answer = wait(client, number, lambda state: display(_progress(state)))
    except KeyboardInterrupt:
        print(f"\ngrade: submission {number} is still being graded: {page}", file=sys.stderr)
        raise
    except (Unreachable, RefusedByServer) as error:
        if isinstance(error, RefusedByServer) and error.status < 500:
            raise
        answer = {"state": "away", "reason": f"{error.message}; submission {number} is not lost"}
    if answer["state"] == "cancelled":
        raise click.ClickException(f"submission {number} was cancelled")
    if answer["state"] != "done":
        answer = _as_judge_error(answer, number, page)
    report = as_report(answer)
    if not as_json:
        return print_report(report, as_json=False)
    print_json(answer)
    return exit_status(report)


def wait(client: Client, number: int, on_state: OnState) -> dict[str, Any]:
    """Wait until the submission is in one of `FINAL_STATES`, and return it.

    Raises `Unreachable` or the server's last error after `OUTAGE_S` without a good answer.
    """
    from grader.cli.remote import RefusedByServer, Unreachable

    last_answer = time.monotonic()
    while True:
        try:
            # The server may have too many listeners; polling works as well.
            with suppress(RefusedByServer):
                for name, data in client.events(f"/submissions/{number}/events"):
                    last_answer = time.monotonic()
                    if name == "done" or data["state"] in FINAL_STATES:
                        break
                    on_state(data)
            answer: dict[str, Any] = client.request("GET", f"/submissions/{number}")
            if answer["state"] in FINAL_STATES:
                return answer
            last_answer = time.monotonic()
            on_state(answer)
        except Unreachable:
            if time.monotonic() - last_answer > OUTAGE_S:
                raise
        except RefusedByServer as error:
            temporary = error.status == 429 or error.status >= 500
            if not temporary or time.monotonic() - last_answer > OUTAGE_S:
                raise
        time.sleep(POLL_S)


def as_report(answer: dict[str, Any]) -> Report:
    """A server's answer as a report. Servers keep the seed secret: it becomes `HIDDEN_SEED`."""
    from grader.report import HIDDEN_SEED, Report

    known = {name: answer[name] for name in Report.model_fields if answer.get(name) is not None}
    return Report.model_validate(known | {"verdict": answer["verdict"], "seed": HIDDEN_SEED})


def _upload(client: Client, problem: str, file: Path, gpu: str | None) -> int:
    """Check the file as a local grading does, upload it, and return the submission's number."""
    from grader.cli.remote import Unreachable
    from grader.submission import Submission

    name = problem_name(problem)
    spec = client.request("GET", f"/problems/{path_segment(name)}")["spec"]
    # The server knows whether the problem takes Solutions.
    submission = Submission.read(file, spec["limits"]["source_bytes"], solutions=True)
    # With a key, a request whose answer was lost can be repeated without submitting twice.
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    for tries_left in reversed(range(UPLOAD_TRIES)):
        try:
            created = client.request(
                "POST",
                "/submissions",
                data={"problem": name} | ({"gpu": gpu} if gpu else {}),
                files={"file": (submission.name, submission.source)},
                headers=headers,
            )
            return int(created["id"])
        except Unreachable:
            if not tries_left:
                raise
            time.sleep(POLL_S)
    raise AssertionError


def _progress(state: dict[str, Any]) -> RemoteProgress:
    progress = state.get("progress")
    if progress is None:
        position = state.get("position")
        return RemoteProgress("queue", f"position {position}" if position else "", 0, 0)
    return RemoteProgress(progress["stage"], progress["case"], progress["index"], progress["total"])


def _as_judge_error(answer: dict[str, Any], number: int, page: str) -> dict[str, Any]:
    """The answer for a submission that got no result, as a `judge_error` report."""
    reason = answer.get("reason") or (
        f"submission {number} is held for the server's operator, who sees the cause"
    )
    blank = {"problem": "", "problem_digest": "", "submission_sha256": "", "submission_name": ""}
    known = {key: value for key, value in answer.items() if value is not None}
    return (
        blank
        | {"language": "python", "device": "cuda", "sandbox": "not known", "id": number}
        | known
        | {"verdict": "judge_error", "reason": f"{reason}; see {page}", "ranked": False}
    )
