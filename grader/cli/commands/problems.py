"""`grade problems` and `grade show`: list and describe the problems."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from grader.cli.options import find_problem, problem_folders, problem_roots

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from grader.problem import Argument, Case, Spec


@click.command()
def problems() -> None:
    """List the problems that can be given by name."""
    from rich.text import Text

    from grader.cli.output.terminal import stderr, stdout
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column
    from grader.problem import Problem, ProblemError

    found = []
    for folder in problem_folders():
        try:
            found.append(Problem.load(folder))
        except ProblemError as error:
            stderr().print(str(error), style="red", soft_wrap=True)
    if not found:
        roots = " or ".join(map(str, problem_roots()))
        raise click.UsageError(f"no problems in {roots}; change to a folder that has them")
    columns = [
        TableColumn("problem", [Text(problem.name, "bold") for problem in found]),
        TableColumn("what to compute", [Text(p.spec.summary) for p in found], 1, wraps_at=30),
        number_column(
            "tests", [Text(f"{len(problem.spec.tests)}") for problem in found], priority=2
        ),
        number_column("benchmarks", [Text(f"{len(p.spec.benchmarks)}") for p in found], priority=2),
    ]
    stdout().print(ResponsiveTable(columns))


@click.command()
@click.argument("problem")
def show(problem: str) -> None:
    """Show PROBLEM: its statement, arguments, cases and limits."""
    from rich.markdown import Markdown
    from rich.text import Text

    from grader.cli.output.terminal import stdout
    from grader.problem import prototypes

    found = find_problem(problem)
    spec = found.spec
    console = stdout()
    console.print(Markdown(_formulas_as_code(found.statement)))
    console.print()
    console.print(_arguments(spec.args))
    console.print(_cases("test", spec.tests))
    if spec.domain:
        console.print(_domain(spec))
    console.print(_cases("benchmark", spec.benchmarks))
    console.print(Text("CUDA C++ entries", "bold"))
    for prototype in prototypes(spec).values():
        console.print(Text(f"  {prototype}"), soft_wrap=True)
    console.print()
    console.print(_limits(spec))
    console.print(
        f"version {found.digest[:12]}; get a starter file with grade new {found.name} --lang triton"
    )


def _formulas_as_code(statement: str) -> str:
    """Markdown with its formulas as code: their backslashes and underscores are not markup.

    Code stays as it is.
    """

    def as_code(found: re.Match[str]) -> str:
        if found["block"]:
            return f"```text\n{found['block'].strip()}\n```"
        return f"`{found[0]}`" if found["inline"] else found[0]

    return re.sub(
        r"```.*?```|`[^`]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$]+)\$",
        as_code,
        statement,
        flags=re.DOTALL,
    )


def _arguments(arguments: list[Argument]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("argument", "role", "kind", "dtype", "shape", box=box.SIMPLE_HEAD)
    for argument in arguments:
        shape = f"[{', '.join(argument.shape)}]" if argument.kind == "tensor" else ""
        strides = "" if argument.contiguous else ", any strides"
        table.add_row(
            argument.name, argument.role, argument.kind, argument.dtype, f"{shape}{strides}"
        )
    return table


def _cases(kind: str, cases: list[Case]) -> Table:
    from rich import box
    from rich.table import Table

    from grader.cli.output.render import parameters

    table = Table(kind, "parameters", "calls", "where", box=box.SIMPLE_HEAD)
    for case in cases:
        where = {"any": "CPU and GPU", "cpu": "CPU", "cuda": "GPU"}[case.device]
        table.add_row(case.name, parameters(case.params), f"{case.calls}", where)
    return table


def _domain(spec: Spec) -> Text:
    from rich.text import Text

    from grader.problem.domain import DRAWN_CASES

    on_gpu, on_cpu = DRAWN_CASES["cuda"], DRAWN_CASES["cpu"]
    text = Text("Drawn tests", "bold")
    text.append(
        f"\n  Every grading also tests {on_gpu} cases on a GPU, {on_cpu} on a CPU, that its secret "
        "seed draws from:",
        "not bold",
    )
    for entry in spec.domain:
        values = "; ".join(f"{name} {value}" for name, value in entry.items())
        text.append(f"\n  - {values}", "not bold")
    return text.append("\n")


def _limits(spec: Spec) -> str:
    from grader.cli.output.render import size

    limits = spec.limits
    return (
        f"limits: load {limits.load_s:g} s, one call {limits.call_s:g} s, "
        f"compiling in first calls {limits.compile_s:g} s more, "
        f"whole grading {limits.total_s:g} s, memory {size(limits.memory_bytes)}, "
        f"device memory {size(limits.device_memory_bytes)}, "
        f"scratch {size(limits.scratch_bytes)}, output {size(limits.output_bytes)}"
    )
