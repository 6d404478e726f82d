"""`grade serve`: the hosted leaderboard, with the slots of this machine that grade for it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    choose_sandbox,
    choose_slots,
    db_option,
    load_set_problems,
    sandbox_option,
    set_problems,
    sets_option,
)
from grader.problem_folders import problem_roots

if TYPE_CHECKING:
    from grader.fleet.grading_engine import Engine
    from grader.fleet.set_problems import NamedSet
    from grader.sandbox.base import Device, Sandbox


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free one.",
)
@db_option
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where jobs run: slots of this machine, or a running Ray cluster.",
)
@click.option(
    "--problems",
    type=click.Path(path_type=Path),
    help="Folder of the problems [default: ./problems or the repository's].",
)
@sets_option
@sandbox_option
@click.option(
    "--slots",
    type=click.IntRange(min=0),
    help="Gradings at a time on this machine [default: one per GPU, or one on the CPU]; "
    "0 leaves all jobs to others, such as grade worker.",
)
@click.option(
    "--new-admin-token",
    is_flag=True,
    help="Print a new token for the first admin, if the old one was lost.",
)
@click.pass_obj
def serve(
    deps: Dependencies,
    host: str,
    port: int,
    db: str | None,
    engine_name: str,
    problems: Path | None,
    named_sets: tuple[NamedSet, ...],
    sandbox_name: str,
    slots: int | None,
    new_admin_token: bool,
) -> int:
    """Serve the leaderboard: HTTP API, pages, and a queue of submissions to grade.

    The first start creates an admin and prints a token, once. SIGTERM lets running gradings end.
    Limits are environment variables, such as GRADE_SERVE_MAX_QUEUE; docs/hosting.md lists them.
    docs/sets.md says what --problem puts on the pages.
    """
    from grader.board import default_url
    from grader.cli.local_grading import unwind_on_sigterm
    from grader.cli.output.terminal import print_note, print_warning
    from grader.fleet.dispatch import Dispatcher

    try:
        from grader.server import run
        from grader.server.http import logs
        from grader.server.services.container import Services, load_problems
        from grader.server.settings import Settings, SettingsError, providers_from_environment
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise click.UsageError(f"{package} is not installed; pip install '.[server]'") from None
    try:
        settings, providers = Settings.from_environment(), providers_from_environment()
        listener = run.listen(host, port)
    except (SettingsError, run.CannotListen) as error:
        raise click.UsageError(str(error)) from None
    for name in Settings.unknown():
        print_warning(f"{name} is set, but there is no such setting")
    root = problems or _default_problems()
    loaded = load_problems(root, may_be_empty=bool(named_sets))
    sets = None
    if named_sets:
        place = _place_of_imports(deps, engine_name, sandbox_name, slots)
        sets = set_problems(named_sets, *place)
        with unwind_on_sigterm():
            loaded |= load_set_problems(sets, loaded)
    if not loaded:
        raise click.UsageError("no problem can be served; a warning says why for each")
    url = db or os.environ.get("GRADE_DB") or default_url()
    services = Services.open(
        url,
        loaded,
        settings,
        providers=providers,
        folder=root.absolute(),
        sets=sets,
    )
    for change in services.version_changes:
        print_note(change.line())
    with unwind_on_sigterm():
        engine, via, note = _engine(deps, engine_name, sandbox_name, slots)
        if note:
            print_warning(note)
        logs.configure()
        # Several servers may share a machine and a database.
        name = f"{socket.gethostname()}:{listener.getsockname()[1]}"
        dispatcher = Dispatcher(services.ledger, engine, {}, name, via)
        dispatcher.set_problems(services.problems)
        accounts = services.accounts
        token = accounts.new_admin_token() if new_admin_token else accounts.first_admin()
        _announce(token, listener.getsockname())
        run.serve(services, dispatcher, engine, listener)
    return 0


def _announce(token: str | None, address: tuple[str, int]) -> None:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    print(f"grade serves on http://{host}:{address[1]}", flush=True)
    if token is not None:
        print(f"The admin's token, shown only this once:\n{token}", flush=True)


def _default_problems() -> Path:
    return next((root for root in problem_roots() if root.is_dir()), Path("problems"))


def _place_of_imports(
    deps: Dependencies, engine_name: str, sandbox_name: str, slots: int | None
) -> tuple[Sandbox, Device]:
    """Where the problems of other sets are imported: as slots of this machine grade. Slots
    elsewhere import again if their device is another one."""
    local = choose_slots(deps, slots if engine_name == "local" else 0)
    return choose_sandbox(deps, sandbox_name)[0], local[1]


def _engine(
    deps: Dependencies, name: str, sandbox_name: str, slots: int | None
) -> tuple[Engine, Literal["local", "ray"], str | None]:
    """The engine, its kind, and a warning if submissions run in the process sandbox."""
    if name == "ray":
        if slots is not None:
            raise click.UsageError("--slots: the nodes of a Ray cluster say how many slots it has")
        return _ray("process" if sandbox_name == "process" else "docker"), "ray", None
    from grader.fleet.local_engine import LocalEngine

    sandbox, note = choose_sandbox(deps, sandbox_name)
    kind = cast(Literal["docker", "process"], sandbox.name)
    if kind == "process":
        note = (
            f"{note or 'using the process sandbox'}; it is for your own code only, and its results "
            "are not ranked"
        )
    count, device = choose_slots(deps, slots)
    return LocalEngine(count, device, kind), "local", note


def _ray(sandbox: Literal["docker", "process"]) -> Engine:
    try:
        from grader.fleet.ray_engine import RayEngine

        return RayEngine(sandbox)
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"--engine ray: {error.name} is not installed; pip install '.[ray]'"
        ) from None
    except ConnectionError as error:
        raise click.UsageError(f"--engine ray: {error}") from None
