"""Do times change with rest, with the block of memory, or by themselves?

    python -m benchmarks.time_stability rests [--sandbox docker] [--case NAME]... FILE
    python -m benchmarks.time_stability blocks [--blocks 4] [--case NAME]... FILE

Needs a GPU. FILE is an honest submission below `submissions/<problem>/`, whose calls can be
captured. `rests` takes rounds as a grading does, ten without and ten with the rest that tensor-core
cases get, twice in turn. It prints each round's microseconds per call and the SM clock around it.
`blocks` imports the file, which must be trusted Python, into this process. It captures a graph over
each of several lent blocks, each with its own scratch memory, replays them in turn, and prints
three rows of medians.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.gpu import require_gpu
from benchmarks.partial_grading import chosen, prepared
from benchmarks.timers import Entry, captured, entry
from benchmarks.verdict_latency import problem_of
from grader.judge.benchmark import Benchmark, open_benchmark
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.problem_code import ProblemCode, seed_for
from grader.judge.timing.plan import calls_per_round
from grader.problem import Problem
from grader.problem.spec import Case
from grader.stats import estimate, median

ROUNDS, TURNS = 10, 2
MEDIANS, OF = 3, 12
"""Rows, and rounds of each of their medians."""


@click.group()
def main() -> None:
    """Find what changes a kernel's time from round to round."""
    require_gpu()


@main.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--case", "cases", multiple=True)
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def rests(sandbox: str, cases: tuple[str, ...], file: Path) -> None:
    """Rounds without and with rest, in turn."""
    with prepared(sandbox, file) as (grading, load):
        load()
        for case in chosen(grading.problem, cases):
            with open_benchmark(grading, case) as bench:
                for turn in range(2 * TURNS):
                    bench._rests = turn % 2 == 1
                    _rounds(bench, turn)


def _rounds(bench: Benchmark, turn: int) -> None:
    """Take rounds and print a line about them."""
    samples = [bench.round(ROUNDS * turn + i) for i in range(1, ROUNDS + 1)]
    value, (low, high) = estimate([s.reported_us for s in samples])
    shown = " ".join(f"{s.reported_us:.1f}@{s.sm_mhz or 0:.0f}" for s in samples)
    how = "rest" if bench._rests else "none"
    spread = (high - low) / 2 / value
    print(f"{bench.case.name:12} {how}  {value:9.2f} µs ± {spread:.2%}  {shown}", flush=True)


@main.command()
@click.option("--blocks", default=4, show_default=True)
@click.option("--case", "cases", multiple=True)
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def blocks(blocks: int, cases: tuple[str, ...], file: Path) -> None:
    """Several blocks, called in turn."""
    problem = problem_of(file)
    code, function = ProblemCode(problem, "cuda"), entry(file, problem.spec.entry)
    for case in chosen(problem, cases):
        lent = [_sets(problem, code, case, blocks) for _ in range(blocks)]
        graphs = [_graph(function, sets) for sets in lent]
        for _ in range(MEDIANS):
            rows = [
                [_round_us(sets, graph) for sets, graph in zip(lent, graphs, strict=True)]
                for _ in range(OF)
            ]
            each = [median(list(column)) for column in zip(*rows, strict=True)]
            print(f"{case.name:12}", *(f"{us:9.3f}" for us in each), flush=True)
        del graphs
        for sets in lent:
            sets.close()


def _sets(problem: Problem, code: ProblemCode, case: Case, sharing: int) -> ArgumentSets:
    template = code.inputs(case, seed_for(1, case.name))
    calls = calls_per_round(problem, case, template, "cuda", sharing=sharing)
    sets = ArgumentSets(problem, case, template, calls, "cuda")
    for index in range(calls):
        sets.fill(index, code.inputs(case, seed_for(2, case.name, index)))
    return sets


def _graph(function: Entry, sets: ArgumentSets) -> Any:
    """A graph that calls `function` once on every argument set, in the lent memory."""
    import torch

    calls = []
    for index in range(sets.count):
        values = sets.scalars | sets._views(index, sets.lent, 0)
        calls.append([values[argument.name] for argument in sets.problem.spec.args])
    for arguments in calls:
        function(*arguments)
    torch.cuda.synchronize()
    return captured(function, calls)


def _round_us(sets: ArgumentSets, graph: Any) -> float:
    """Microseconds per call of a round on newly published inputs."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    every = list(range(sets.count))
    sets.prepare(every)
    sets.publish(every)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / sets.count


if __name__ == "__main__":
    main()
