"""`grade problems SET:ROOT`: lists the problems of another set, and what can be judged of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import choose_device, choose_sandbox

if TYPE_CHECKING:
    from grader.judge.set_report import SetReport


def list_set(deps: Dependencies, prefix: str, root: Path, as_json: bool, proves: bool) -> int:
    """List the problems below `root`; with `proves`, examine each. Exit status 0 if any runs.

    Raises click.UsageError if there is none.
    """
    from grader.cli.output.terminal import print_json, safe_text, stdout
    from grader.problem_sets import SETS, list_problems

    paths = list_problems(prefix, root)
    if not paths:
        raise click.UsageError(f"{root}: no problem here; {SETS[prefix].EXPECTED}")
    if proves:
        return _report(deps, prefix, paths, as_json)
    if as_json:
        print_json({"set": prefix, "problems": [f"{prefix}:{path}" for path in paths]})
        return 0
    console = stdout()
    for path in paths:
        console.print(safe_text(f"{prefix}:{path}"), soft_wrap=True)
    title, licence = SETS[prefix].TITLE, SETS[prefix].LICENCE
    number = f"{len(paths)} problem{'s' * (len(paths) != 1)}"
    told = f"{number} of {title}, licence: {licence}; nothing is copied"
    console.print(told, soft_wrap=True)
    return 0


def _report(deps: Dependencies, prefix: str, paths: list[Path], as_json: bool) -> int:
    from grader.cli.output.terminal import print_json, safe_text, stdout
    from grader.judge.set_report import SetReport, report_problem
    from grader.problem import ProblemError
    from grader.problem_sets import read_problem
    from grader.problem_sets.reading import problem_name

    chosen = choose_device(deps, "auto")
    sandbox, _ = choose_sandbox(deps, "auto")
    found: list[SetReport] = []
    console = stdout()
    for path in paths:
        try:
            report = report_problem(read_problem(prefix, path), sandbox, chosen)
        except ProblemError as error:
            reason = str(error).removeprefix(f"{path}: ")
            report = SetReport(problem_name(prefix, path.name), "cannot", [reason])
        found.append(report)
        if not as_json:
            console.print(safe_text(report_line(report)), soft_wrap=True)
    counts = Counter(report.state for report in found)
    if as_json:
        print_json({"set": prefix, "device": chosen, "problems": [asdict(one) for one in found]})
    else:
        told = ", ".join(
            f"{counts[state]} {state}" for state in ("runs", "runs with limits", "cannot")
        )
        console.print(f"{len(found)} problems on {chosen}: {told}", style="bold")
    return 0 if counts["cannot"] < len(found) else 1


def report_line(report: SetReport) -> str:
    """A problem in a line: whether it can be judged, and how."""
    mark = {"runs": "✔", "runs with limits": "✔", "cannot": "✘"}[report.state]
    cases = (
        f"{report.tests} tests, {report.benchmarks} benchmarks, {report.float64_cases} in float64"
    )
    cases += f", {report.solutions} of its solutions as expected" if report.solutions else ""
    told = "; ".join(([cases] if report.tests else []) + report.reasons)
    return f"{mark} {report.name} · {report.state} · {told} · {report.took_s:.1f} s"
