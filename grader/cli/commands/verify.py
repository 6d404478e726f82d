"""`grade verify`: prove a problem's check by mutants, and grade its example submissions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, run
from grader.cli.options import (
    choose_device,
    choose_sandbox,
    device_option,
    find_problem,
    json_option,
    sandbox_option,
)
from grader.cli.verify_all import as_fields, folders, mark, verify_all

if TYPE_CHECKING:
    from rich.console import Console

    from grader.cli.author_todo import TodoStep
    from grader.cli.examples import Example
    from grader.judge.record import Progress, ProgressCallback
    from grader.judge.verification.result import VerificationResult, VerificationRow
    from grader.judge.verification.verify_all import VerifiedProblem
    from grader.problem import Problem
    from grader.sandbox.base import Device


CHECK_S = 180
"""How long the check may take on a CPU, in seconds: an author runs it after each change."""


@dataclass(frozen=True)
class ExampleResult:
    """Result of one example submission."""

    example: Example
    outcome: str
    """The verdict, or "not run"."""
    reason: str
    ok: bool | None
    """Whether the verdict is the expected one; None if it was not run."""


@click.command()
@click.argument("problem", required=False)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="The checks of all problems, or of those in the folder PROBLEM.",
)
@device_option
@sandbox_option
@click.option(
    "--examples",
    "scope",
    flag_value="examples",
    help="Only grade the example submissions.",
)
@click.option(
    "--no-examples",
    "scope",
    flag_value="check",
    help="Only the check and what is missing, without grading the examples.",
)
@json_option
@click.pass_obj
def verify(
    deps: Dependencies,
    problem: str | None,
    every: bool,
    device: str,
    sandbox_name: str,
    scope: str | None,
    as_json: bool,
) -> int:
    """Prove that the check of PROBLEM catches wrong answers and accepts correct ones.

    Runs mutants (zeros, a constant, permuted rows, a dropped slice, those of the problem's
    checks.py), which must fail on every case, and honest implementations (plain PyTorch,
    torch.compile, those of checks.py), which must pass; and kernels that read an argument wrongly
    (a sign ignored, the row of a neighbour), which must fail on one case at least. Shows the margin
    between honest and broken for each case. Then lists the steps of writing a problem, in order,
    with what is still missing; on a CPU the check should take at most 3 minutes. Then grades every
    example submission and compares its verdict with the name of its folder. On a CPU,
    torch.compile runs only on the largest case of each combination of dtypes. Exit status: 0 if
    everything is as expected, also with steps to do; 1 if not; 2 if the problem's code fails.

    With --all, the checks run side by side, one on each CPU core, without the examples; a line for
    each problem says what its check found, the least margin and the seconds. Exit status: 0 if all
    checks hold, 1 if not.
    """
    if every:
        if scope == "examples":
            raise click.UsageError("--all runs no examples; leave out --examples")
        return verify_all(deps, folders(problem), choose_device(deps, device), as_json)
    if problem is None:
        raise click.UsageError("name a PROBLEM, or verify every problem with --all")
    found = find_problem(problem, deps, device, sandbox_name)
    chosen = choose_device(deps, device)
    if found.imported is not None:
        return _verify_imported(deps, found, chosen, sandbox_name, as_json)
    shown: dict[str, Any] = {"device": chosen, "problem": found.name}
    ok = True
    if scope != "examples":
        summary = _check(deps, found, chosen, show=not as_json)
        shown |= as_fields(summary)
        ok = summary.ok
    if scope != "check":
        graded = list(_grade_examples(deps, found, chosen, sandbox_name))
        if not as_json:
            _print_examples(graded)
        shown["examples"] = [
            {"example": f"{e.example.expected}/{e.example.path.name}", "outcome": e.outcome,
             "reason": e.reason, "ok": e.ok}
            for e in graded
        ]  # fmt: skip
        ok = ok and all(one.ok is not False for one in graded)
        if scope == "examples" and not graded and not as_json:
            return 0  # it has none, as was said
    _print_outcome(found, chosen, scope, ok, shown if as_json else None)
    return 0 if ok else 1


def _verify_imported(
    deps: Dependencies, problem: Problem, device: Device, sandbox_name: str, as_json: bool
) -> int:
    """Grade the reference of a problem of another set, and wrong copies of its output."""
    from grader.cli.commands.set_problems import report_line
    from grader.cli.output.terminal import print_json, safe_text, stdout
    from grader.judge.set_report import report_problem

    assert problem.imported is not None
    sandbox, _ = choose_sandbox(deps, sandbox_name)
    # One that was described on another device has other cases here.
    described = problem if problem.imported.device == device else None
    report = report_problem(problem.imported.source, sandbox, device, described)
    if as_json:
        ok = report.state != "cannot"
        findings = [] if ok else report.reasons
        print_json(asdict(report) | {"ok": ok, "findings": findings, "seconds": report.took_s})
    else:
        stdout().print(safe_text(report_line(report)), soft_wrap=True)
    return 1 if report.state == "cannot" else 0


def _print_outcome(
    problem: Problem, device: Device, scope: str | None, ok: bool, shown: dict[str, Any] | None
) -> None:
    """The last line; or, given what to show, that as JSON."""
    from grader.cli.output.terminal import print_json, stdout

    if shown is not None:
        print_json(shown | {"ok": ok})
        return
    what = f"{problem.name} is" if scope != "examples" else f"the examples of {problem.name} are"
    stdout().print(
        f"{what} verified on {device}" if ok else f"{what} NOT verified on {device}",
        style="bold green" if ok else "bold red",
    )


def _check(deps: Dependencies, problem: Problem, device: Device, show: bool) -> VerifiedProblem:
    """Verify the check, and print what it found and what the problem still lacks, if `show`.

    Raises `ProblemError`, after printing that, when the problem's code fails.
    """
    from grader.cli.output.progress import show_progress
    from grader.cli.output.terminal import stdout
    from grader.judge.verification.verify_all import summary_of
    from grader.problem import ProblemError

    console = stdout()
    with show_progress(show) as display:
        times = CaseTimes(display)
        try:
            result = deps.verify(problem, device, times)
        except ProblemError as error:
            if show:
                _print_steps(console, author_steps(problem, device, times, error=str(error)))
            raise
        times.end()
    if show:
        _print_mutants(console, result)
        _print_margins(console, result)
        failed = None if result.ok else "something is not as expected: see the first table"
        _print_steps(console, author_steps(problem, device, times, failed=failed))
    return summary_of(problem.name, result, sum(times.by_case_s.values()))


class CaseTimes:
    """Passes the events of a verification on, and notes how long each case takes."""

    def __init__(self, display: ProgressCallback, clock: Callable[[], float] = monotonic) -> None:
        self._display = display
        self._clock = clock
        self._began: tuple[str, float] | None = None
        self.by_case_s: dict[str, float] = {}

    def __call__(self, event: Progress) -> None:
        """A case begins, and the one before has ended."""
        self.end()
        self._began = event.case, self._clock()
        self._display(event)

    def end(self) -> None:
        """The last case has ended."""
        if self._began is not None:
            case, began_s = self._began
            self.by_case_s[case] = self._clock() - began_s
        self._began = None


def author_steps(
    problem: Problem,
    device: Device,
    times: CaseTimes,
    error: str | None = None,
    failed: str | None = None,
) -> list[TodoStep]:
    """The steps of writing a problem, with the time that its check took."""
    from grader.cli.author_todo import TodoStep, steps

    found = steps(problem, error, failed)
    total_s = sum(times.by_case_s.values())
    if device == "cpu" and total_s > CHECK_S:
        slowest = sorted(times.by_case_s, key=lambda case: -times.by_case_s[case])[:3]
        shown = ", ".join(f"{case} ({times.by_case_s[case]:.0f} s)" for case in slowest)
        detail = (
            f"{total_s:.0f} s on a CPU, more than {CHECK_S}: make cases smaller, or give them "
            f"`device: cuda`; the slowest are {shown}"
        )
        found.append(TodoStep("time of the check", "to do", detail))
    return found


def _print_steps(console: Console, steps: list[TodoStep]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("", "step", "", box=box.SIMPLE_HEAD)
    ok = {"done": True, "missing": False, "to do": None, "unknown": None}
    for step in steps:
        style = "red" if step.state == "missing" else "dim" if step.state == "done" else ""
        table.add_row(mark(ok[step.state]), step.name, Text(step.detail, style))
    console.print(table)
    missing = [step.name for step in steps if step.state == "missing"]
    to_do = [step.name for step in steps if step.state == "to do"]
    if missing:
        console.print(f"missing: {', '.join(missing)}", style="red")
    if to_do:
        console.print(f"to do, in this order: {', '.join(to_do)}")


def _print_mutants(console: Console, result: VerificationResult) -> None:
    from rich import box
    from rich.table import Table

    headings = ("", "implementation", "expected", "outcome", "note")
    table = Table(*headings, box=box.SIMPLE_HEAD)
    never_caught = result.never_caught()
    for name, rows in _by_name(result.rows).items():
        notes = [f"{row.case}: {row.outcome}. {row.detail}" for row in rows if not row.ok]
        if name in never_caught:
            notes.append(f"never caught: {rows[0].detail}")
        wrong = bool(notes)
        outcomes = Counter(row.outcome for row in rows)
        if outcomes.keys() == {"left out"}:
            notes.append(f"left out: {rows[0].detail}")
        elif outcomes.keys() <= {"left out", "same as reference"}:
            notes.append("changes no right answer")
        if name == "compile" and len(result.compiled) < result.cases:
            notes.append(f"only on the largest of each dtype: {', '.join(result.compiled)}")
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        table.add_row(mark(not wrong), name, rows[0].expected, counts, "\n".join(notes))
    console.print(table)


def _print_margins(console: Console, result: VerificationResult) -> None:
    """How far apart the check keeps honest implementations and mutants, for each case."""
    from rich import box
    from rich.table import Table

    table = Table(
        "case", "uses most of its bounds", "", "fails by least", "", "margin", "too close to tell",
        box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for margin in result.margins():
        if margin.mutant is None and not margin.admitted:
            continue
        closest = ("", "", "")
        if margin.mutant is not None and margin.ratio is not None:
            closest = (margin.mutant.name, _share(margin.mutant.used), f"{margin.ratio:,.0f} ×")
        honest = (margin.honest.name, _share(margin.honest.used))
        table.add_row(margin.case, *honest, *closest, "\n".join(margin.admitted))
    console.print(table)
    if any(margin.admitted for margin in result.margins()):
        console.print(
            "A mutant that is too close to tell from rounding is accepted in that case and must "
            "fail in another."
        )


def _share(used: float) -> str:
    return f"{used:.0%}" if used < 10 else f"{used:,.0f} ×" if used < 1e6 else "> 10⁶ ×"


def _by_name(rows: Iterable[VerificationRow]) -> dict[str, list[VerificationRow]]:
    grouped: dict[str, list[VerificationRow]] = {}
    for row in rows:
        grouped.setdefault(row.name, []).append(row)
    return grouped


def _grade_examples(
    deps: Dependencies, problem: Problem, device: Device, sandbox_name: str
) -> Iterator[ExampleResult]:
    from grader.cli.examples import examples
    from grader.cli.output.terminal import stderr

    console = stderr()
    for example in examples(problem):
        if why := example.missing(device):
            yield ExampleResult(example, "not run", why, None)
            continue
        job = LocalJob.load(deps, problem, example.path, device, sandbox_name)
        if console.is_terminal:
            console.print(f"grading {example.expected}/{example.path.name}", style="dim")
        report = run(deps, job, show=False)
        ok = example.fits(report)
        if not ok and report.verdict == "time_limit_exceeded":
            # A busy machine explains one, not two.
            report = run(deps, job, show=False)
            ok = example.fits(report)
        yield ExampleResult(example, report.verdict or "no verdict", report.reason, ok)


def _print_examples(graded: list[ExampleResult]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from grader.cli.output.terminal import safe_text, stdout
    from grader.report import escape

    console = stdout()
    if not graded:
        console.print("no example submissions for this problem", style="yellow")
        return
    table = Table("", "example", "reason", box=box.SIMPLE_HEAD)
    for one in graded:
        name = Text(f"{one.example.expected}/", "dim", no_wrap=True)
        name.append(escape(one.example.path.name, 60), "default not dim")
        if one.ok is False:
            reason = safe_text(f"was {one.outcome}: {one.reason}", 400, "red")
        else:
            reason = safe_text(one.reason, 160, "dim")
            reason.no_wrap, reason.overflow = True, "ellipsis"
        table.add_row(mark(one.ok), name, reason)
    console.print(table)
    counts = {word: sum(one.ok is ok for one in graded) for word, ok in _OUTCOMES.items()}
    console.print(", ".join(f"{count} {word}" for word, count in counts.items()))


_OUTCOMES = {"as expected": True, "not as expected": False, "not run": None}
