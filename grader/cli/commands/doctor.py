"""`grade doctor`: what this machine can do, and how to fix what it cannot."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Desk
from grader.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from grader.cli.diagnostics import Finding

_STYLES = {"ok": ("✔", "green"), "warn": ("!", "yellow"), "missing": ("✘", "red")}


@click.command()
@click.option(
    "--measure", is_flag=True, help="Measure how fast this device moves data and multiplies."
)
@json_option
@click.pass_obj
def doctor(desk: Desk, measure: bool, as_json: bool) -> int:
    """Say what this machine can do, and how to fix what it cannot.

    Exit status 0 when kernels can be graded here, on a GPU or a CPU; 1 when not.
    """
    from grader.cli.diagnostics import examine
    from grader.cli.output.terminal import emit, out

    findings = examine(desk)
    broken = [finding.name for finding in findings if finding.needed and finding.state == "missing"]
    measured = _measured(findings) if measure and not broken else None
    if as_json:
        shown = [
            {"name": f.name, "state": f.state, "detail": f.detail, "fix": f.fix} for f in findings
        ]
        numbers = {} if measured is None else {"measured": measured}
        emit(json.dumps({"can_grade": not broken, "findings": shown} | numbers))
    else:
        console = out()
        console.print(_table(findings))
        if broken:
            console.print(f"nothing can be graded here without: {', '.join(broken)}", style="red")
        else:
            console.print(_summary(findings))
        if measured is not None:
            console.print(f"\nMeasured on {measured['name']}:")
            console.print(_rates(measured))
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


def _measured(findings: list[Finding]) -> dict[str, Any]:
    """This device's ceilings, in units per second, and how a GPU's clocks stand."""
    from grader.judge.gpu.environment import gpu_name, measure_ceilings, measure_cpu_ceilings
    from grader.judge.gpu.state import gpu_state

    state = {finding.name: finding.state for finding in findings}
    if state["GPU"] == state["torch"] == "ok":
        gpu = {"device": "cuda", "name": gpu_name("cuda")}
        return gpu | asdict(measure_ceilings()) | {"gpu_state": gpu_state()}
    from grader.judge.timing.baseline_store import processor_name

    return {"device": "cpu", "name": processor_name()} | asdict(measure_cpu_ceilings())


def _rates(measured: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", min_width=16)
    where = "tensor cores" if measured["device"] == "cuda" else "the processor"
    table.add_row(f"{measured['bytes_per_s'] / 1e9:,.1f} GB/s", "copy, read and written")
    table.add_row(f"{measured['fp32_per_s'] / 1e12:,.3g} TFLOP/s", "fp32 matrix product")
    table.add_row(f"{measured['tensor_per_s'] / 1e12:,.3g} TFLOP/s", f"bf16, on {where}")
    if now := measured.get("gpu_state"):
        table.add_row(f"{now['sm_clock_mhz']:,} MHz", "SM clock now")
        table.add_row(f"{now['memory_clock_mhz']:,} MHz", "memory clock now")
        table.add_row(f"{now['temperature_c']} °C", f"at {now['power_w']:.0f} W")
        reasons = now["throttle_reasons"]
        table.add_row(f"{reasons:#x}", "clocks event reasons; 0x1 is an idle GPU")
    elif measured["device"] == "cuda":
        table.add_row("–", "clocks: NVML does not tell; pip install '.[gpu]'")
    return table
