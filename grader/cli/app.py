"""`grade`: dispatches to a command and turns every error into one line and an exit status.

0 accepted · 1 any other verdict on the submission · 2 wrong usage · 3 judge or internal error.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from grader import __version__
from grader.cli.dependencies import Dependencies
from grader.cli.help_examples import add_examples

COMMANDS = {
    "submit": ("submit", "Grade a kernel and put the result on the board."),
    "practice": ("submit", "Grade a kernel without recording the result."),
    "batch": ("batch", "Grade many kernels, with a line of JSON for each."),
    "watch": ("watch", "Grade a kernel each time its file is saved."),
    "compare": ("compare", "Time two kernels and say which one is faster."),
    "profile": ("profile", "Show what limits a kernel: registers, occupancy, rates."),
    "problems": ("problems", "List the problems by topic, and the learning path."),
    "show": ("problems", "Show a problem, or a recorded result."),
    "explain": ("explain", "Say what failed, why, and what to try."),
    "new": ("new", "Write a starter file for a problem."),
    "new-problem": ("new_problem", "Write the folder of a new problem."),
    "leaderboard": ("leaderboard", "Show the ranking of a problem."),
    "results": ("results", "List your recorded results."),
    "queue": ("remote_jobs", "List what a server grades, and what waits."),
    "cancel": ("remote_jobs", "Cancel your submission on a server."),
    "withdraw": ("remote_jobs", "Take your result off a server's board, or back."),
    "download": ("remote_jobs", "Download the source of your submission."),
    "plot": ("plot", "Plot times, rates and a roofline."),
    "verify": ("verify", "Prove a problem's check, and say what it lacks."),
    "baseline": ("baseline", "Measure and record a problem's baselines."),
    "replay": ("replay", "Grade a recorded result again, with the same inputs."),
    "worker": ("worker", "Pull jobs from a server and grade them here."),
    "doctor": ("doctor", "Examine this machine and say how to fix problems."),
    "sandbox": ("sandbox", "Build and check the Docker sandbox."),
    "mcp": ("mcp", "Serve an agent that writes kernels (MCP, on stdin)."),
    "serve": ("serve", "Serve a leaderboard that others submit to."),
    "login": ("login", "Store a server and your token."),
    "token": ("token", "List, make, replace and revoke your tokens."),
    "team": ("team", "Make a team on a server, join one, and leave it."),
    "completion": ("completion", "Print the code that completes commands in a shell."),
    "admin": ("admin", "Run a server: users, boards, workers, held jobs, rejudges."),
}
"""Command → its module in grader.cli.commands, and its summary. `grade --help` imports none."""

LINE_CHARS = 1000
"""Longest line of an error."""

_USER_ERRORS = {
    "grader.problem": "ProblemError",
    "grader.submission": "SubmissionError",
    "grader.board": "BoardError",
}
"""Package → its exception for mistakes that the user can fix: exit status 2."""

_MACHINE_ERRORS = {"grader.sandbox": "SandboxError"}
"""Package → its exception for what this machine cannot do: exit status 3."""

_HUNG_CALLS = {"grader.judge.authors_code": "HungCallError"}
"""Module → its exception for a call of a problem's code that cannot be stopped: exit status 2."""

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_PATH_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ESTALE, errno.ENXIO, errno.ENODEV),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
)
"""Errors of a path that the user gave, not of grade."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"grader.cli.commands.{COMMANDS[name][0]}")
        command = getattr(module, name.replace("-", "_"))
        assert isinstance(command, click.Command)
        add_examples(command, name)
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


@click.group(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit them
)
@click.version_option(__version__, prog_name="grade")
def grade() -> None:
    """Grade GPU kernels: check their outputs, time them, and rank them."""


add_examples(grade, "")


def main(args: Sequence[str] | None = None, deps: Dependencies | None = None) -> int:
    """Run one command and return its exit status. Tests pass their own `deps`."""
    arguments = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in arguments
    _escape_unprintable()
    try:
        with _exit_for_hung_calls(as_json):
            status = grade.main(
                arguments, prog_name="grade", standalone_mode=False, obj=deps or Dependencies()
            )
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
        # click exits with 1 when the reader of its help closed the pipe; 1 means a verdict here.
        return 0 if stop.code == 1 else int(stop.code or 0)
    except BrokenPipeError:
        from grader.cli.output.terminal import discard_stdout

        discard_stdout()
        return 0
    except Exception as error:  # noqa: BLE001  # tracebacks are shown with GRADE_DEBUG=1 only
        if isinstance(error, _loaded(_USER_ERRORS)):
            return _refuse(str(error), as_json)
        if isinstance(error, _loaded(_MACHINE_ERRORS)):
            if os.environ.get("GRADE_DEBUG") == "1":
                traceback.print_exception(error)
            return _refuse(f"{error}; `grade doctor` examines this machine", as_json, 3)
        if isinstance(error, OSError) and (cause := _environment_error(error)):
            # An error with no file name may be of stdout, which cannot take JSON then.
            return _refuse(cause, as_json and error.filename is not None)
        return _internal_error(error, as_json)


@contextmanager
def _exit_for_hung_calls(as_json: bool) -> Iterator[None]:
    """Inside, a call of a problem's code that cannot be stopped ends this process."""

    def exit_if_hung(unhandled: threading.ExceptHookArgs) -> None:
        error = unhandled.exc_value
        if not isinstance(error, _loaded(_HUNG_CALLS)):
            previous(unhandled)
            return
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            print("\x1b[?25h", end="", file=sys.__stderr__)  # the progress display hid the cursor
        status = _refuse(str(error), as_json)
        sys.stderr.flush()
        os._exit(status)

    previous, threading.excepthook = threading.excepthook, exit_if_hung
    try:
        yield
    finally:
        threading.excepthook = previous


