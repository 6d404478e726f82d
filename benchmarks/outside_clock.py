"""How well the judge's own clock knows a round: its residual against honest runners' claims.

    python benchmarks/outside_clock.py [--sandbox process|docker] [--rounds 8] FILE...

FILE is an honest submission below `submissions/<problem>/`. For every benchmark case a table row
gives the calls per round, the claim, and by how much the outside clock, less its calibrated cost,
lies above the claim per round. What it is allowed (`Overhead.doubt_us`, and `RELATIVE_DOUBT` of the
time) must cover the residuals, and must not be much wider.
"""

from __future__ import annotations

from pathlib import Path

import click

from grader.judge.bench import Bench, try_graph
from grader.judge.cases import seed_for
from grader.judge.clock import RELATIVE_DOUBT, calls_per_round
from grader.judge.grade import greet
from grader.judge.grading import Grading
from grader.judge.loan import Loan
from grader.judge.record import Record
from grader.judge.session import Session
from grader.problem import Problem
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.sandbox.docker import DockerSandbox
from grader.sandbox.process import ProcessSandbox
from grader.submission import Submission

HEAD = """\
| case | calls | claim µs | cost per round µs | residual per round µs | allowed µs |
|---|---|---|---|---|---|"""
ROOT = Path(__file__).resolve().parent.parent


def residuals(sandbox: Sandbox, path: Path, rounds: int) -> None:
    """Print the residuals of one honest submission."""
    problem = Problem.load(ROOT / "problems" / path.resolve().parent.parent.name)
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    limits = problem.spec.limits
    wanted = RunnerLimits(
        limits.memory_bytes, limits.scratch_bytes, limits.output_bytes, limits.pids
    )
    with sandbox.start(wanted, "cuda") as runner:
        session = Session(runner, 600)
        greeting = greet(session, submission, "cuda")
        grading = Grading(problem, session, "cuda", 1, Record())
        grading.meet(greeting)
        grading.prepare()
        grading.load(submission)
        print(f"\n{path}, residual per round: least … median … most\n{HEAD}")
        for case in problem.cases("benchmark", "cuda"):
            template = grading.code.inputs(case, seed_for(1, case.name))
            calls = calls_per_round(problem, case, template, "cuda")
            bench = Bench(grading, case, Loan(problem, case, template, calls, "cuda"))
            grading.lend(bench.loan)
            bench.round(-1)
            bench.graph = try_graph(bench)
            samples = [bench.round(i) for i in range(rounds)]
            bench.loan.close()
            claim = sorted(s.claim_us for s in samples)[rounds // 2]
            lies = sorted((s.external_us - s.claim_us) * calls for s in samples)
            cost = grading.overheads[case.name]
            allowed = cost.doubt_us + RELATIVE_DOUBT * claim * calls
            residual = f"{lies[0]:.0f} … {lies[rounds // 2]:.0f} … {lies[-1]:.0f}"
            cells = [case.name, calls, f"{claim:.2f}", f"{cost.cost_us:.0f}", residual]
            print("|", *(f"{cell} |" for cell in cells), f"{allowed:.0f} |", flush=True)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="process")
@click.option("--rounds", default=8, show_default=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, files: tuple[Path, ...]) -> None:
    """Print the residuals of honest submissions."""
    chosen: Sandbox = DockerSandbox() if sandbox == "docker" else ProcessSandbox()
    for path in files:
        residuals(chosen, path, rounds)


if __name__ == "__main__":
    main()
