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
    check_server_options,
    check_user,
    db_option,
    device_option,
    gpu_option,
    json_option,
    sandbox_option,
    select_cases,
    server_option,
)

MAX_SEED = 2**53 - 1
"""The largest seed that a grading draws."""


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@sandbox_option
@click.option("--user", metavar="NAME", help="Your name on the board [default: your login].")
@server_option
@gpu_option
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
    check_server_options(server, gpu, ("device", "sandbox_name", "user", "db"))
    if server:
        return _submit_to(server, problem, file, gpu, as_json)
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
@click.option(
    "--server", metavar="URL", help="Practise on this server, behind everybody's submissions."
)
@gpu_option
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
    server: str | None,
    gpu: str | None,
    full: bool,
    cases: tuple[str, ...],
    seed: int | None,
    as_json: bool,
) -> int:
    """Grade FILE against PROBLEM without recording the result.

    Runs the same judge and tests as `grade submit`, with faster, less precise timing.
    Exit status: as for `grade submit`, and so 2 for a .cu file on a machine with no GPU, which is
    compiled and not run.

    With --server, the server grades it behind everybody's submissions, times it as precisely as for
    ranking, and puts nothing on the board. GRADE_SERVER does not choose that.
    """
    check_server_options(server, gpu, ("device", "sandbox_name", "full", "cases", "seed"))
    if server:
        from grader.cli.remote import Client
        from grader.cli.remote_practice import practice_remote

        with Client.find(server) as client:
            return practice_remote(client, problem, file, gpu, as_json)
    _start_driver(deps, device)
    job = LocalJob.load(deps, problem, file, device, sandbox_name)
    if cases:
        job = replace(job, problem=select_cases(job.problem, cases, job.device))
    report = run(deps, job, show=not as_json, seed=seed, effort="full" if full else "quick")
    return print_report(report.model_copy(update={"ranked": False}), as_json, job.problem)
