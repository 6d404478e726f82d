"""Are inputs that come late in time, and who reads them too soon?

    python -m benchmarks.deferred_inputs [--sandbox process] [--rounds 8] [--case NAME]... FILE...

Needs a GPU. FILE is a submission below `submissions/<problem>/`, honest or not. For every benchmark
case it takes rounds as a grading does, and goes on where one finds a fault; every second one has no
inputs that come late (`deferred_inputs`), so that times can be compared. Of those that came late
some came in time: no call may have begun before that. Outputs that are right for what was there
until then were computed too soon. `Held up` are those whose write took long; `wrong` are those that
came too late for anything to be told, and are. `Meetings` are looks that found two calls at work;
a whole grading may have one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from benchmarks.gpu import needs_gpu
from benchmarks.partial_grading import chosen, prepared
from grader.judge.benchmark import Bench, opened
from grader.judge.integrity.deferred_inputs import Tally
from grader.judge.verdict import SubmissionFault
from grader.sandbox.base import SandboxError
from grader.stats import median

HEAD = """\
| case | calls | late | in time | held up | wrong | rounds | faults | meetings | µs without \
| µs with | what |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def row(bench: Bench, rounds: int) -> str:
    """A row of the Markdown table."""
    times_us: dict[bool, list[float]] = {False: [], True: []}
    faults: Counter[str] = Counter()
    meetings = 0
    late = bench.late
    if late is not None:
        late.tally = Tally()  # without the warm-up's
    for number in range(2 * rounds):
        has_late = number % 2 == 1
        bench.late = late if has_late else None
        try:
            times_us[has_late].append(bench.round(1 + number).claim_us)
        except SubmissionFault as stop:
            faults[stop.fault.reason] += 1
        meetings += bench.grading.meetings
        bench.grading.meetings = 0
    tally = late.tally if late is not None else Tally()
    cells = [
        bench.case.name,
        bench.calls,
        tally.late,
        tally.in_time,
        tally.held_up,
        tally.wrong,
        rounds,
        faults.total(),
        meetings,
        *(f"{median(us):.2f}" if us else "–" for us in times_us.values()),
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
                print(f"| {case.name} |" + " |" * 10 + f" {stop} |", flush=True)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--case", "cases", multiple=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, cases: tuple[str, ...], files: tuple[Path, ...]) -> None:
    """Publish some inputs of rounds late, and see who reads them too soon."""
    needs_gpu()
    for path in files:
        late_inputs(sandbox, path, rounds, cases)


if __name__ == "__main__":
    main()
