"""`grade`: finds the command, and turns every error into one line and an exit status.

0 accepted · 1 any other verdict on the submission · 2 the call was wrong · 3 our fault.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from grader import __version__
from grader.cli.dependencies import Desk

COMMANDS = {
    "submit": ("grader.cli.commands.submit", "Grade a kernel and put the result on the board."),
    "practice": ("grader.cli.commands.submit", "Grade a kernel without recording it."),
    "watch": ("grader.cli.commands.watch", "Grade a kernel each time it is saved."),
    "compare": ("grader.cli.commands.compare", "Say which of two kernels is faster."),
    "profile": (
        "grader.cli.commands.profile",
        "Show what limits a kernel: registers, code, rates.",
    ),
    "problems": ("grader.cli.commands.problems", "List the problems."),
    "show": (
        "grader.cli.commands.problems",
        "Show a problem: statement, arguments, cases, limits.",
    ),
    "new": ("grader.cli.commands.new", "Write a file to start from."),
    "leaderboard": ("grader.cli.commands.leaderboard", "Show who is ahead."),
    "plot": ("grader.cli.commands.plot", "Draw times, rates and a roofline."),
    "verify": ("grader.cli.commands.verify", "Prove that a problem's check catches wrong answers."),
    "baseline": (
        "grader.cli.commands.baseline",
        "Measure and record what kernels are held against.",
    ),
    "replay": (
        "grader.cli.commands.replay",
        "Grade a recorded result again, with the same inputs.",
    ),
    "worker": ("grader.cli.commands.worker", "Pull jobs from a server and grade them here."),
    "doctor": (
        "grader.cli.commands.doctor",
        "Say what this machine can do, and how to fix the rest.",
    ),
    "sandbox": ("grader.cli.commands.sandbox", "Build and check the Docker sandbox."),
    "serve": ("grader.cli.commands.serve", "Serve a leaderboard that others submit to."),
    "login": ("grader.cli.commands.login", "Remember a server, and who you are there."),
    "admin": ("grader.cli.commands.admin", "Run a server: users, boards, held jobs, rejudges."),
}
"""Command → its module and what it does. Here, so that help costs no imports."""

LINE_CHARS = 1000
"""How long an error's line may be."""

_MISTAKES = {
    "grader.problem": "ProblemError",
    "grader.submission": "SubmissionError",
    "grader.board": "BoardError",
}
"""Room → its exception for what the user can put right: exit status 2."""

_LACKS = {"grader.sandbox": "SandboxError"}
"""The same for what this machine cannot do: exit status 3."""

_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_UNUSABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ESTALE, errno.ENXIO, errno.ENODEV),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
)
"""What the system may say of a path, whatever we do."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean '{near[0]}'?" if near else "see grade --help"
            raise click.UsageError(f"no such command '{args[0]}'; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_Commands, no_args_is_help=True)
@click.version_option(__version__, prog_name="grade")
def grade() -> None:
    """Grade GPU kernels: right or wrong, how fast, and who is ahead."""


def main(args: Sequence[str] | None = None, desk: Desk | None = None) -> int:
    """Run one command and return its exit status. `desk` is what tests exchange."""
    arguments = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in arguments
    _never_fail_to_print()
    try:
        status = grade.main(arguments, prog_name="grade", standalone_mode=False, obj=desk or Desk())
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        return _refuse(error.format_message(), as_json)
    except (click.Abort, KeyboardInterrupt):
        print("grade: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        # Where the reader of its help went away, click exits with 1, which means a verdict here.
        return 0 if stop.code == 1 else int(stop.code or 0)
    except BrokenPipeError:
        from grader.cli.output.terminal import drop_stdout

        drop_stdout()
        return 0
    except Exception as error:  # noqa: BLE001  # the last stop: nobody is shown a traceback unasked
        if isinstance(error, _raised_by(_MISTAKES)):
            return _refuse(str(error), as_json)
        if isinstance(error, _raised_by(_LACKS)):
            if os.environ.get("GRADE_DEBUG") == "1":
                traceback.print_exception(error)
            return _refuse(f"{error}; `grade doctor` examines this machine", as_json, 3)
        if isinstance(error, OSError) and (cause := _outside(error)):
            # What has no name may be stdout, which then takes no JSON either.
            return _refuse(cause, as_json and error.filename is not None)
        return _own_fault(error)


def _refuse(message: str, as_json: bool, status: int = 2) -> int:
    """The call was wrong, or the machine cannot do it: one line on stderr, or the JSON object of
    the contract; the exit status."""
    from grader.report import one_line

    line = one_line(message, LINE_CHARS)
    if as_json:
        try:
            print(json.dumps({"error": line}), flush=True)
        except OSError:  # nobody is there to read it; the status says as much
            from grader.cli.output.terminal import drop_stdout

            drop_stdout()
    else:
        print(f"grade: {line}", file=sys.stderr)
    return status


def _outside(error: OSError) -> str | None:
    """What is wrong around grade, in words; None where the fault is its own."""
    from grader.report import one_line

    if isinstance(error.filename, str | bytes) and error.errno in _UNWRITTEN + _UNUSABLE:
        what = one_line(os.fsdecode(error.filename))
        return f"{what} cannot be used ({error.strerror}); put that right, or name another"
    if error.errno in _UNWRITTEN:
        return f"the output cannot be written: {error.strerror}"
    try:
        os.getcwd()
    except OSError:
        return "the working directory is no longer there; change to another"
    return None


def _own_fault(error: Exception) -> int:
    if os.environ.get("GRADE_DEBUG") == "1":
        traceback.print_exception(error)
    else:
        from grader.report import one_line

        line = one_line(str(error), LINE_CHARS)
        print(
            f"grade: internal error, {type(error).__name__}: {line}\n"
            "This is a bug in grade. GRADE_DEBUG=1 shows where it happened.",
            file=sys.stderr,
        )
    return 3


def _raised_by(named: dict[str, str]) -> tuple[type[Exception], ...]:
    """The exceptions of rooms in use; a room that was never imported has raised nothing."""
    rooms: list[tuple[Any, str]] = [(sys.modules.get(room), name) for room, name in named.items()]
    return tuple(getattr(room, name) for room, name in rooms if hasattr(room, name))


def _never_fail_to_print() -> None:
    """A terminal that lacks a character gets an escape in its place, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
