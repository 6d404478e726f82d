"""How accurate is the judge's own clock? Its print_file over honest runners' reported times.

    python -m benchmarks.measured_interval [--sandbox process] [--rounds 8] FILE...

FILE is an honest submission below `submissions/<problem>/` whose calls can be captured. The row of
a benchmark case has the calls per round, the reported time per call, and the residual per round:
the measured interval less the calibrated round cost and the reported time. The allowance of a score
(`room_us`) must exceed the median residual. Cells with five numbers are quartiles.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.gpu import require_gpu
from benchmarks.partial_grading import prepared
from grader.judge.benchmark import opened
from grader.judge.timing.measure import (
    Overhead,
    idle_rounds,
    room_us,
)
from grader.judge.timing.round import Bracket

HEAD = """\
| case | calls | reported | publishing at most | publish | other cost | residual | allowed |
|---|---|---|---|---|---|---|---|"""


def print_file(sandbox: str, path: Path, rounds: int) -> None:
    """Print the table of one honest submission."""
    with prepared(sandbox, path) as (grading, load):
        idle = idle_rounds(grading.session, rounds)
        load()
        print(f"\n{path}: idle rounds cost {quartiles([b.rest_us for b in idle])} µs\n{HEAD}")
        for case in grading.problem.cases("benchmark", "cuda"):
            with opened(grading, case) as bench:
                brackets = [bench.bracket(i) for i in range(rounds)]
            _row(case.name, bench.overhead, brackets)


def _row(name: str, overhead: Overhead, brackets: list[Bracket]) -> None:
    calls = brackets[0].calls
    claim = quartiles([b.claim_us / calls for b in brackets], 2)
    residuals_us = [overhead.outside_us(b) - b.claim_us for b in brackets]
    allowed = calls * room_us(brackets[0].claim_us / calls, calls)
    cells = [
        name,
        str(calls),
        claim,
        f"{overhead.publish_us:.0f}",
        quartiles([b.publish_us for b in brackets]),
        quartiles([b.rest_us for b in brackets]),
        quartiles(residuals_us),
        f"{allowed:.0f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def quartiles(values: list[float], digits: int = 0) -> str:
    """Minimum, quartiles and maximum."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return " … ".join(f"{ordered[last * k // 4]:.{digits}f}" for k in range(5))


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=8, show_default=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, files: tuple[Path, ...]) -> None:
    """Print the print_file of honest submissions."""
    require_gpu()
    for path in files:
        print_file(sandbox, path, rounds)


if __name__ == "__main__":
    main()
