"""`grade problems` and `grade show`: list and describe the problems."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    board_server_option,
    db_option,
    find_problem,
    json_option,
    refuse_local_options,
    result_number,
)
from grader.problem_folders import problem_folders, problem_roots

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from grader.problem import Argument, Case, Problem, Spec


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--topic", metavar="TOPIC", help="Only this topic, such as fusion.")
@click.option("--dtype", metavar="DTYPE", help="Only problems with tensors of this type.")
@click.option("--limited-by", metavar="LIMIT", help="Only these: memory, compute or latency.")
@click.option("--path", "as_path", is_flag=True, help="Show the learning path, in order.")
@click.option("--user", metavar="NAME", help="Whose results to show [default: your login name].")
@click.option(
    "--report",
    is_flag=True,
    help="Of SET:ROOT, grade each problem's own reference and say what can be judged.",
)
@db_option
@json_option
@click.pass_obj
def problems(
    deps: Dependencies,
    words: tuple[str, ...],
    topic: str | None,
    dtype: str | None,
    limited_by: str | None,
    as_path: bool,
    user: str | None,
    report: bool,
    db: str | None,
    as_json: bool,
) -> int:
    """List the problems that can be given by name, by topic, the easiest first.

    With WORDs, those whose name, title, summary or topic contains them all. The level is from 1, a
    first kernel, to 5, days for an expert; the limit is what a good kernel waits for. "yours" comes
    from the board of this machine: tried, accepted, or your best ranked time.

    With SET:ROOT, such as kernelbot:~/reference-kernels, lists the problems of another set below a
    folder; --report says of each whether it can be judged here.
    """
    from grader.cli.catalogue_view import catalogue_table, path_table, read_states, state_fields
    from grader.cli.commands.set_problems import list_set
    from grader.cli.output.terminal import print_json, stdout
    from grader.problem.catalogue import Filter, by_topic, steps_among
    from grader.problem_sets import split_prefix

    if len(words) == 1 and (of_set := split_prefix(words[0])) is not None:
        return list_set(deps, *of_set, as_json, report)
    if report:
        raise click.UsageError("--report is for the problems of another set: SET:ROOT")
    wanted = Filter(*_known_values(topic, dtype, limited_by), " ".join(words))
    every = _loaded_problems()
    found = [problem for problem in every if wanted.matches(problem)]
    states = read_states(deps, found, user, db)
    steps = [(step, problem) for step, problem in steps_among(every) if wanted.matches(problem)]
    if as_json:
        number = {step.problem: index for index, (step, _) in enumerate(steps_among(every), 1)}
        listed = [problem for _, problem in steps] if as_path else found
        print_json({"problems": [state_fields(one, states, number) for one in listed]})
        return 0
    console = stdout()
    if not (steps if as_path else found):
        what = "step of the learning path" if as_path else "problem"
        console.print(f"no {what} matches; `grade problems` lists all {len(every)}")
    elif as_path:
        console.print(path_table(steps, states))
    else:
        console.print(catalogue_table(by_topic(found), states))
    return 0


def _loaded_problems() -> list[Problem]:
    """Every problem that can be given by name; a broken one is reported on stderr.

    Raises click.UsageError if there is none.
    """
    from grader.cli.output.terminal import stderr
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
    return found


def _known_values(
    topic: str | None, dtype: str | None, limited_by: str | None
) -> tuple[str | None, str | None, str | None]:
    """The values as the spec has them. Raises click.UsageError for one that no problem can have."""
    from grader.problem.catalogue import LIMITS, TOPICS
    from grader.problem.spec import DTYPES

    def known(option: str, value: str | None, values: Iterable[str]) -> str | None:
        if value is None:
            return None
        by_name = {one.replace(" ", "_"): one for one in values}
        name = value.casefold().replace(" ", "_").replace("-", "_")
        if name not in by_name:
            listed = ", ".join(by_name.values())
            raise click.UsageError(f"{option}: there is no '{value}'; choose from {listed}")
        return by_name[name]

    return (
        known("--topic", topic, TOPICS),
        known("--dtype", dtype, DTYPES),
        known("--limited-by", limited_by, LIMITS),
    )


@click.command()
@click.argument("what", metavar="PROBLEM|RESULT")
@board_server_option
@db_option
@json_option
@click.pass_obj
def show(deps: Dependencies, what: str, server: str | None, db: str | None, as_json: bool) -> None:
    """Show a problem (statement, arguments, cases, limits) or a recorded result.

    A number, such as 12 or '#12', is a result on the board; anything else is a problem. With --json
    a result is printed as `grade submit` prints it. With --server, WHAT is the number of a
    submission there; problems are those of this machine.
    """
    from grader.cli.output.terminal import print_json

    number = result_number(what)
    if server and number is not None:
        from grader.cli.remote import Client
        from grader.cli.remote_board import show_submission

        refuse_local_options("reading the board of this machine", db="db")
        with Client.find(server, needs_token=False) as client:
            show_submission(client, number, as_json)
        return
    if server:
        refuse_local_options("a submission, such as '#12'", server="server")
    if number is not None:
        _show_result(deps, number, db, as_json)
        return
    found = find_problem(what)
    if as_json:
        print_json(
            {
                "problem": found.name,
                "problem_digest": found.digest,
                "statement": found.statement,
                "spec": found.spec.model_dump(mode="json"),
            }
        )
    else:
        _show_problem(found, what)


def _show_result(deps: Dependencies, number: int, db: str | None, as_json: bool) -> None:
    from grader.board.versions import DIGEST_CHARS
    from grader.cli.local_grading import print_report
    from grader.cli.output.terminal import safe_text, stdout

    with closing(deps.board(db)) as board:
        stored = board.result(number)
    print_report(stored.report, as_json)
    if not as_json:
        report = stored.report
        when = report.created_at.astimezone()
        version = report.problem_digest[:DIGEST_CHARS]
        line = f"submitted by {stored.user}, {when:%Y-%m-%d %H:%M}; its ranking: "
        line += f"grade leaderboard {report.problem} --version {version}"
        stdout().print(safe_text(line, style="dim"), soft_wrap=True)


def _show_problem(found: Problem, typed: str) -> None:
    from rich.markdown import Markdown
    from rich.text import Text

    from grader.cli.output.formulas import formulas_as_text
    from grader.cli.output.terminal import stdout
    from grader.problem import prototypes

    spec = found.spec
    console = stdout()
    console.print(Markdown(formulas_as_text(found.statement)))
    console.print()
    console.print(_arguments(spec.args))
    console.print(_cases("test", spec.tests))
    if spec.domain:
        console.print(_domain(spec))
    console.print(_cases("benchmark", spec.benchmarks))
    console.print(Text("CUDA C++ entries", "bold"))
    for prototype in prototypes(spec).values():
        console.print(Text(f"  {prototype}"), soft_wrap=True)
    if found.set_prototype:
        console.print(Text(f"  or the set's own: {found.set_prototype}"), soft_wrap=True)
    console.print()
    console.print(_limits(spec))
    name = typed if found.imported else found.name
    console.print(f"version {found.digest[:12]}; a starter file: grade new {name} --lang triton")


def _arguments(arguments: list[Argument]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("argument", "role", "kind", "dtype", "shape", box=box.SIMPLE_HEAD)
    for argument in arguments:
        shape = f"[{', '.join(argument.shape)}]" if argument.kind == "tensor" else ""
        strides = "" if argument.contiguous else ", any strides"
        if argument.strides:
            strides = f", strides [{', '.join(argument.strides)}]"
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
