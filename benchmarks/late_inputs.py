"""What rounds of proof tell: are inputs that come late in time, and are they read too soon?

    python -m benchmarks.late_inputs [--sandbox process] [--rounds 8] [--case NAME]... FILE...

Needs a GPU. FILE is a submission below `submissions/<problem>/`, honest or not. For every benchmark
case it takes rounds of proof (`Bench.prove`), far more than a grading does, and goes on where one
finds a fault. Of the inputs that came late in them (`grader.judge.late`) some came in time: no call
may have begun before that. Outputs that are right for what was there until then were computed too
soon. `Held up` are those whose write took long. `Unsure` are those that came too late for that to
be known, and are wrong. At last, a call's time in ordinary rounds and in these.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from benchmarks.steps import chosen, prepared
from grader.judge.bench import Bench, opened
from grader.judge.verdict import SubmissionFault
from grader.sandbox.base import SandboxError
from grader.stats import median

ORDINARY = 3
"""Rounds that count before each of proof: the judge reckons by how long a call took."""
HEAD = """\
| case | calls | late | in time | held up | unsure | rounds | faults | ordinary µs | these | what |
|---|---|---|---|---|---|---|---|---|---|---|"""


def row(bench: Bench, rounds: int) -> str:
    """A row of the Markdown table."""
    ordinary_us, these_us = [], []
    faults: Counter[str] = Counter()
    for number in range(rounds):
        for i in range(ORDINARY):
            ordinary_us.append(bench.round(1 + number * ORDINARY + i).claim_us)
        try:
            bench.prove()
        except SubmissionFault as stop:
            faults[stop.fault.reason] += 1
        these_us.append(bench.last_us / bench.calls)
    tally = bench.proofs.tally
    cells = [
        bench.case.name,
        bench.calls,
        tally.late,
        tally.in_time,
        tally.held_up,
        tally.unsure,
        rounds,
        faults.total(),
        f"{median(ordinary_us):.2f}",
        f"{median(these_us):.2f}",
        "; ".join(f"{count} × {reason}" for reason, count in faults.items()),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def late_inputs(sandbox: str, path: Path, rounds: int, names: tuple[str, ...]) -> None:
    """Print the table of one file."""
    with prepared(sandbox, path) as (grading, load):
        print(f"\n{path}\n\n{HEAD}")
        load()
        for case in chosen(grading.problem, names):
            try:
                with opened(grading, case) as bench:
                    print(row(bench, rounds), flush=True)
            except (SubmissionFault, SandboxError) as stop:
                print(f"| {case.name} |" + " |" * 9 + f" {stop} |", flush=True)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--case", "cases", multiple=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, cases: tuple[str, ...], files: tuple[Path, ...]) -> None:
    """Publish some inputs of rounds late, and see who reads them too soon."""
    for path in files:
        late_inputs(sandbox, path, rounds, cases)


if __name__ == "__main__":
    main()
