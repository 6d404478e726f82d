"""How accurate is the judge's own clock? Its residuals over honest runners' reported times.

    python -m benchmarks.measured_interval [--sandbox process] [--rounds 8] FILE...

FILE is an honest submission below `submissions/<problem>/` whose calls can be captured. The row of
a benchmark case has the calls per round, the reported time per call, and the residual per round:
the measured interval less the calibrated round cost and the reported time. The allowance of a score
(`limit_us`) must exceed the median residual. Cells with five numbers are quartiles.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.gpu import require_gpu
from benchmarks.partial_grading import measured_rounds, prepared
from grader.judge.benchmark import open_benchmark
from grader.judge.timing.calibration import RoundCost, idle_rounds
from grader.judge.timing.measure import limit_us
from grader.judge.timing.round import MeasuredRound

HEAD = """\
| case | calls | reported | publishing calibrated | publishing | other cost | residual | allowed |
|---|---|---|---|---|---|---|---|"""


def print_file(sandbox: str, path: Path, rounds: int) -> None:
    """Print the table of one honest submission."""
    with prepared(sandbox, path) as (grading, load):
        idle = idle_rounds(grading.session, rounds)
        load()
        print(f"\n{path}: idle rounds cost {quartiles([m.rest_us for m in idle])} µs\n{HEAD}")
        for case in grading.problem.cases("benchmark", "cuda"):
            with open_benchmark(grading, case) as bench:
                with measured_rounds(bench) as measured:
                    for number in range(1, rounds + 1):
                        bench.round(number)
                per_set_us = grading.publish_us_per_set[case.name]
            cost = RoundCost(per_set_us * bench.sets.count, grading.round_cost_us)
            _row(case.name, cost, measured)


def _row(name: str, cost: RoundCost, measured: list[MeasuredRound]) -> None:
    calls = measured[0].calls
    residuals_us = [cost.calls_us(m) - m.reported_us for m in measured]
    allowed_us = calls * limit_us(measured[0].reported_us / calls, calls)
    cells = [
        name,
        str(calls),
        quartiles([m.reported_us / calls for m in measured], 2),
        f"{cost.publish_us:.0f}",
        quartiles([m.publish_us for m in measured]),
        quartiles([m.rest_us for m in measured]),
        quartiles(residuals_us),
        f"{allowed_us:.0f}",
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
    """Print the residuals of honest submissions."""
    require_gpu()
    for path in files:
        print_file(sandbox, path, rounds)


if __name__ == "__main__":
    main()
