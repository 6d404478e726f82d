"""`grade mcp`: a server of the Model Context Protocol for agents."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    choose_device,
    choose_sandbox,
    device_option,
    load_set_problems,
    sandbox_option,
    set_problems,
    sets_option,
)
from grader.problem_folders import problem_folders

if TYPE_CHECKING:
    from grader.fleet.set_problems import NamedSet


@click.command()
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    help="Folder below which clients may name files [default: this one].",
)
@sets_option
@device_option
@sandbox_option
@click.pass_obj
def mcp(
    deps: Dependencies,
    root: Path,
    named_sets: tuple[NamedSet, ...],
    device: str,
    sandbox_name: str,
) -> None:
    """Serve the tools list, show, check, grade and profile to an agent, on stdin and stdout.

    A client of the Model Context Protocol starts this command. It records nothing. Problems are
    those that `grade problems` lists, and those of --problem; start it where the agent cannot write
    their folders, since the judge runs their code.
    """
    if find_spec("mcp") is None:
        raise click.UsageError("the package mcp is missing; install it: pip install 'grade[mcp]'")
    from grader.adapters.mcp_server import make_server
    from grader.cli.local_grading import unwind_on_sigterm
    from grader.cli.output.terminal import print_warning

    chosen = choose_device(deps, device)
    sandbox, note = choose_sandbox(deps, sandbox_name)
    if note:
        print_warning(note)
    with unwind_on_sigterm():
        more = {}
        if named_sets:
            taken = [folder.name for folder in problem_folders()]
            more = load_set_problems(set_problems(named_sets, sandbox, chosen), taken)
        server = make_server(
            root,
            device=chosen,
            sandbox="docker" if sandbox.name == "docker" else "process",
            more=more,
        )
        server.run("stdio")
