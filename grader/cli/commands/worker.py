"""`grade worker`: this machine's slots, at the service of a server elsewhere."""

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

from grader.cli.dependencies import Desk
from grader.cli.options import choose_device, choose_sandbox, problem_folders, sandbox_option
from grader.sandbox.gpu_info import driver

if TYPE_CHECKING:
    from grader.fleet.dispatch import Dispatcher

DRAIN_S = 60.0
"""How long a grading may take to end once we are told to stop; what is left is given back."""

NAME_CHARS = 100
"""The longest name; a GPU's may be put behind it."""

TOLD_S = 0.1
"""How often to look whether we were told to stop."""

TICK_S = 1.0
"""How often a server is asked for jobs: less often than a database would be."""


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
    help="Folder of the problems; only what the server has in the same version is graded "
    "[default: ./problems or the repository's].",
)
@sandbox_option
@click.option(
    "--slots",
    type=click.IntRange(1, 256),
    help="Gradings at one time [default: one per GPU, or one on a CPU].",
)
@click.option("--name", metavar="NAME", help="What the server shows [default: the host's name].")
@click.pass_obj
def worker(
    desk: Desk,
    server: str | None,
    token: str | None,
    problems: Path | None,
    sandbox_name: str,
    slots: int | None,
    name: str | None,
) -> int:
    """Pull jobs from a server and grade them here.

    Only outward connections are made, and the token can do nothing but this: `grade admin user add
    NAME --role worker` prints one. SIGTERM or Ctrl-C lets running gradings end; a second one gives
    them back at once.
    """
    from grader.cli.remote import checked_url
    from grader.fleet.dispatch import Dispatcher
    from grader.fleet.job import Worker
    from grader.fleet.local import LocalEngine
    from grader.fleet.remote import RemoteLedger

    server, token = server or os.environ.get("GRADE_SERVER"), token or os.environ.get("GRADE_TOKEN")
    if not server or not token:
        missing = "--token or GRADE_TOKEN" if server else "--server or GRADE_SERVER"
        raise click.UsageError(f"which server, and with whose token? {missing} is missing")
    folders = _folders(problems)
    device = choose_device(desk, "auto")
    sandbox, note = choose_sandbox(desk, sandbox_name)
    gpus = len(driver().gpus) if device == "cuda" else 0
    count = slots or gpus or 1
    if gpus and count > gpus:
        raise click.UsageError(f"--slots {count}: a slot has a GPU to itself, and there are {gpus}")
    name = name or platform.node() or "worker"
    if len(name) > NAME_CHARS or not name.isprintable():
        raise click.UsageError(f"--name: at most {NAME_CHARS} printable characters")
    with closing(RemoteLedger(checked_url(server), token)) as source:
        source.seen(Worker(name, "http", device, None, count))
        if note:
            click.echo(note, err=True)
        kind: Literal["docker", "process"] = "docker" if sandbox.name == "docker" else "process"
        with LocalEngine(count, device, kind) as engine:
            dispatcher = Dispatcher(source, engine, folders, name, "http", tick_s=TICK_S)
            slots_of = f"{count} slot{'s' if count > 1 else ''} on {device.upper()}"
            click.echo(f"{name}: {slots_of}, for {server}", err=True)
            _serve(dispatcher)
    return 0


def _folders(root: Path | None) -> dict[str, Path]:
    """Every problem's folder, by name."""
    found = problem_folders() if root is None else [y.parent for y in root.glob("*/problem.yaml")]
    if not found:
        raise click.UsageError(f"no problems in {root or 'here'}; say where they are: --problems")
    return {folder.name: folder for folder in found}


def _serve(dispatcher: Dispatcher) -> None:
    """Work until told to stop, then let what runs end, unless told again."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    told = 0

    def count(_number: int, _frame: FrameType | None) -> None:
        # No more than this: a lock taken in here may be held by what was interrupted.
        nonlocal told
        told += 1

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, count)
    dispatcher.start()
    while not told:
        time.sleep(TOLD_S)
    ending = threading.Thread(target=dispatcher.drain, args=(DRAIN_S,))
    ending.start()
    while ending.is_alive() and told < 2:
        time.sleep(TOLD_S)
    dispatcher.drain(0)
