"""`grade submit` and `grade practice`: one grading, from the shell's words to the exit status."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from grader.cli.dependencies import Desk
from grader.cli.options import (
    check_user,
    choose_device,
    choose_sandbox,
    db_option,
    device_option,
    find_problem,
    json_option,
    sandbox_option,
)

if TYPE_CHECKING:
    from grader.judge.record import Effort
    from grader.problem import Problem
    from grader.report import Report
    from grader.sandbox.base import Device, Sandbox
    from grader.submission import Submission


@dataclass(frozen=True)
class Job:
    """Everything that one grading needs, all of it checked."""

    problem: Problem
    submission: Submission
    device: Device
    sandbox: Sandbox
    note: str | None = None

    @classmethod
    def prepare(
        cls, desk: Desk, problem: Problem, file: Path, device: str, sandbox_name: str
    ) -> Job:
        """Read the file and choose where to run. Raises for whatever is wrong with the call."""
        from grader.submission import Submission

        submission = Submission.read(file, problem.spec.limits.source_bytes)
        chosen = choose_device(desk, device)
        sandbox, note = choose_sandbox(desk, sandbox_name)
        return cls(problem, submission, chosen, sandbox, note)


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@sandbox_option
@click.option("--user", metavar="NAME", help="Your name on the board [default: your login].")
@click.option(
    "--server",
    metavar="URL",
    envvar="GRADE_SERVER",
    help="Hand in to a server instead of this machine [default: $GRADE_SERVER, if set].",
)
@click.option("--gpu", metavar="TYPE", help="The type of GPU to run on, such as H100; on a server.")
@db_option
@json_option
@click.pass_obj
def submit(
    desk: Desk,
    problem: str,
    file: Path,
    device: str,
    sandbox_name: str,
    user: str | None,
    server: str | None,
    gpu: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Grade FILE against PROBLEM and put the result on the board.

    PROBLEM is a folder or the name of one of `grade problems`. FILE is one .py or .cu file.
    Exit status: 0 accepted, 1 any other verdict, 2 the call was wrong, 3 our fault.

    A server knows you by your token and chooses where to run: --device, --sandbox, --user and --db
    are for grading on this machine.
    """
    if server:
        _refuse_local_options()
        return _submit_to(server, problem, file, gpu, as_json)
    if gpu is not None:
        raise click.UsageError("--gpu chooses a type of GPU on a server; use it with --server")
    name = check_user(user)
    _ask_early(desk, device)
    job = Job.prepare(desk, find_problem(problem), file, device, sandbox_name)
    with ExitStack() as open_boards:
        with desk.ahead(job.sandbox, job.problem, job.device) as sandbox:
            from grader.board import BoardError  # only now, since it takes a while
            from grader.report import Verdict

            board = open_boards.enter_context(closing(desk.board(db, create=True)))
            board.check_writable()
            report = run(desk, replace(job, sandbox=sandbox), show=not as_json)
        if report.verdict is None:
            raise click.UsageError(
                f"{report.reason}; nothing was recorded; grade practice tells as much, and needs "
                "no board"
            )
        if report.verdict is not Verdict.JUDGE_ERROR:
            try:
                report = board.record(report, name, job.submission.source)
            except BoardError as error:
                # The verdict stands, and the user shall see it; that it was not recorded is ours.
                tell(_with_note(report, f"not recorded: {error}"), as_json)
                return 3
    return tell(report, as_json)


def _ask_early(desk: Desk, device: str) -> None:
    """Have the driver start, which takes it 0.2 s, while the problem is read."""
    if device != "cpu":
        threading.Thread(target=desk.cuda_missing, daemon=True).start()


def _refuse_local_options() -> None:
    """Raise click.UsageError for an option that a server would not heed."""
    context = click.get_current_context()
    names = {"device": "device", "sandbox_name": "sandbox", "user": "user", "db": "db"}
    for name, option in names.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{option} is for grading on this machine; leave it out, or --server and "
                "GRADE_SERVER"
            )


