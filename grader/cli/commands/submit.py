"""`grade submit` and `grade practice`: grade one file."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, print_report, run
from grader.cli.options import (
    check_user,
    db_option,
    device_option,
    json_option,
    refuse_local_options,
    sandbox_option,
    select_cases,
)

MAX_SEED = 2**53 - 1
"""The largest seed that a grading draws."""


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
    help="Submit to this server instead of grading here [default: $GRADE_SERVER, if set].",
)
@click.option("--gpu", metavar="TYPE", help="Type of GPU to run on, such as H100; needs --server.")
@db_option
@json_option
@click.pass_obj
def submit(
    deps: Dependencies,
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

    PROBLEM is a folder, or a name that `grade problems` lists. FILE is one .py or .cu file.
    Exit status: 0 accepted, 1 any other verdict, 2 wrong usage, 3 judge error. A .cu file needs a
    GPU; without one it is only compiled, gets no verdict, and the exit status is 2.

    With --server, your token says who you are and the server chooses where to run: --device,
    --sandbox, --user and --db are for grading on this machine only.
    """
    if server:
        local = {"device": "device", "sandbox_name": "sandbox", "user": "user", "db": "db"}
        refuse_local_options("grading on this machine", **local)
        return _submit_to(server, problem, file, gpu, as_json)
    if gpu is not None:
        raise click.UsageError("--gpu chooses a type of GPU on a server; use it with --server")
    name = check_user(user)
    _start_driver(deps, device)
    job = LocalJob.load(deps, problem, file, device, sandbox_name)
    with ExitStack() as stack:
        with deps.prestart(job.sandbox, job.problem, job.device) as sandbox:
            # Imported while the sandbox starts.
            from grader.board import BoardError
            from grader.report import Verdict

            board = stack.enter_context(closing(deps.board(db, create=True)))
            board.check_writable()
            report = run(deps, replace(job, sandbox=sandbox), show=not as_json)
        if report.verdict not in (Verdict.JUDGE_ERROR, None):
            try:
                report = board.record(report, name, job.submission.source)
            except BoardError as error:
                # The verdict stands and is shown; that the board failed is not the user's fault.
                notes = [*report.notes, f"not recorded: {error}"]
                print_report(report.model_copy(update={"notes": notes}), as_json)
                return 3
    return print_report(report, as_json)


def _start_driver(deps: Dependencies, device: str) -> None:
    """Initialize the GPU driver, which takes 0.2 s, while the problem is loaded."""
    if device != "cpu":
        threading.Thread(target=deps.cuda_missing, daemon=True).start()


def _submit_to(server: str, problem: str, file: Path, gpu: str | None, as_json: bool) -> int:
    from grader.cli.remote import Client
    from grader.cli.remote_submit import submit_remote

    with Client.find(server) as client:
        return submit_remote(client, problem, file, gpu, as_json)


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@sandbox_option
@click.option("--full", is_flag=True, help="Measure times as precisely as for ranking.")
@click.option(
    "--case",
    "cases",
    metavar="NAME",
    multiple=True,
    help="Run only this test or benchmark; may be given several times.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, MAX_SEED),
    help="Use the inputs of an earlier grading, whose report prints its seed.",
)
@json_option
@click.pass_obj
def practice(
    deps: Dependencies,
    problem: str,
    file: Path,
    device: str,
    sandbox_name: str,
    full: bool,
    cases: tuple[str, ...],
    seed: int | None,
    as_json: bool,
) -> int:
    """Grade FILE against PROBLEM without recording the result.

    Runs the same judge and tests as `grade submit`, with faster, less precise timing.
    Exit status: as for `grade submit`, and so 2 for a .cu file on a machine with no GPU, which is
    compiled and not run.
    """
    _start_driver(deps, device)
    job = LocalJob.load(deps, problem, file, device, sandbox_name)
    if cases:
        job = replace(job, problem=select_cases(job.problem, cases, job.device))
    report = run(deps, job, show=not as_json, seed=seed, effort="full" if full else "quick")
    return print_report(report.model_copy(update={"ranked": False}), as_json, job.problem)
