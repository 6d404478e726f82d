"""How much later does a kernel begin, in a process that has used some streams or graphs?

    python -m benchmarks.streams [FILE]

Needs a GPU. FILE is an honest submission of the softmax problem, which runs in forks of this
process. Each first has some streams do something, or captures and replays some graphs of one
kernel, or neither. Then it times the calls of a case: microseconds a call, by a pair of events
around many replays of one graph in a row, while it is alone; the same around single replays, each
begun while another process is at work, of which the median counts; and alone again. And PyTorch's
profiler tells, before and after that, how long the kernels of a replay take, and from the end of
one to the beginning of the next: nanoseconds, the median; below zero they overlap.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.gpu import needs_gpu
from benchmarks.timers import (
    FOLDER,
    Entry,
    Other,
    alone,
    argument_sets,
    captured,
    cases,
    entry,
    timed_us,
)

CALLS = {"small": 64, "vocabulary": 16}
BEFORE = ((0, 0), (8, 0), (0, 2), (0, 3))
"""Streams and graphs used before."""
ROWS, IN_A_ROW = 5, 20


def row(function: Entry, params: dict[str, Any], calls: int, streams: int, graphs: int) -> str:
    """A row of the table, but for the case's name."""
    other = Other()
    import torch

    for _ in range(streams):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.zeros(1, device="cuda")
    x = torch.zeros(1, device="cuda")
    for _ in range(graphs):
        captured(x.add_, [(1,)]).replay()
    sets = argument_sets(params, calls)
    for pair in sets:
        function(*pair)
    torch.cuda.synchronize()
    replay = captured(function, sets).replay

    def in_a_row() -> str:
        times_us = [timed_us(replay, IN_A_ROW) / IN_A_ROW / calls for _ in range(ROWS)]
        lasts_ns, gap_ns = kernels_ns(replay)
        return f"{median(times_us):.2f} ({lasts_ns:.0f}, {gap_ns:+.0f})"

    words = [f"{streams} streams" if streams or not graphs else f"{graphs} graphs", in_a_row()]
    beside_us = []
    for _ in range(ROWS):
        other.works()
        beside_us.append(timed_us(replay, 1) / calls)
    words += [f"{median(beside_us):.2f}", in_a_row()]
    return " | ".join(words)


def kernels_ns(replay: Any) -> tuple[float, float]:
    """Of a replay: how long a kernel takes, and from its end to the beginning of the next."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        replay()
        torch.cuda.synchronize()
    events = profiled.events() or ()
    found = [e.time_range for e in events if e.device_type == DeviceType.CUDA]
    spans = sorted((span.start, span.end) for span in found)
    gaps_us = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    return 1e3 * median([end - start for start, end in spans]), 1e3 * median(gaps_us)


@click.command()
@click.argument("file", default=FOLDER / "triton_softmax.py", type=click.Path(path_type=Path))
def main(file: Path) -> None:
    """Time the same graph after different things."""
    alone(needs_gpu)
    import triton.testing  # noqa: F401 - takes seconds; forks have it

    function, params = entry(file), cases()
    print(
        "| case | before | alone (a kernel, to the next) | another process begins | alone again |"
    )
    print("|---|---|---|---|---|", flush=True)
    for name, calls in CALLS.items():
        for streams, graphs in BEFORE:
            words = alone(partial(row, function, params[name], calls, streams, graphs))
            print(f"| {name} | {words} |", flush=True)


if __name__ == "__main__":
    main()