def _submit_to(server: str, problem: str, file: Path, gpu: str | None, as_json: bool) -> int:
    """Hand in to a server, which knows by our token who we are, and grades where it will."""
    from grader.cli.remote import Client
    from grader.cli.remote_submit import hand_in

    with Client.find(server) as client:
        return hand_in(client, problem, file, gpu, as_json)


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@sandbox_option
@click.option("--full", is_flag=True, help="Measure times as carefully as for ranking.")
@json_option
@click.pass_obj
def practice(
    desk: Desk, problem: str, file: Path, device: str, sandbox_name: str, full: bool, as_json: bool
) -> int:
    """Grade FILE against PROBLEM without recording it.

    The same judge, tests and baselines as `grade submit`, with quicker and rougher times. Exit
    status 0 too when no verdict can be given here: a .cu file on a machine with no GPU is
    compiled, not run.
    """
    _ask_early(desk, device)
    job = Job.prepare(desk, find_problem(problem), file, device, sandbox_name)
    report = run(desk, job, show=not as_json, effort="full" if full else "quick")
    return tell(report.model_copy(update={"ranked": False}), as_json, job.problem)


def run(
    desk: Desk, job: Job, *, show: bool, seed: int | None = None, effort: Effort = "full"
) -> Report:
    """Grade one job; with `show`, notes and progress go to stderr."""
    from grader.cli.output.progress import watching
    from grader.cli.output.terminal import err
    from grader.problem import ProblemError

    if show and job.note:
        err().print(job.note, style="yellow", soft_wrap=True)
    try:
        with unwinding(), watching(show) as watcher:
            return desk.grade(
                job.problem,
                job.submission,
                sandbox=job.sandbox,
                device=job.device,
                seed=seed,
                effort=effort,
                progress=watcher,
            )
    except ProblemError:
        raise
    except Exception as error:  # whatever it is, it is no fault of the submission
        if os.environ.get("GRADE_DEBUG") == "1":
            raise
        return judge_error(job, error, seed)


def judge_error(job: Job, error: Exception, seed: int | None = None) -> Report:
    """The report of a grading that we could not finish."""
    from grader.report import Report, Verdict, escape, one_line
    from grader.sandbox.base import SandboxError

    known = isinstance(error, SandboxError)
    advice = "; `grade doctor` examines this machine" if known else ""
    what = str(error) if known else f"{type(error).__name__}: {error} (GRADE_DEBUG=1 shows where)"
    return Report(
        problem=job.problem.name,
        problem_digest=job.problem.digest,
        submission_sha256=job.submission.sha256,
        submission_name=escape(job.submission.name, 100),
        language=job.submission.language,
        verdict=Verdict.JUDGE_ERROR,
        reason=one_line(what),
        device=job.device,
        sandbox=job.sandbox.name,  # which may be what does not work
        seed=seed or 0,
        notes=[f"this is our fault, and nothing was recorded{advice}"],
    )


def tell(report: Report, as_json: bool, problem: Problem | None = None) -> int:
    """Print a report, as one JSON object or for a person, and return its exit status.

    With `problem`, a person is shown what was recorded of its times as well.
    """
    from grader.cli.output.baseline_view import beside
    from grader.cli.output.render import render
    from grader.cli.output.terminal import emit, out

    if as_json:
        emit(report.model_dump_json())
    else:
        console = out()
        more = beside(problem, report) if problem else ()
        console.print(render(report, console.width, more))
    return exit_status(report)


def _with_note(report: Report, note: str) -> Report:
    return report.model_copy(update={"notes": [*report.notes, note]})


def exit_status(report: Report) -> int:
    """0 accepted or no verdict possible here, 1 any other verdict, 3 judge error."""
    from grader.report import Verdict

    if report.verdict in (Verdict.ACCEPTED, None):
        return 0
    return 3 if report.verdict is Verdict.JUDGE_ERROR else 1


@contextmanager
def unwinding() -> Iterator[None]:
    """Within this, being told to end unwinds the stack, so that the sandbox is taken down."""
    previous = {n: signal.signal(n, _terminate) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(number: int, _frame: FrameType | None) -> None:
    """128 and the signal's number, as a shell would say it."""
    raise SystemExit(128 + number)
