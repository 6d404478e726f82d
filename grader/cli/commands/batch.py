"""`grade batch`: grade many submissions, one line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click
from pydantic import BaseModel, ConfigDict, ValidationError

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    check_writable,
    choose_device,
    choose_sandbox,
    device_option,
    find_problem,
    sandbox_option,
)

if TYPE_CHECKING:
    from grader.automation import Grader, Item


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
) -> int:
    """Grade FILES against PROBLEM, or the lines of --jsonl, and print a line of JSON for each.

    A line has the `key` of its submission, for FILES their path, and its `report`, or an `error` if
    this machine could not grade it. Lines come as gradings end. All submissions are tested, several
    at a time; those that pass are timed alone. Nothing is recorded. Exit status: 0 if every
    submission has a report, 3 if one has an error.
    """
    from grader.automation import Grader
    from grader.cli.local_grading import unwind_on_sigterm

    found = find_problem(problem, deps, device, sandbox_name)
    if found.imported is not None:
        raise click.UsageError(f"{problem}: a batch takes problems of this format only")
    if bool(files) == (jsonl is not None):
        raise click.UsageError("name files, or a file of lines with --jsonl, and not both")
    chosen = choose_device(deps, device)
    sandbox, _ = choose_sandbox(deps, sandbox_name)
    with ExitStack() as stack:
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
        grader = stack.enter_context(
            Grader(
                found,
                devices=[chosen],
                sandbox="docker" if sandbox.name == "docker" else "process",
                tests_at_once=tests_at_once,
            )
        )
        return _write(grader, items, stream)


def _write(grader: Grader, items: list[Item], stream: TextIO) -> int:
    """Write a line for each result, and the rate to stderr. The exit status."""
    start_s, graded, errors = time.monotonic(), 0, 0
    for done, result in enumerate(grader.map(items), 1):
        line: dict[str, Any] = {"key": result.key}
        if result.report is not None:
            graded += 1
            # By way of text, in which infinity is a string: JSON has no other.
            line["report"] = json.loads(result.report.model_dump_json())
        else:
            errors += 1
            line["error"] = result.error
        print(json.dumps(line), file=stream, flush=True)
        per_hour = graded / (time.monotonic() - start_s) * 3600
        shown = f"\r{done} of {len(items)}, {per_hour:,.0f} an hour"
        print(shown, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 3 if errors else 0


def _items(files: tuple[Path, ...], jsonl: Path | None, tests_only: bool) -> Iterator[Item]:
    from grader.automation import Item

    for file in files:
        yield Item(str(file), file, benchmarks=not tests_only)
    if jsonl is None:
        return
    try:
        with click.open_file(str(jsonl)) as stream:
            lines = stream.read().splitlines()
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
        if cut and not cut.startswith(b'{"key": '):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise click.UsageError(f"{out}: it has other lines than results of a batch") from None
    if cut:
        os.truncate(out, len(whole))
    return keys
