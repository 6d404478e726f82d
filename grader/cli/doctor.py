"""`grade doctor`: what this machine can do, and how to fix what it cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from grader.cli.desk import Desk
from grader.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from grader.cli.checkup import Finding

_STYLES = {"ok": ("✔", "green"), "warn": ("!", "yellow"), "missing": ("✘", "red")}


@click.command()
@json_option
@click.pass_obj
def doctor(desk: Desk, as_json: bool) -> int:
    """Say what this machine can do, and how to fix what it cannot.

    Exit status 0 when kernels can be graded here, on a GPU or a CPU; 1 when not.
    """
    from grader.cli.checkup import examine
    from grader.cli.terminal import emit, out

    findings = examine(desk)
    broken = [finding.name for finding in findings if finding.needed and finding.state == "missing"]
    if as_json:
        shown = [
            {"name": f.name, "state": f.state, "detail": f.detail, "fix": f.fix} for f in findings
        ]
        emit(json.dumps({"can_grade": not broken, "findings": shown}))
    else:
        console = out()
        console.print(_table(findings))
        if broken:
            console.print(f"nothing can be graded here without: {', '.join(broken)}", style="red")
        else:
            console.print(_summary(findings))
    return 1 if broken else 0


def _table(findings: list[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        detail = Text(finding.detail)
        if finding.fix:
            detail.append(f"\n→ {finding.fix}", "cyan")
        table.add_row(Text(*_STYLES[finding.state]), Text(finding.name, "bold"), detail)
    return table


def _summary(findings: list[Finding]) -> str:
    state = {finding.name: finding.state for finding in findings}
    where = "on the GPU, ranked" if state["GPU"] == "ok" else "on the CPU, for practice"
    how = "in Docker" if state["Docker"] == "ok" else "in the process sandbox, for your own code"
    return f"\nKernels are graded here {where}, {how}."
