"""How well the judge's own clock knows a round: its residual against honest runners' claims.

    python -m benchmarks.outside_clock [--sandbox process|docker] [--rounds 8] FILE...

FILE is an honest submission below `submissions/<problem>/` whose calls can be captured. For every
benchmark case a table row gives the calls per round, the claim, and by how much the outside clock,
less what it was gauged to cost, lies above the claim per round. What a score is allowed of that
(`room_us`) must cover the shortest quarter of the residuals.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.verdicts import problem_of
from grader.judge.bench import opened
from grader.judge.clock import (
    Overhead,
    idle_rounds,
    room_us,
)
from grader.judge.grade import greet
from grader.judge.grading import Grading
from grader.judge.record import Record
from grader.judge.rounds import Bracket
from grader.judge.session import Session
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.submission import Submission

HEAD = """\
| case | calls | claim | publishing at most | publish | rest | lies above | allowed |
|---|---|---|---|---|---|---|---|"""


def residuals(sandbox: Sandbox, path: Path, rounds: int) -> None:
    """Print the residuals of one honest submission."""
    problem = problem_of(path)
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    with sandbox.start(RunnerLimits.of(problem.spec.limits), "cuda") as runner:
        session = Session(runner, 600)
        greeting = greet(session, submission, "cuda")
        grading = Grading(problem, session, "cuda", 1, Record())
        grading.meet(greeting)
        grading.prepare()
        idle = idle_rounds(session, rounds)
        grading.load(submission)
        grading.end_rehearsal()
        print(f"\n{path}: idle rounds cost {_spread([b.rest_us for b in idle])} µs\n{HEAD}")
        for case in problem.cases("benchmark", "cuda"):
            with opened(grading, case) as bench:
                brackets = [bench.bracket(i) for i in range(rounds)]
            _row(case.name, bench.overhead, brackets)


def _row(name: str, overhead: Overhead, brackets: list[Bracket]) -> None:
    calls = brackets[0].calls
    claim = _spread([b.claim_us / calls for b in brackets], 2)
    lies = [overhead.outside_us(b) - b.claim_us for b in brackets]
    allowed = calls * room_us(brackets[0].claim_us / calls, calls)
    cells = [
        name,
        str(calls),
        claim,
        f"{overhead.publish_us:.0f}",
        _spread([b.publish_us for b in brackets]),
        _spread([b.rest_us for b in brackets]),
        _spread(lies),
        f"{allowed:.0f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def _spread(values: list[float], digits: int = 0) -> str:
    """Least, quarter, median, three quarters, most."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return " … ".join(f"{ordered[last * k // 4]:.{digits}f}" for k in range(5))


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="process")
@click.option("--rounds", default=8, show_default=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, files: tuple[Path, ...]) -> None:
    """Print the residuals of honest submissions."""
    chosen = make_sandbox(sandbox)
    for path in files:
        residuals(chosen, path, rounds)


if __name__ == "__main__":
    main()
