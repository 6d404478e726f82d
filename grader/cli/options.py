"""Options that several commands share, and the choices made from them."""

from __future__ import annotations

import contextlib
import difflib
import getpass
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from grader.cli.dependencies import Dependencies
from grader.problem_folders import problem_folder, problem_folders

if TYPE_CHECKING:
    from grader.fleet.set_problems import NamedSet, SetProblems
    from grader.problem import Problem
    from grader.sandbox.base import Device, Sandbox

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."
)
db_option = click.option(
    "--db",
    metavar="URL",
    help="Database of the board [default: $GRADE_DB, or SQLite in your data directory].",
)
board_server_option = click.option(
    "--server",
    metavar="URL",
    envvar="GRADE_SERVER",
    help="Ask this server instead of this machine's board [default: $GRADE_SERVER, if set].",
)
remote_option = click.option(
    "--server",
    metavar="URL",
    help="The server [default: $GRADE_SERVER, or the server of the last login].",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device to run on; auto uses a GPU if there is one.",
)
sandbox_option = click.option(
    "--sandbox",
    "sandbox_name",
    type=click.Choice(["auto", "docker", "process"]),
    default="auto",
    show_default=True,
    help="Isolation of the submission; auto uses Docker if its engine answers. "
    "Use process for your own code only.",
)


def _named_sets(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> tuple[NamedSet, ...]:
    from grader.problem_sets import SETS, split_prefix

    found = []
    for text in texts:
        named = split_prefix(text)
        if named is None:
            sets = ", ".join(f"{prefix}:PATH" for prefix in SETS)
            raise click.UsageError(
                f"--problem {text}: names a problem of another set, or a folder of several, as "
                f"one of {sets}; --problems is for a folder of ours"
            )
        found.append(named)
    return tuple(found)


sets_option = click.option(
    "--problem",
    "named_sets",
    metavar="SET:PATH",
    multiple=True,
    callback=_named_sets,
    help="A problem of another set, or a folder of several, such as kernelbench:PATH; may be "
    "repeated.",
)
"""Gives a tuple of `NamedSet`."""


server_option = click.option(
    "--server",
    metavar="URL",
    envvar="GRADE_SERVER",
    help="Submit to this server instead of grading here [default: $GRADE_SERVER, if set].",
)
gpu_option = click.option(
    "--gpu", metavar="TYPE", help="Type of GPU to run on, such as H100; needs --server."
)


def check_server_options(server: str | None, gpu: str | None, local: Sequence[str]) -> None:
    """Raise click.UsageError for an option that a server ignores, of the parameters in `local`, and
    for --gpu without a server."""
    if not server:
        if gpu is not None:
            raise click.UsageError("--gpu chooses a type of GPU on a server; use it with --server")
        return
    parameters = {str(p.name): p.opts[0] for p in click.get_current_context().command.params}
    options = {name: parameters[name].lstrip("-") for name in local}
    refuse_local_options("grading on this machine", **options)


def find_problem(
    text: str,
    deps: Dependencies | None = None,
    device: str = "auto",
    sandbox_name: str = "auto",
) -> Problem:
    """Load the problem at a folder's path, a bare name below ./problems or the repository's, or a
    problem of another set, such as ``kernelbot:PATH``, whose code says on `device` what it is.

    Raises click.UsageError when nothing is there, ProblemError when the problem is invalid.
    """
    from grader.problem import Problem
    from grader.problem_sets import split_prefix

    if (of_set := split_prefix(text)) is not None:
        return _find_in_set(*of_set, deps or Dependencies(), device, sandbox_name)
    folder = problem_folder(text)
    names = [path.name for path in problem_folders()]
    if folder is not None:
        if not folder.exists() and folder.name in names:
            raise click.UsageError(
                f"{text}: no such folder here; use the problem's name, '{folder.name}'"
            )
        return Problem.load(folder)  # which says what is missing in it
    near = difflib.get_close_matches(text, names, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names) or 'none'}"
    raise click.UsageError(f"no problem '{text}' here; {hint}")


def _find_in_set(prefix: str, path: Path, deps: Dependencies, device: str, sandbox: str) -> Problem:
    from grader.judge.import_problem import import_problem
    from grader.problem_sets import read_problem

    source = read_problem(prefix, path)
    chosen, _ = choose_sandbox(deps, sandbox)
    return import_problem(source, chosen, choose_device(deps, device))


def result_number(text: str) -> int | None:
    """The number of a result on the board, written as ``12`` or ``#12``; None for other text."""
    digits = text.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 4000 else None


def refuse_local_options(purpose: str, **options: str) -> None:
    """Raise click.UsageError for an option that a server ignores.

    options: name of the parameter → name of the option. `purpose` says what they are for.
    """
    context = click.get_current_context()
    for name, option in options.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{option} is for {purpose}; remove it, or remove --server and GRADE_SERVER"
            )


