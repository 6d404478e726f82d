"""`grade verify`: a problem proves its own check, and the example submissions theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Desk
from grader.cli.options import choose_device, device_option, find_problem, sandbox_option

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from grader.cli.examples import Example
    from grader.judge.mutation import VerificationResult, VerificationRow
    from grader.problem import Problem
    from grader.sandbox.base import Device


@dataclass(frozen=True)
class Graded:
    """What became of one example submission."""

    example: Example
    outcome: str
    """The verdict it got, or why it was not run."""
    reason: str
    ok: bool | None
    """None when it was not run."""


@click.command()
@click.argument("problem")
@device_option
@sandbox_option
@click.pass_obj
def verify(desk: Desk, problem: str, device: str, sandbox_name: str) -> int:
    """Prove that the check of PROBLEM catches wrong answers and passes right ones.

    Runs mutants (zeros, a constant, permuted rows, a dropped slice, …), which must fail on every
    case, and plain PyTorch, which must pass. Then grades every example submission and compares its
    verdict with the folder it lies in. Exit status 0 when all of it held, 1 when not.
    """
    from grader.cli.output.terminal import out

    found = find_problem(problem)
    chosen = choose_device(desk, device)
    console = out()
    proof = _prove(desk, found, chosen)
    _print_proof(console, proof)
    graded = list(_grade_examples(desk, found, chosen, sandbox_name))
    _print_examples(console, graded)
    ok = bool(proof.ok) and all(one.ok is not False for one in graded)
    console.print(
        f"{found.name} holds on {chosen}" if ok else f"{found.name} does NOT hold on {chosen}",
        style="bold green" if ok else "bold red",
    )
    return 0 if ok else 1


def _prove(desk: Desk, problem: Problem, device: Device) -> VerificationResult:
    from grader.cli.output.progress import watching

    with watching(show=True) as watcher:
        return desk.verify(problem, device, watcher)


def _print_proof(console: Console, proof: VerificationResult) -> None:
    from rich import box
    from rich.table import Table

    table = Table("", "implementation", "must", "did", "where not", box=box.SIMPLE_HEAD)
    for name, rows in _by_name(proof.rows).items():
        wrong = [f"{row.case}: {row.outcome}. {row.detail}" for row in rows if not row.ok]
        if rows[0].expected == "fail" and not any(row.outcome == "failed" for row in rows):
            wrong.append("never caught")
        did = Counter(row.outcome for row in rows)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in did.items())
        table.add_row(_mark(not wrong), name, rows[0].expected, counts, "\n".join(wrong))
    console.print(table)


def _by_name(rows: Iterable[VerificationRow]) -> dict[str, list[VerificationRow]]:
    grouped: dict[str, list[VerificationRow]] = {}
    for row in rows:
        grouped.setdefault(row.name, []).append(row)
    return grouped


def _grade_examples(
    desk: Desk, problem: Problem, device: Device, sandbox_name: str
) -> Iterator[Graded]:
    from grader.cli.commands.submit import Job, run
    from grader.cli.examples import examples
    from grader.cli.output.terminal import err

    console = err()
    for example in examples(problem):
        if example.needs_gpu and device == "cpu":
            yield Graded(example, "not run", "needs a GPU", None)
            continue
        job = Job.prepare(desk, problem, example.path, device, sandbox_name)
        if console.is_terminal:
            console.print(f"grading {example.expected}/{example.path.name}", style="dim")
        report = run(desk, job, show=False)
        ok = example.fits(report)
        yield Graded(example, report.verdict or "no verdict", report.reason, ok)


def _print_examples(console: Console, graded: list[Graded]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from grader.cli.output.terminal import safe
    from grader.report import escape

    if not graded:
        console.print("no example submissions for this problem", style="yellow")
        return
    table = Table("", "example", "reason", box=box.SIMPLE_HEAD)
    for one in graded:
        name = Text(f"{one.example.expected}/", "dim", no_wrap=True)
        name.append(escape(one.example.path.name, 60), "default not dim")
        if one.ok is False:
            reason = safe(f"was {one.outcome}: {one.reason}", 400, "red")
        else:
            reason = safe(one.reason, 160, "dim")
            reason.no_wrap, reason.overflow = True, "ellipsis"
        table.add_row(_mark(one.ok), name, reason)
    console.print(table)
    counts = {word: sum(one.ok is ok for one in graded) for word, ok in _OUTCOMES.items()}
    console.print(", ".join(f"{count} {word}" for word, count in counts.items()))


_OUTCOMES = {"as expected": True, "not as expected": False, "not run": None}


def _mark(ok: bool | None) -> RenderableType:
    from rich.text import Text

    marks = {True: ("✔", "green"), False: ("✘", "red"), None: ("–", "dim")}
    return Text(*marks[ok])
