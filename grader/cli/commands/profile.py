"""`grade profile`: what a kernel is made of, how far it is from the ceiling, and what limits it."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.commands.submit import Job, judge_error, tell, unwinding
from grader.cli.dependencies import Desk
from grader.cli.options import (
    check_writable,
    device_option,
    find_problem,
    json_option,
    sandbox_option,
    unwritable,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from grader.judge.profiling.report import KernelProfile, Profile, ProfileArtifacts
    from grader.problem import Problem
    from grader.problem.spec import Case

FILES = {
    "profile": "profile.json",
    "table": "table.txt",
    "trace": "trace.json",
    "ptx": "kernels.ptx",
    "sass": "kernels.sass",
}
"""Kind → file name; a folder with nothing but these in it is an earlier profile."""

FIGURES = {
    "calls": 110,
    "time": 0,
    "grid": 110,
    "block": 80,
    "regs": 0,
    "shared B": 0,
    "local B": 80,
    "occupancy": 0,
}
"""Heading → from how many columns of a terminal on it is shown, so that every figure is whole."""

MOST_ROWS = 10


@click.command()
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--case", "case_name", metavar="NAME", help="Benchmark case [default: the largest].")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the files go [default: profile-FILE, without its extension].",
)
@device_option
@sandbox_option
@json_option
@click.pass_obj
def profile(
    desk: Desk,
    problem: str,
    file: Path,
    case_name: str | None,
    out: Path | None,
    device: str,
    sandbox_name: str,
    as_json: bool,
) -> int:
    """Show what limits FILE on PROBLEM: kernels, registers, occupancy, rates against ceilings.

    For your own code: unlike a grading, a profile believes what runs beside the submission. It
    writes the profiler's table, a Chrome trace, PTX and SASS into a folder.
    """
    from grader.judge.profiling.report import ProfilingError
    from grader.problem import ProblemError

    job = Job.prepare(desk, find_problem(problem), file, device, sandbox_name)
    only_compile = job.submission.language == "cuda" and job.device == "cpu"
    case = choose_case(job.problem, case_name, "cuda" if only_compile else job.device)
    folder = out or Path(f"profile-{file.stem}")
    check_folder(folder)
    try:
        with unwinding():
            found, bulk = desk.profile(
                job.problem,
                job.submission,
                None if only_compile else case,
                sandbox=job.sandbox,
                device=job.device,
            )
    except ProblemError:
        raise
    except ProfilingError as stop:
        return tell(stop.report, as_json)
    except Exception as error:  # whatever it is, it is no fault of the submission
        if os.environ.get("GRADE_DEBUG") == "1":
            raise
        return tell(judge_error(job, error), as_json)
    found = write(folder, found, bulk)
    _show(found, job.note, as_json)
    return 0


def choose_case(problem: Problem, name: str | None, device: str) -> Case:
    """The benchmark case of that name, or the one that moves the most bytes on this device.

    Raises click.UsageError when there is none.
    """
    cases = problem.cases("benchmark", device)
    if not cases:
        raise click.UsageError(f"{problem.name} has no benchmark case for --device {device}")
    if name is None:
        return max(cases, key=problem.bytes)
    names = [case.name for case in cases]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names)}"
        raise click.UsageError(f"--case: no benchmark case '{name}' on --device {device}; {hint}")
    return cases[names.index(name)]


def check_folder(folder: Path) -> None:
    """Raise click.UsageError unless `folder` can be made, or replaced as an earlier profile."""
    check_writable(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise click.UsageError(f"--out: {folder} is there and no folder; name another")
    if not folder.exists():
        return
    if os.path.ismount(folder):
        raise click.UsageError(
            f"--out: {folder} is a mount and cannot be replaced; name a folder in it"
        )
    check_writable(folder / FILES["profile"])
    if others := {f.name for f in folder.iterdir()} - {*FILES.values()}:
        raise click.UsageError(f"--out: {folder} holds other files ({min(others)}); name another")


def write(folder: Path, found: Profile, bulk: ProfileArtifacts) -> Profile:
    """Write all files, or none; the profile, telling which there are.

    Raises click.UsageError when they cannot be written.
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
        raise unwritable(folder, error) from None
    return found


# What a person sees ------------------------------------------------------------------------------


