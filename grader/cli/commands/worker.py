"""`grade worker`: grade a remote server's jobs on this machine."""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    choose_sandbox,
    choose_slots,
    load_set_problems,
    sandbox_option,
    set_problems,
    sets_option,
)
from grader.problem_folders import problem_folders

if TYPE_CHECKING:
    from grader.fleet.dispatch import Dispatcher
    from grader.fleet.job import Worker
    from grader.fleet.remote_ledger import RemoteLedger
    from grader.fleet.set_problems import NamedSet
    from grader.problem import Problem

DRAIN_S = 60.0
"""How long running gradings may go on after a stop signal; unfinished jobs return to the queue."""

NAME_CHARS = 100
"""Longest name of a worker; the fleet may append a GPU's name."""

SIGNAL_POLL_S = 0.1
"""How often to check for a stop signal."""

SERVER_POLL_S = 2.0
"""How often to try to reach a server that is not up yet."""

TICK_S = 1.0
"""How often to ask the server for jobs: less often than a database is asked."""


@click.command()
@click.option("--server", metavar="URL", help="The server [default: $GRADE_SERVER].")
@click.option(
    "--token",
    metavar="TOKEN",
    help="A worker's token [default: $GRADE_TOKEN, which other users of this machine cannot see].",
)
@click.option(
    "--problems",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the problems; jobs of other versions are left to other workers "
    "[default: ./problems or the repository's].",
)
@sets_option
@sandbox_option
@click.option(
    "--slots",
    type=click.IntRange(1, 256),
    help="Gradings at a time [default: one per GPU, or one on the CPU].",
)
@click.option("--name", metavar="NAME", help="Name of this worker [default: the host's name].")
@click.pass_obj
def worker(
    deps: Dependencies,
    server: str | None,
    token: str | None,
    problems: Path | None,
    named_sets: tuple[NamedSet, ...],
    sandbox_name: str,
    slots: int | None,
    name: str | None,
) -> int:
    """Pull jobs from a server and grade them here.

    The worker waits until its server is up, and only makes outgoing connections. When a problem in
    its folder changes, it takes jobs of the new version within 10 s. `grade admin user add NAME
    --role worker` prints its token, which is good for nothing else. SIGTERM or Ctrl-C lets
    running gradings end; a second one returns them to the queue at once. Problems of other sets are
    read and imported once, at the start.
    """
    from grader.cli.local_grading import unwind_on_sigterm
    from grader.cli.remote import checked_url
    from grader.fleet.dispatch import Dispatcher
    from grader.fleet.job import Worker
    from grader.fleet.loaded_problems import WatchedProblems
    from grader.fleet.local_engine import LocalEngine
    from grader.fleet.remote_ledger import RemoteLedger

    server, token = server or os.environ.get("GRADE_SERVER"), token or os.environ.get("GRADE_TOKEN")
    if not server or not token:
        missing = "--token or GRADE_TOKEN" if server else "--server or GRADE_SERVER"
        raise click.UsageError(f"a worker needs a server and a token; {missing} is missing")
    folders = _folders(problems)
    sandbox, note = choose_sandbox(deps, sandbox_name)
    count, device = choose_slots(deps, slots)
    name = name or platform.node() or "worker"
    if len(name) > NAME_CHARS or not name.isprintable():
        raise click.UsageError(f"--name must be at most {NAME_CHARS} printable characters")
    url = checked_url(server)
    of_sets: dict[str, Problem] = {}
    if named_sets:
        with unwind_on_sigterm():
            of_sets = load_set_problems(set_problems(named_sets, sandbox, device), folders)
    with closing(RemoteLedger(url, token)) as source:
        _announce(source, Worker(name, "http", device, None, count))
        if note:
            click.echo(note, err=True)
        kind: Literal["docker", "process"] = "docker" if sandbox.name == "docker" else "process"
        with LocalEngine(count, device, kind) as engine:
            watched = WatchedProblems(lambda: _folders(problems))

            def look() -> dict[str, Problem]:
                return watched.look() | of_sets

            dispatcher = Dispatcher(source, engine, folders, name, "http", look=look, tick_s=TICK_S)
            shown = f"{count} slot{'s' if count > 1 else ''} on {device.upper()}"
            click.echo(f"{name}: {shown}, for {server}", err=True)
            _run_until_signal(dispatcher)
    return 0


def _announce(source: RemoteLedger, worker: Worker) -> None:
    """Announce the worker, once its server is up: both may start at the same time.

    Raises `BoardError` if the server refuses the worker.
    """
    from grader.fleet.remote_ledger import ServerUnavailable

    waiting = False
    while True:
        try:
            return source.announce(worker)
        except ServerUnavailable as error:
            if not waiting:
                click.echo(f"{error}; waiting for it", err=True)
            waiting = True
            time.sleep(SERVER_POLL_S)


def _folders(root: Path | None) -> dict[str, Path]:
    """Folder of each problem, by name. Raises click.UsageError if there are none."""
    found = problem_folders() if root is None else [y.parent for y in root.glob("*/problem.yaml")]
    if not found:
        where = f"in {root}" if root else "here"
        raise click.UsageError(f"no problems {where}; give their folder with --problems")
    return {folder.name: folder for folder in found}


def _run_until_signal(dispatcher: Dispatcher) -> None:
    """Grade until the first stop signal; then drain until `DRAIN_S` or a second signal."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    signals = 0

    def count(_number: int, _frame: FrameType | None) -> None:
        # Only count: the interrupted code may hold any lock.
        nonlocal signals
        signals += 1

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, count)
    dispatcher.start()
    while not signals:
        time.sleep(SIGNAL_POLL_S)
    draining = threading.Thread(target=dispatcher.drain, args=(DRAIN_S,))
    draining.start()
    while draining.is_alive() and signals < 2:
        time.sleep(SIGNAL_POLL_S)
    dispatcher.drain(0)
