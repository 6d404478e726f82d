"""`grade verify --all`: the checks of all problems, a line for each."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import unwind_on_sigterm
from grader.problem_folders import problem_roots

if TYPE_CHECKING:
    from rich.console import RenderableType

    from grader.judge.verification.verify_all import VerifiedProblem
    from grader.sandbox.base import Device


def folders(root: str | None) -> list[Path]:
    """The folders of all problems below `root`, or else below ./problems or the repository's.

    Raises click.UsageError if there are none.
    """
    roots = problem_roots() if root is None else [Path(root)]
    for one in roots:
        found = sorted(spec.parent for spec in one.glob("*/problem.yaml"))
        if found:
            return found
    raise click.UsageError(f"{roots[0]}: no folder in it holds a problem.yaml")


def verify_all(deps: Dependencies, found: list[Path], device: Device, as_json: bool) -> int:
    """Check all problems, and print a line for each, or all of them as one JSON object."""
    from grader.cli.output.terminal import print_json, safe_text, stdout

    console = stdout()
    began_s = monotonic()
    # On a GPU, problems side by side would run out of its memory.
    processes = len(os.sched_getaffinity(0)) if device == "cpu" else 1
    summaries: list[VerifiedProblem] = []
    with unwind_on_sigterm():
        for summary in deps.verify_all(found, device, processes):
            summaries.append(summary)
            if not as_json:
                console.print(mark(summary.ok), safe_text(_in_words(summary)), soft_wrap=True)
                for finding in summary.findings:
                    console.print("   ", safe_text(finding, style="red"), soft_wrap=True)
    wrong = sorted(one.problem for one in summaries if not one.ok)
    if as_json:
        problems = [as_fields(one) for one in summaries]
        print_json({"device": device, "problems": problems, "ok": not wrong})
        return 1 if wrong else 0
    compiled = sum(len(one.compiled) for one in summaries)
    cases = sum(one.cases for one in summaries)
    if compiled < cases:
        console.print(
            f"torch.compile ran on {compiled} of {cases} cases: the largest of each combination of "
            "dtypes; everything else ran on all cases",
            soft_wrap=True,
        )
    console.print(
        f"{len(summaries)} problems in {monotonic() - began_s:.0f} s: "
        + (f"NOT verified on {device}: {', '.join(wrong)}" if wrong else f"verified on {device}"),
        style="bold red" if wrong else "bold green",
    )
    return 1 if wrong else 0


def _in_words(summary: VerifiedProblem) -> str:
    """A problem's line, without its mark."""
    if summary.error is not None:
        return f"{summary.problem}: {summary.error}"
    count = len(summary.findings)
    parts = [f"{count} finding{'s' * (count > 1)}" if count else "ok"]
    if summary.margin is not None:
        digits = 0 if summary.margin >= 10 else 1
        parts.append(f"margin {summary.margin:,.{digits}f} ×")
    return f"{summary.problem}: {', '.join(parts)}, {summary.seconds:.0f} s"


def as_fields(summary: VerifiedProblem) -> dict[str, Any]:
    """The fields of a summary in `--json`."""
    return asdict(summary) | {"ok": summary.ok, "seconds": round(summary.seconds, 1)}


def mark(ok: bool | None) -> RenderableType:
    """A tick, a cross, or a dash for None."""
    from rich.text import Text

    marks = {True: ("✔", "green"), False: ("✘", "red"), None: ("–", "dim")}
    return Text(*marks[ok])
