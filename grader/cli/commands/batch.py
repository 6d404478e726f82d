"""`grade batch`: grade many submissions, one line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click
from pydantic import BaseModel, ConfigDict, ValidationError

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    check_server_options,
    check_writable,
    choose_device,
    choose_sandbox,
    device_option,
    find_problem,
    gpu_option,
    sandbox_option,
    server_option,
)

if TYPE_CHECKING:
    from grader.automation import Item

Line = dict[str, Any]
"""A result as a line of JSON: its `key`, and its `report` or an `error`."""

BEGINNING = b'{"key": '
"""Of every line."""


class BatchLine(BaseModel):
    """One line of --jsonl."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str
    """The name of its result."""
    source: str
    """The text of the submission."""
    language: Literal["python", "cuda"] = "python"
    problem: str | None = None
    """Another problem than PROBLEM."""
    benchmarks: bool = True
    """Whether it is timed if it passes its tests."""


@click.command()
@click.argument("problem")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--jsonl",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Submissions as lines of JSON, with `key`, `source` and maybe `language`, `problem`, "
    "`benchmarks`; - is stdin.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append the results to this file instead of printing them. Submissions whose results it "
    "has are left out, so that a batch can be continued.",
)
@click.option("--tests-only", is_flag=True, help="Time nothing.")
@click.option(
    "--tests-at-once", type=click.IntRange(1, 64), help="Gradings beside each other on a device."
)
@device_option
@sandbox_option
@server_option
@gpu_option
@click.pass_obj
def batch(
    deps: Dependencies,
    problem: str,
    files: tuple[Path, ...],
    jsonl: Path | None,
    out: Path | None,
    tests_only: bool,
    tests_at_once: int | None,
    device: str,
    sandbox_name: str,
    server: str | None,
    gpu: str | None,
) -> int:
    """Grade FILES against PROBLEM, or the lines of --jsonl, and print a line of JSON for each.

    A line has the `key` of its submission, for FILES their path, and its `report`, or an `error` if
    this machine could not grade it. Lines come as gradings end. All submissions are tested, several
    at a time; those that pass are timed alone. Nothing is recorded. Exit status: 0 if every
    submission has a report, 3 if one has an error.

    With --server, the submissions are sent there as batches, which are graded behind all single
    ones. Ctrl-C cancels what is not graded.
    """
    from grader.cli.local_grading import unwind_on_sigterm

    if bool(files) == (jsonl is not None):
        raise click.UsageError("name files, or a file of lines with --jsonl, and not both")
    check_server_options(server, gpu, ("device", "sandbox_name", "tests_at_once"))
    with ExitStack() as stack:
        grade: Callable[[list[Item]], Iterator[Line]]
        if server:
            grade = _on_server(stack, server, problem, gpu)
        else:
            grade = _here(stack, deps, problem, device, sandbox_name, tests_at_once)
        stack.enter_context(unwind_on_sigterm())
        known: set[str] = set()
        stream = sys.stdout
        if out is not None:
            check_writable(out)
            known = _keys(out)
            stream = stack.enter_context(out.open("a"))
        items = [one for one in _items(files, jsonl, tests_only) if one.key not in known]
        if known:
            print(f"{len(known)} results are in {out} already", file=sys.stderr)
        return _write(grade(items), len(items), stream)


def _on_server(
    stack: ExitStack, server: str, problem: str, gpu: str | None
) -> Callable[[list[Item]], Iterator[Line]]:
    """A function that grades items on a server."""
    from grader.cli.remote import Client
    from grader.cli.remote_batch import grade_remotely

    client = stack.enter_context(Client.find(server))

    def grade(items: list[Item]) -> Iterator[Line]:
        return stack.enter_context(closing(grade_remotely(client, problem, items, gpu)))

    return grade


def _here(
    stack: ExitStack,
    deps: Dependencies,
    problem: str,
    device: str,
    sandbox_name: str,
    tests_at_once: int | None,
) -> Callable[[list[Item]], Iterator[Line]]:
    """A function that grades items on this machine."""
    from grader.automation import Grader
    from grader.cli.output.terminal import print_warning

    found = find_problem(problem, deps, device, sandbox_name)
    chosen = choose_device(deps, device)
    sandbox, note = choose_sandbox(deps, sandbox_name)
    if note:
        print_warning(note)

    def grade(items: list[Item]) -> Iterator[Line]:
        name: Literal["docker", "process"] = "docker" if sandbox.name == "docker" else "process"
        grader = Grader(found, devices=[chosen], sandbox=name, tests_at_once=tests_at_once)
        for result in stack.enter_context(grader).map(items):
            line: Line = {"key": result.key}
            if result.report is not None:
                # By way of text, in which infinity is a string: JSON has no other.
                line["report"] = json.loads(result.report.model_dump_json())
            else:
                line["error"] = result.error
            yield line

    return grade


def _write(lines: Iterator[Line], count: int, stream: TextIO) -> int:
    """Write the lines of results, and the rate to stderr. The exit status."""
    is_terminal = sys.stderr.isatty()
    start, end = ("\r", "") if is_terminal else ("", "\n")  # one line, or a log of lines
    start_s, graded, errors = time.monotonic(), 0, 0
    for done, line in enumerate(lines, 1):
        graded += "report" in line
        errors += "error" in line
        print(json.dumps(line), file=stream, flush=True)
        per_hour = graded / (time.monotonic() - start_s) * 3600
        shown = f"{done} of {count}, {per_hour:,.0f} an hour"
        print(start + shown, end=end, file=sys.stderr, flush=True)
    if is_terminal:
        print(file=sys.stderr)
    return 3 if errors else 0


def _items(files: tuple[Path, ...], jsonl: Path | None, tests_only: bool) -> Iterator[Item]:
    from grader.automation import Item

    places: dict[str, str] = {}

    def expect_new(key: str, place: str) -> None:
        if key in places:
            raise click.UsageError(f"{place}: its key {key!r} is that of {places[key]} already")
        places[key] = place

    for file in files:
        expect_new(str(file), str(file))
        yield Item(str(file), file, benchmarks=not tests_only)
    if jsonl is None:
        return
    try:
        with click.open_file(str(jsonl)) as stream:
            lines = stream.read().split("\n")  # JSON may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.UsageError(f"--jsonl {jsonl}: {why}") from None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = BatchLine.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise click.UsageError(f"{jsonl}:{number}: {where}: {first['msg']}") from None
        expect_new(line.key, f"{jsonl}:{number}")
        timed = line.benchmarks and not tests_only
        yield Item(line.key, line.source, line.problem, line.language, timed)


def _keys(out: Path) -> set[str]:
    """The keys of the results with a report in a file of an earlier run. A last line that was cut
    off is removed."""
    if not out.exists():
        return set()
    content = out.read_bytes()
    whole, cut = content[: content.rfind(b"\n") + 1], content[content.rfind(b"\n") + 1 :]
    try:
        results = [json.loads(line) for line in whole.splitlines()]
        keys = {one["key"] for one in results if "report" in one}
        if cut[: len(BEGINNING)] != BEGINNING[: len(cut)]:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise click.UsageError(f"{out}: it has other lines than results of a batch") from None
    if cut:
        os.truncate(out, len(whole))
    return keys
