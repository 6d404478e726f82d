"""`grade profile`: registers, occupancy, rates against ceilings, and what limits a kernel."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import JudgeFault, LocalJob, judge_faults, print_report
from grader.cli.options import (
    check_writable,
    device_option,
    json_option,
    not_writable,
    sandbox_option,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from grader.judge.profiling.kernel_report import KernelProfile, Profile, ProfileArtifacts

FILES = {
    "profile": "profile.json",
    "table": "table.txt",
    "trace": "trace.json",
    "ptx": "kernels.ptx",
    "sass": "kernels.sass",
}
"""Kind → file name. A folder with only these files is an earlier profile and may be replaced."""

LEAST_WIDTHS = {
    "calls": 110,
    "time": 0,
    "grid": 110,
    "block": 80,
    "regs": 0,
    "shared B": 0,
    "local B": 80,
    "occupancy": 0,
}
"""Column → least width of the terminal, in characters, at which it is shown."""

MOST_ROWS = 10
"""Kernels that the table shows; profile.json has all."""


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--case", "case_name", metavar="NAME", help="Benchmark case [default: the largest].")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the files [default: profile-FILE, without its extension].",
)
@device_option
@sandbox_option
@json_option
@click.pass_obj
def profile(
    deps: Dependencies,
    problem: str,
    file: Path,
    case_name: str | None,
    out: Path | None,
    device: str,
    sandbox_name: str,
    as_json: bool,
) -> int:
    """Show what limits FILE on PROBLEM: kernels, registers, occupancy, rates against ceilings.

    For your own code: unlike a grading, a profile believes the submission's own process. It writes
    the profiler's table, a Chrome trace, PTX and SASS into a folder.
    """
    from grader.automation import benchmark_case
    from grader.judge.profiling.kernel_report import ProfilingError

    job = LocalJob.load(deps, problem, file, device, sandbox_name)
    only_compile = job.submission.language == "cuda" and job.device == "cpu"
    case = benchmark_case(job.problem, case_name, "cuda" if only_compile else job.device)
    folder = out or Path(f"profile-{file.stem}")
    check_folder(folder)
    try:
        with judge_faults(job, expected=(ProfilingError,)):
            found, bulk = deps.profile(
                job.problem,
                job.submission,
                None if only_compile else case,
                sandbox=job.sandbox,
                device=job.device,
            )
    except (ProfilingError, JudgeFault) as stop:
        return print_report(stop.report, as_json)
    found = write(folder, found, bulk)
    _print_profile(found, job.note, as_json)
    return 0


def check_folder(folder: Path) -> None:
    """Raise click.UsageError unless `folder` can be created, or is an earlier profile."""
    check_writable(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise click.UsageError(f"--out: {folder} exists and is not a folder; choose another path")
    if not folder.exists():
        return
    if os.path.ismount(folder):
        raise click.UsageError(
            f"--out: {folder} is a mount point and cannot be replaced; choose a folder in it"
        )
    check_writable(folder / FILES["profile"])
    if others := {f.name for f in folder.iterdir()} - {*FILES.values()}:
        raise click.UsageError(
            f"--out: {folder} contains other files ({min(others)}); choose another folder"
        )


def write(folder: Path, found: Profile, bulk: ProfileArtifacts) -> Profile:
    """Write all files, or none, and return the profile with their paths.

    Raises click.UsageError if they cannot be written.
    """
    contents = {
        "table": bulk.table.encode(),
        "trace": bulk.trace,
        "ptx": bulk.ptx,
        "sass": bulk.sass,
    }
    kinds = ["profile", *(kind for kind, content in contents.items() if content)]
    found = found.model_copy(update={"files": {k: str(folder / FILES[k]) for k in kinds}})
    contents["profile"] = found.model_dump_json(indent=1).encode()
    try:
        with tempfile.TemporaryDirectory(prefix=".profile-", dir=folder.absolute().parent) as name:
            new = Path(name) / "new"
            new.mkdir()
            for kind in kinds:
                (new / FILES[kind]).write_bytes(contents[kind])
            if folder.exists():
                shutil.move(folder, Path(name) / "old")
            shutil.move(new, folder)
    except OSError as error:
        raise not_writable(folder, error) from None
    return found


# Printing ----------------------------------------------------------------------------------------


def _print_profile(found: Profile, note: str | None, as_json: bool) -> None:
    from grader.cli.output.terminal import print_json, print_warning, stdout

    if as_json:
        print_json(found)
        return
    if note:
        print_warning(note)
    console = stdout()
    for part in _parts(found, console.width):
        console.print(part)


def _parts(found: Profile, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    from grader.cli.output.terminal import safe_text

    if found.kernels:
        yield _kernels(found.kernels, width)
        if len(found.kernels) > MOST_ROWS:
            yield Text(f"{len(found.kernels) - MOST_ROWS} more in profile.json", style="dim")
        if hidden := [heading for heading, least in LEAST_WIDTHS.items() if least > width]:
            yield Text(f"a wider terminal also shows {', '.join(hidden)}", style="dim")
        yield Text()
    if found.ncu:
        yield from (_counters(found), Text())
    where = f"{found.case} on {found.gpu or found.device}" if found.case else "not run"
    yield safe_text(f"{found.problem} · {found.submission_name} · {where}", 200, "bold")
    for label, value in _facts(found):
        yield Text.assemble((f"{label:<9}", "dim"), safe_text(value, 400))
    yield Text.assemble(("limit    ", "dim"), safe_text(found.limit, 1000, "bold"))
    for note in found.notes:
        yield Text.assemble(("note     ", "dim"), safe_text(note))
    for kind, path in found.files.items():
        hint = "  open it at https://ui.perfetto.dev" if kind == "trace" else ""
        yield Text.assemble((f"{kind:<9}", "dim"), safe_text(path), (hint, "dim"))


def _facts(found: Profile) -> Iterator[tuple[str, str]]:
    from grader.cli.output.render import micros

    if found.time_us is not None:
        others = {"launched one by one": found.eager_us, "as a CUDA graph": found.graph_us}
        shown = [f"{micros(us)} {how}" for how, us in others.items() if us is not None]
        yield "time", f"{micros(found.time_us)} per call ({', '.join(shown)})"
    if found.gb_per_s is not None and found.tflop_per_s is not None:
        rates = [(found.gb_per_s, found.ceiling_gb_per_s, "GB/s")]
        rates += [(found.tflop_per_s, found.ceiling_tflop_per_s, "TFLOP/s")]
        yield "rates", ", ".join(_rate(*rate) for rate in rates)


def _rate(value: float, ceiling: float | None, unit: str) -> str:
    if ceiling is None:
        return f"{value:,.4g} {unit}"
    return f"{value:,.4g} of {ceiling:,.4g} {unit} measured here ({value / ceiling:.0%})"


def _kernels(kernels: list[KernelProfile], width: int) -> Table:
    """A narrow terminal gets the columns that show what limits a kernel."""
    from grader.cli.output.render import micros

    table = _table("kernel", [heading for heading, least in LEAST_WIDTHS.items() if least <= width])
    for kernel in kernels[:MOST_ROWS]:
        cells = (
            f"{kernel.launches:.3g}" if kernel.launches else "–",
            micros(kernel.time_us) if kernel.time_us else "–",
            _shape(kernel.grid),
            _shape(kernel.block),
            _number(kernel.registers),
            _number(kernel.shared_bytes),
            _number(kernel.local_bytes),
            "–" if kernel.occupancy is None else f"{kernel.occupancy:.0%} {kernel.occupancy_bound}",
        )
        shown = zip(cells, LEAST_WIDTHS.values(), strict=True)
        table.add_row(_name(kernel.name), *(cell for cell, least in shown if least <= width))
    return table


def _counters(found: Profile) -> Table:
    table = _table("counters of ncu", ["DRAM", "SM", "L2 hits", "occupancy"])
    for one in found.ncu[:MOST_ROWS]:
        values = (one.dram_percent, one.sm_percent, one.l2_hit_percent, one.occupancy_percent)
        table.add_row(_name(one.name), *("–" if v is None else f"{v:.0f}%" for v in values))
    return table


def _table(first: str, headings: list[str]) -> Table:
    """A column of names, the only one that shrinks, and right-aligned columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="dim", padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="ellipsis", max_width=44)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _name(name: str) -> Text:
    """A kernel's name for the column that shrinks."""
    from grader.cli.output.terminal import safe_text

    shown = safe_text(short_name(name), 100)
    shown.no_wrap = True
    return shown


def short_name(name: str) -> str:
    """A kernel's name without its return type, anonymous namespace and parameters."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for at in range(len(name) - 1 if name.endswith(")") else 0, 0, -1):
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if depth == 0:
            return name if name[at - 1] == " " else name[:at]
    return name


def _shape(sizes: tuple[int, int, int] | None) -> str:
    if sizes is None:
        return "–"
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes = sizes[:-1]  # type: ignore[assignment]
    return "×".join(map(str, sizes))


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