def _show(found: Profile, note: str | None, as_json: bool) -> None:
    from grader.cli.output.terminal import emit, err, out

    if as_json:
        emit(found.model_dump_json())
        return
    if note:
        err().print(note, style="yellow", soft_wrap=True)
    console = out()
    for part in _parts(found, console.width):
        console.print(part)


def _parts(found: Profile, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    from grader.cli.output.terminal import safe

    if found.kernels:
        yield _kernels(found.kernels, width)
        if len(found.kernels) > MOST_ROWS:
            yield Text(f"{len(found.kernels) - MOST_ROWS} more in profile.json", style="dim")
        if hidden := [heading for heading, least in FIGURES.items() if least > width]:
            yield Text(f"{', '.join(hidden)}: in a wider terminal", style="dim")
        yield Text()
    if found.ncu:
        yield from (_counters(found), Text())
    where = f"{found.case} on {found.gpu or found.device}" if found.case else "not run"
    yield safe(f"{found.problem} · {found.submission_name} · {where}", 200, "bold")
    for label, value in _facts(found):
        yield Text.assemble((f"{label:<9}", "dim"), safe(value, 400))
    yield Text.assemble(("limit    ", "dim"), safe(found.limit, 1000, "bold"))
    for note in found.notes:
        yield Text.assemble(("note     ", "dim"), safe(note))
    for kind, path in found.files.items():
        hint = "  open it at https://ui.perfetto.dev" if kind == "trace" else ""
        yield Text.assemble((f"{kind:<9}", "dim"), safe(path), (hint, "dim"))


def _facts(found: Profile) -> Iterator[tuple[str, str]]:
    from grader.cli.output.render import micros

    if found.time_us is not None:
        others = {"launched one by one": found.eager_us, "as a CUDA graph": found.graph_us}
        shown = [f"{micros(us)} {how}" for how, us in others.items() if us is not None]
        yield "time", f"{micros(found.time_us)} a call ({', '.join(shown)})"
    if found.gb_per_s is not None and found.tflop_per_s is not None:
        rates = [(found.gb_per_s, found.ceiling_gb_per_s, "GB/s")]
        rates += [(found.tflop_per_s, found.ceiling_tflop_per_s, "TFLOP/s")]
        yield "rates", ", ".join(_rate(*rate) for rate in rates)


def _rate(value: float, ceiling: float | None, unit: str) -> str:
    if ceiling is None:
        return f"{value:,.4g} {unit}"
    return f"{value:,.4g} of {ceiling:,.4g} {unit} measured here ({value / ceiling:.0%})"


def _kernels(kernels: list[KernelProfile], width: int) -> Table:
    """Where there is no room for all figures, those that say what limits a kernel."""
    from grader.cli.output.render import micros

    table = _table("kernel", [heading for heading, least in FIGURES.items() if least <= width])
    for kernel in kernels[:MOST_ROWS]:
        figures = (
            f"{kernel.launches:.3g}" if kernel.launches else "–",
            micros(kernel.time_us) if kernel.time_us else "–",
            _shape(kernel.grid),
            _shape(kernel.block),
            _number(kernel.registers),
            _number(kernel.shared_bytes),
            _number(kernel.local_bytes),
            "–" if kernel.occupancy is None else f"{kernel.occupancy:.0%} {kernel.occupancy_bound}",
        )
        shown = zip(figures, FIGURES.values(), strict=True)
        table.add_row(_name(kernel.name), *(figure for figure, least in shown if least <= width))
    return table


def _counters(found: Profile) -> Table:
    table = _table("counted by ncu", ["DRAM", "SM", "L2 hits", "occupancy"])
    for one in found.ncu[:MOST_ROWS]:
        values = (one.dram_percent, one.sm_percent, one.l2_hit_percent, one.occupancy_percent)
        table.add_row(_name(one.name), *("–" if v is None else f"{v:.0f}%" for v in values))
    return table


def _table(first: str, headings: list[str]) -> Table:
    """A column of names, which alone gives way, and columns of figures."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="dim", padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="ellipsis", max_width=44)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _name(name: str) -> Text:
    """For a column that may shrink, where its text may not wrap."""
    from grader.cli.output.terminal import safe

    shown = safe(brief(name), 100)
    shown.no_wrap = True
    return shown


def brief(name: str) -> str:
    """A kernel's name without what tells it from no other: result, namespace and parameters."""
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
