"""`grade doctor`: examine this machine and say how to fix problems."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from grader.cli.diagnostics import Diagnostic

_STYLES = {
    "ok": ("✔", "green"),
    "warn": ("!", "yellow"),
    "missing": ("✘", "red"),
    "untried": ("–", "dim"),
}


@click.command()
@click.option(
    "--measure", is_flag=True, help="Measure this device's memory bandwidth and matrix products."
)
@click.option(
    "--languages",
    is_flag=True,
    help="Grade a softmax in each installed kernel language, about half a minute each.",
)
@json_option
@click.pass_obj
def doctor(deps: Dependencies, measure: bool, languages: bool, as_json: bool) -> int:
    """Examine this machine and say how to fix problems.

    Exit status: 0 if kernels can be graded here, on a GPU or a CPU; 1 if not.
    """
    from grader.cli.diagnostics import examine
    from grader.cli.language_check import check_languages
    from grader.cli.output.terminal import print_json, stdout

    diagnostics = examine(deps)
    broken = [d.name for d in diagnostics if d.needed and d.state == "missing"]
    diagnostics += check_languages(deps, tries=languages and not broken)
    measured = _measure(diagnostics) if measure and not broken else None
    if as_json:
        shown = [
            {"name": d.name, "state": d.state, "detail": d.detail, "fix": d.fix}
            for d in diagnostics
        ]
        rates = {} if measured is None else {"measured": measured}
        print_json({"can_grade": not broken, "findings": shown} | rates)
    else:
        console = stdout()
        console.print(_table(diagnostics))
        if broken:
            console.print(f"nothing can be graded here without: {', '.join(broken)}", style="red")
        else:
            console.print(_summary(diagnostics))
        if measured is not None:
            console.print(f"\nMeasured on {measured['name']}:")
            console.print(_rates(measured))
    return 1 if broken else 0


def _table(diagnostics: list[Diagnostic]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for diagnostic in diagnostics:
        detail = Text(diagnostic.detail)
        if diagnostic.fix:
            detail.append(f"\n→ {diagnostic.fix}", "cyan")
        table.add_row(Text(*_STYLES[diagnostic.state]), Text(diagnostic.name, "bold"), detail)
    return table


def _summary(diagnostics: list[Diagnostic]) -> str:
    state = {diagnostic.name: diagnostic.state for diagnostic in diagnostics}
    where = "on the GPU, ranked" if state["GPU"] == "ok" else "on the CPU, for practice"
    how = "in Docker" if state["Docker"] == "ok" else "in the process sandbox, for your own code"
    return f"\nKernels are graded here {where}, {how}."


def _measure(diagnostics: list[Diagnostic]) -> dict[str, Any]:
    """This device's ceilings, per second, and the clocks and temperature of a GPU."""
    from grader.judge.gpu.environment import gpu_name, measure_ceilings, measure_cpu_ceilings
    from grader.judge.gpu.state import gpu_state

    state = {diagnostic.name: diagnostic.state for diagnostic in diagnostics}
    if state["GPU"] == state["torch"] == "ok":
        gpu = {"device": "cuda", "name": gpu_name("cuda")}
        return gpu | asdict(measure_ceilings()) | {"gpu_state": gpu_state()}
    from grader.judge.timing.baseline_store import processor_name

    return {"device": "cpu", "name": processor_name()} | asdict(measure_cpu_ceilings())


def _rates(measured: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", min_width=16)
    where = "tensor cores" if measured["device"] == "cuda" else "CPU"
    table.add_row(f"{measured['bytes_per_s'] / 1e9:,.1f} GB/s", "copy, bytes read and written")
    table.add_row(f"{measured['fp32_per_s'] / 1e12:,.3g} TFLOP/s", "fp32 matrix product")
    table.add_row(
        f"{measured['tensor_per_s'] / 1e12:,.3g} TFLOP/s", f"bf16 matrix product, {where}"
    )
    if now := measured.get("gpu_state"):
        table.add_row(f"{now['sm_clock_mhz']:,} MHz", "SM clock now")
        table.add_row(f"{now['memory_clock_mhz']:,} MHz", "memory clock now")
        table.add_row(f"{now['temperature_c']} °C", f"at {now['power_w']:.0f} W")
        reasons = now["throttle_reasons"]
        table.add_row(f"{reasons:#x}", "clocks event reasons; 0x1 is an idle GPU")
    elif measured["device"] == "cuda":
        table.add_row("–", "clocks need NVML; pip install '.[gpu]'")
    return table
