"""`grade submit --server`: hand a kernel in, watch it go, and end as the local command would."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.output.admin_output import step

if TYPE_CHECKING:
    from grader.cli.remote import Client
    from grader.report import Report

POLL_S = 2.0
"""How often to ask where there are no events."""

AWAY_S = 600.0
"""How long a server may be away, for a restart, before we stop to wait for it."""

OVER = ("done", "cancelled", "held")

OnState = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Step:
    """What a watcher of progress is shown."""

    stage: str
    case: str
    index: int
    total: int


def hand_in(client: Client, problem: str, file: Path, gpu: str | None, as_json: bool) -> int:
    """Submit FILE, wait for its report, print that, and return the exit status."""
    from grader.cli.commands.submit import exit_status, tell
    from grader.cli.output.progress import watching
    from grader.cli.output.terminal import emit, err
    from grader.cli.remote import RefusedByServer, Unreachable

    number = _send(client, problem, file, gpu)
    page = f"{client.server}/submissions/{number}"
    if not as_json:
        err().print(f"submission {number}: {page}", soft_wrap=True)
    try:
        with watching(not as_json) as watcher:
            found = wait(client, number, lambda state: watcher(_step(state)))
    except KeyboardInterrupt:
        print(f"\ngrade: submission {number} goes on without you: {page}", file=sys.stderr)
        raise
    except (Unreachable, RefusedByServer) as error:
        if isinstance(error, RefusedByServer) and error.status < 500:
            raise
        found = {"state": "away", "reason": f"{error.message}; submission {number} is not lost"}
    if found["state"] == "cancelled":
        raise click.ClickException(f"submission {number} was cancelled")
    if found["state"] != "done":
        found = _our_fault(found, number, page)
    report = as_report(found)
    if not as_json:
        return tell(report, as_json=False)
    emit(json.dumps(found))
    return exit_status(report)


def wait(client: Client, number: int, on_state: OnState) -> dict[str, Any]:
    """The submission once nothing more will become of it by itself.

    Raises `Unreachable`, or the server's last words, when it is away or at fault for longer than
    `AWAY_S`.
    """
    from grader.cli.remote import RefusedByServer, Unreachable

    heard = time.monotonic()
    while True:
        try:
            # Too many may listen already; asking now and then does as well.
            with suppress(RefusedByServer):
                for name, data in client.events(f"/submissions/{number}/events"):
                    heard = time.monotonic()
                    if name == "done" or data["state"] in OVER:
                        break
                    on_state(data)
            found: dict[str, Any] = client.request("GET", f"/submissions/{number}")
            if found["state"] in OVER:
                return found
            heard = time.monotonic()
            on_state(found)
        except Unreachable:
            if time.monotonic() - heard > AWAY_S:
                raise
        except RefusedByServer as error:
            passes = error.status == 429 or error.status >= 500
            if not passes or time.monotonic() - heard > AWAY_S:
                raise
        time.sleep(POLL_S)


def as_report(found: dict[str, Any]) -> Report:
    """A server's answer as a report. The seed, which servers tell nobody, becomes `HIDDEN_SEED`."""
    from grader.report import HIDDEN_SEED, Report

    known = {name: found[name] for name in Report.model_fields if found.get(name) is not None}
    return Report.model_validate(known | {"verdict": found["verdict"], "seed": HIDDEN_SEED})


def _send(client: Client, problem: str, file: Path, gpu: str | None) -> int:
    """Check the file as the local command would, and hand it in."""
    from grader.submission import Submission

    name = Path(problem).resolve().name if Path(problem).is_dir() else Path(problem).name
    spec = client.request("GET", f"/problems/{step(name)}")["spec"]
    submission = Submission.read(file, spec["limits"]["source_bytes"])
    taken = client.request(
        "POST",
        "/submissions",
        data={"problem": name} | ({"gpu": gpu} if gpu else {}),
        files={"file": (submission.name, submission.source)},
    )
    return int(taken["id"])


def _step(state: dict[str, Any]) -> Step:
    now = state.get("progress")
    if now is None:
        position = state.get("position")
        return Step("queue", f"place {position}" if position else "", 0, 0)
    return Step(now["stage"], now["case"], now["index"], now["total"])


def _our_fault(found: dict[str, Any], number: int, page: str) -> dict[str, Any]:
    """The report of a submission whose result did not come, which is no fault of its author."""
    reason = found.get("reason") or (
        f"submission {number} waits for the server's operator, who was told why"
    )
    blank = {"problem": "", "problem_digest": "", "submission_sha256": "", "submission_name": ""}
    known = {key: value for key, value in found.items() if value is not None}
    return (
        blank
        | {"language": "python", "device": "cuda", "sandbox": "not known", "id": number}
        | known
        | {"verdict": "judge_error", "reason": f"{reason}; look it up at {page}", "ranked": False}
    )
