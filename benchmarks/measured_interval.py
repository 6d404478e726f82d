"""How well the judge's own clock knows a round: its residual against honest runners' claims.

    python -m benchmarks.measured_interval [--sandbox process] [--rounds 8] FILE...

FILE is an honest submission below `submissions/<problem>/` whose calls can be captured. For every
benchmark case a table row gives the calls per round, the claim, and by how much the outside clock,
less what it was gauged to cost, lies above the claim per round. What a score is allowed of that
(`room_us`) must cover the middle one of the residuals.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.gpu import needs_gpu
from benchmarks.partial_grading import prepared
from grader.judge.benchmark import opened
from grader.judge.timing.measure import (
    Overhead,
    idle_rounds,
    room_us,
)
from grader.judge.timing.round import Bracket

HEAD = """\
| case | calls | claim | publishing at most | publish | rest | lies above | allowed |
|---|---|---|---|---|---|---|---|"""


def residuals(sandbox: str, path: Path, rounds: int) -> None:
    """Print the residuals of one honest submission."""
    with prepared(sandbox, path) as (grading, load):
        idle = idle_rounds(grading.session, rounds)
        load()
        print(f"\n{path}: idle rounds cost {spread([b.rest_us for b in idle])} µs\n{HEAD}")
        for case in grading.problem.cases("benchmark", "cuda"):
            with opened(grading, case) as bench:
                brackets = [bench.bracket(i) for i in range(rounds)]
            _row(case.name, bench.overhead, brackets)


def _row(name: str, overhead: Overhead, brackets: list[Bracket]) -> None:
    calls = brackets[0].calls
    claim = spread([b.claim_us / calls for b in brackets], 2)
    lies = [overhead.outside_us(b) - b.claim_us for b in brackets]
    allowed = calls * room_us(brackets[0].claim_us / calls, calls)
    cells = [
        name,
        str(calls),
        claim,
        f"{overhead.publish_us:.0f}",
        spread([b.publish_us for b in brackets]),
        spread([b.rest_us for b in brackets]),
        spread(lies),
        f"{allowed:.0f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def spread(values: list[float], digits: int = 0) -> str:
    """Least, quarter, median, three quarters, most."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return " … ".join(f"{ordered[last * k // 4]:.{digits}f}" for k in range(5))


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=8, show_default=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, files: tuple[Path, ...]) -> None:
    """Print the residuals of honest submissions."""
    needs_gpu()
    for path in files:
        residuals(sandbox, path, rounds)


if __name__ == "__main__":
    main()