def _refuse(message: str, as_json: bool, status: int = 2) -> int:
    """Print an error as one line on stderr, or as JSON on stdout; return the exit status."""
    from grader.report import one_line

    line = one_line(message, LINE_CHARS)
    if as_json:
        try:
            print(json.dumps({"error": line}), flush=True)
        except OSError:  # the exit status still reports the error
            from grader.cli.output.terminal import discard_stdout

            discard_stdout()
    else:
        print(f"grade: {line}", file=sys.stderr)
    return status


def _environment_error(error: OSError) -> str | None:
    """The message for an error of the user's files or disks; None for an error of grade."""
    from grader.report import one_line

    if isinstance(error.filename, str | bytes) and error.errno in _WRITE_ERRORS + _PATH_ERRORS:
        what = one_line(os.fsdecode(error.filename))
        return f"{what} cannot be used ({error.strerror}); fix that, or choose another path"
    if error.errno in _WRITE_ERRORS:
        return f"the output cannot be written: {error.strerror}"
    try:
        os.getcwd()
    except OSError:
        return "the working directory no longer exists; change to another"
    return None


def _internal_error(error: Exception, as_json: bool) -> int:
    from grader.report import one_line

    if os.environ.get("GRADE_DEBUG") == "1":
        traceback.print_exception(error)
    line = one_line(str(error), LINE_CHARS)
    if as_json:
        return _refuse(f"internal error, {type(error).__name__}: {line}", as_json, 3)
    if os.environ.get("GRADE_DEBUG") != "1":
        print(
            f"grade: internal error, {type(error).__name__}: {line}\n"
            "This is a bug in grade. GRADE_DEBUG=1 shows where it happened.",
            file=sys.stderr,
        )
    return 3


def _loaded(exceptions: dict[str, str]) -> tuple[type[Exception], ...]:
    """Exception classes of the packages that are imported; others cannot have been raised."""
    modules: list[tuple[Any, str]] = [(sys.modules.get(m), name) for m, name in exceptions.items()]
    return tuple(getattr(module, name) for module, name in modules if hasattr(module, name))


def _escape_unprintable() -> None:
    """Print an escape, instead of failing, for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
