"""Options that several commands share, and the choices made from them."""

from __future__ import annotations

import contextlib
import difflib
import getpass
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Desk

if TYPE_CHECKING:
    from grader.problem import Problem
    from grader.sandbox.base import Device, Sandbox

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."
)
db_option = click.option(
    "--db",
    metavar="URL",
    help="The board's database [default: $GRADE_DB, or SQLite in your data directory].",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to run; auto takes a GPU when there is one.",
)
sandbox_option = click.option(
    "--sandbox",
    "sandbox_name",
    type=click.Choice(["auto", "docker", "process"]),
    default="auto",
    show_default=True,
    help="How to fence the submission in; auto takes Docker when it answers. "
    "Use process for your own code only.",
)


def find_problem(text: str) -> Problem:
    """The problem at a folder's path, or of a bare name below ./problems or the repository's.

    Raises click.UsageError when nothing is there, ProblemError when it is no valid problem.
    """
    from grader.problem import Problem

    folder = Path(text)
    if folder.is_dir() or len(folder.parts) != 1 or text in (".", ".."):
        if not folder.exists() and folder.name in {path.name for path in problem_folders()}:
            raise click.UsageError(f"{text}: no such folder here; the name '{folder.name}' will do")
        return Problem.load(folder)
    for root in problem_roots():
        if (root / text).is_dir():
            return Problem.load(root / text)
    names = [path.name for path in problem_folders()]
    near = difflib.get_close_matches(text, names, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names) or 'none'}"
    raise click.UsageError(f"no problem '{text}' here; {hint}")


def problem_roots() -> list[Path]:
    """Where bare names of problems are looked for, first match wins."""
    ours = Path(__file__).resolve().parents[2] / "problems"
    here = Path("problems")
    return [here, ours] if here.resolve() != ours else [here]


def problem_folders() -> list[Path]:
    """Every problem that a bare name finds, by name."""
    found: dict[str, Path] = {}
    for root in problem_roots():
        for spec in sorted(root.glob("*/problem.yaml")):
            found.setdefault(spec.parent.name, spec.parent)
    return [found[name] for name in sorted(found)]


def choose_device(desk: Desk, device: str) -> Device:
    """``cpu`` or ``cuda``. Raises click.UsageError when a GPU was asked for and there is none."""
    if device == "cpu":
        return "cpu"
    missing = desk.cuda_missing()
    if missing and device == "cuda":
        raise click.UsageError(f"--device cuda: {missing}; use --device cpu to practise")
    return "cpu" if missing else "cuda"


def choose_sandbox(desk: Desk, name: str) -> tuple[Sandbox, str | None]:
    """The sandbox, and a note when it is not the one that a stranger's code should have.

    Raises click.UsageError when Docker was asked for and does not answer.
    """
    if name == "process":
        return desk.sandbox("process"), None
    missing = desk.docker_missing()
    if missing is None:
        return desk.sandbox("docker"), None
    if name == "docker":
        raise click.UsageError(f"--sandbox docker: {missing}")
    return desk.sandbox("process"), f"using the process sandbox, without Docker: {missing}"


def check_user(name: str | None) -> str:
    """The name for the board. Raises click.UsageError unless it is 1 to 40 printable characters."""
    if name is None:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            raise click.UsageError("who are you? Say so with --user NAME") from None
    if not (len(name.strip()) > 0 and len(name) <= 40 and name.isprintable()):
        raise click.UsageError("--user must be 1 to 40 printable characters")
    return name.strip()


def check_writable(path: Path) -> None:
    """Raise click.UsageError unless something can be made in the folder that `path` is to be in.

    It is tried, since permissions do not tell: of root, or of /proc.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # finds a name that is too long
        tempfile.TemporaryDirectory(prefix=".grade-", dir=path.absolute().parent).cleanup()
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> click.UsageError:
    """What to raise when nothing can be written at `path`."""
    return click.UsageError(
        f"--out: {path} cannot be written ({error.strerror or error}); name another place"
    )
