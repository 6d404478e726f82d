"""What lies in the L2 cache when a round begins, and what is that worth?

    python -m benchmarks.residue [--case NAME]... [FILE]

Needs a GPU. FILE is an honest submission of the softmax problem, which runs in this process. Of
each benchmark case a graph calls as many argument sets as a round of ours has, each once. It is
timed by a pair of events, launched while the GPU is busy, so that launching is in no time; after a
rest it may be, since the GPU is given no more than 0.05 ms of work then. What was done just before
differs:

- rest: nothing, for 5 ms;
- wait: nothing, for 0.3 ms;
- read: 256 MiB of other memory;
- write: the same, written;
- publish: all inputs written anew, as the judge does before a round;
- publish, write: that, and then other memory;
- in a row: the same graph, eight times, of which the first does not count.

Microseconds per call, the median of `TIMES` turns; and in the last columns what a whole round takes
more than after a rest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from benchmarks.gpu import needs_gpu
from benchmarks.steps import chosen
from benchmarks.timers import FOLDER, ROOT, Entry, argument_sets, captured, entry
from grader.judge.cases import ProblemCode, seed_for
from grader.judge.clock import calls_per_round
from grader.problem import Problem
from grader.problem.spec import Case

if TYPE_CHECKING:
    import torch

TIMES, IN_A_ROW = 15, 8
OTHER_BYTES = 256 << 20
WAIT_CYCLES = 600_000
"""Of a GPU of some 1.8 GHz: a third of a millisecond."""


def timed_us(replay: Callable[[], None], before: Callable[[], None], times: int = 1) -> list[float]:
    """Microseconds of each of so many replays in a row, after something else on the same stream."""
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    torch.cuda.synchronize()
    before()
    torch.cuda._sleep(WAIT_CYCLES // 20)  # until the first replay has been launched
    marks[0].record()
    for mark in marks[1:]:
        replay()
        mark.record()
    torch.cuda.synchronize()
    return [1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


def states(inputs: list[torch.Tensor]) -> dict[str, Callable[[], None]]:
    """What may be done before a round."""
    import torch

    image = [x.clone() for x in inputs]
    other = torch.zeros(OTHER_BYTES // 4, device="cuda")

    def publish() -> None:
        for x, true in zip(inputs, image, strict=True):
            torch.bitwise_or(true.view(torch.int32), 0, out=x.view(torch.int32))

    def rest() -> None:
        torch.cuda.synchronize()
        time.sleep(5e-3)
        torch.cuda._sleep(WAIT_CYCLES // 10)

    return {
        "rest": rest,
        "wait": lambda: torch.cuda._sleep(WAIT_CYCLES),
        "read": lambda: other.sum(),
        "write": lambda: other.fill_(1.0),
        "publish": publish,
        "publish, write": lambda: (publish(), other.fill_(1.0)),
    }


def row(function: Entry, case: Case, calls: int) -> str:
    """A row of the table."""
    import torch

    sets = argument_sets(case.params, calls)
    for pair in sets:
        function(*pair)
    torch.cuda.synchronize()
    graph = captured(function, sets)
    before = states([x for x, _ in sets])
    found: dict[str, list[float]] = {name: [] for name in [*before, "in a row"]}
    for _ in range(TIMES):  # in turns, so that drift of the chip cancels
        for name, prepare in before.items():
            found[name] += timed_us(graph.replay, prepare)
        found["in a row"] += timed_us(graph.replay, before["wait"], IN_A_ROW)[1:]
    whole_us = {name: median(some) for name, some in found.items()}
    words = [case.name, str(calls), *(f"{us / calls:.3f}" for us in whole_us.values())]
    words += [f"{us - whole_us['rest']:+.1f}" for us in list(whole_us.values())[1:]]
    return f"| {' | '.join(words)} |"


@click.command()
@click.option("--case", "cases", multiple=True)
@click.argument("file", default=FOLDER / "triton_softmax.py", type=click.Path(path_type=Path))
def main(cases: tuple[str, ...], file: Path) -> None:
    """Time rounds after different things."""
    needs_gpu()
    import torch

    problem = Problem.load(ROOT / "problems" / "softmax")
    code, function = ProblemCode(problem, "cuda"), entry(file)
    names = ["rest", "wait", "read", "write", "publish", "publish, write", "in a row"]
    print(f"| case | calls | {' | '.join(names)} | {' | '.join(f'{n}, +' for n in names[1:])} |")
    print("|---" * (2 * len(names) + 1) + "|")
    for case in chosen(problem, cases):
        template = code.inputs(case, seed_for(1, case.name))
        calls = calls_per_round(problem, case, template, "cuda")
        del template
        print(row(function, case, calls), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