def select_cases(problem: Problem, names: Sequence[str], device: Device) -> Problem:
    """The problem with only the named cases. Raises click.UsageError for a name that is none of
    the cases on `device`."""
    from grader.problem.domain import DRAWN_CASES, NAME

    listed = [*problem.cases("test", device), *problem.cases("benchmark", device)]
    known = list(dict.fromkeys(case.name for case in listed))
    if problem.spec.domain:
        known += [f"{NAME}{number + 1}" for number in range(DRAWN_CASES[device])]
    for name in names:
        if name not in known:
            where = {"cpu": "a CPU", "cuda": "a GPU"}[device]
            raise click.UsageError(
                f"--case {name}: no such case on {where}; choose from {', '.join(known)}"
            )
    return replace(problem, selected=frozenset(names))


def choose_device(deps: Dependencies, device: str) -> Device:
    """``cpu`` or ``cuda``. Raises click.UsageError for ``cuda`` on a machine with no GPU."""
    if device == "cpu":
        return "cpu"
    missing = deps.cuda_missing()
    if missing and device == "cuda":
        raise click.UsageError(f"--device cuda: {missing}; use --device cpu to practise")
    return "cpu" if missing else "cuda"


def choose_sandbox(deps: Dependencies, name: str) -> tuple[Sandbox, str | None]:
    """The sandbox, and a note if ``auto`` fell back from Docker to the process sandbox.

    Raises click.UsageError for ``docker`` when its engine does not answer.
    """
    if name == "process":
        return deps.sandbox("process"), None
    missing = deps.docker_missing()
    if missing is None:
        return deps.sandbox("docker"), None
    if name == "docker":
        raise click.UsageError(f"--sandbox docker: {missing}")
    return deps.sandbox("process"), f"using the process sandbox, without Docker: {missing}"


def set_problems(named: Sequence[NamedSet], sandbox: Sandbox, device: Device) -> SetProblems:
    """The problems of other sets, each imported on `device` by a process of its own."""
    from grader.fleet.set_problems import SetProblems
    from grader.judge.import_process import import_in_process

    kind: Literal["docker", "process"] = "docker" if sandbox.name == "docker" else "process"
    return SetProblems(named, partial(import_in_process, sandbox=kind, device=device))


def load_set_problems(sets: SetProblems, taken: Collection[str]) -> dict[str, Problem]:
    """The problems of other sets that can be judged here, by name. A warning says why each other
    is left out; so is one whose name is taken."""
    from grader.cli.output.terminal import print_note, print_warning

    print_note("importing the problems of other sets; this may take minutes")
    found, broken = sets.load()
    for name, reason in broken.items():
        print_warning(f"{name} is left out: {reason}")
    for name in sorted(found.keys() & set(taken)):
        print_warning(f"{name} is left out: a problem of ours has this name")
    return {name: one for name, one in found.items() if name not in taken}


def choose_slots(deps: Dependencies, slots: int | None) -> tuple[int, Device]:
    """How many gradings may run at a time, and on which device; by default one per GPU.

    Raises click.UsageError for more slots than GPUs: each GPU slot needs one of its own.
    """
    from grader.sandbox.gpu_info import driver

    gpus = len(driver().gpus) if deps.cuda_missing() is None else 0
    count = slots if slots is not None else gpus or 1
    if gpus and count > gpus:
        raise click.UsageError(
            f"--slots {count}: each slot needs a GPU of its own, and there are {gpus}"
        )
    return count, "cuda" if gpus else "cpu"


def check_user(name: str | None) -> str:
    """The name for the board. Raises click.UsageError unless it is 1 to 40 printable characters."""
    if name is None:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            raise click.UsageError(
                "your login name is not known; set it with --user NAME"
            ) from None
    if not (len(name.strip()) > 0 and len(name) <= 40 and name.isprintable()):
        raise click.UsageError("--user must be 1 to 40 printable characters")
    return name.strip()


def check_writable(path: Path) -> None:
    """Raise click.UsageError unless a file can be created in the parent folder of `path`.

    It creates one: permission bits are not enough for root, or in /proc.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # fails for a name that is too long
        tempfile.TemporaryDirectory(prefix=".grade-", dir=path.absolute().parent).cleanup()
    except OSError as error:
        raise not_writable(path, error) from None


def not_writable(path: Path, error: OSError) -> click.UsageError:
    """The error to raise when `path` cannot be written."""
    return click.UsageError(
        f"--out: {path} cannot be written ({error.strerror or error}); choose another path"
    )


def iso_moment(option: str, text: str) -> str:
    """A time with its time zone, in ISO 8601. Raises click.UsageError."""
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option}: '{text}' is not a time; write 2030-05-01T23:59+02:00"
        ) from None
    if until.tzinfo is None:
        raise click.UsageError(
            f"{option}: '{text}' has no time zone; write {until.isoformat()}Z for UTC"
        )
    return until.isoformat()
