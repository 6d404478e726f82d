"""How much later does a kernel begin, in a process that has used some streams or graphs?

    python -m benchmarks.kernel_gaps [FILE]

Needs a GPU. FILE is an honest submission of the softmax problem, which runs in forks of this
process. Each first has some streams do something, or captures and replays some graphs of one
kernel, or neither. Then it times the calls of a case: microseconds a call, by a pair of events
around many replays of one graph in a row. Then the same around single replays, before each of which
another process has worked for a moment; the median counts. And then alone again, as at first. At
last PyTorch's profiler tells how long the kernels of a replay take, and from the end of one to the
beginning of the next, nanoseconds: the medians, of a fork that had no other process beside it and
of the one that had; below zero kernels overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.gpu import needs_gpu
from benchmarks.timers import (
    FOLDER,
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


@dataclass(frozen=True)
class Scene:
    """What a fork does before it times something."""

    file: Path
    case: str
    streams: int
    graphs: int

    def replay(self) -> Callable[[], None]:
        """What replays a graph of the case's calls, each on a set of its own."""
        import torch

        for _ in range(self.streams):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.zeros(1, device="cuda")
        x = torch.zeros(1, device="cuda")
        for _ in range(self.graphs):
            captured(x.add_, [(1,)]).replay()
        function, sets = entry(self.file), argument_sets(cases()[self.case], CALLS[self.case])
        for pair in sets:
            function(*pair)
        torch.cuda.synchronize()
        replay: Callable[[], None] = captured(function, sets).replay
        return replay

    def alone(self) -> str:
        """With no other process beside it."""
        return self._in_a_row(self.replay())

    def beside(self) -> str:
        """After another process has worked, each time; and then in a row."""
        other, replay, times_us = Other(), self.replay(), []
        for _ in range(ROWS):
            other.works()
            times_us.append(timed_us(replay, 1) / CALLS[self.case])
        return f"{median(times_us):.2f} | {self._in_a_row(replay)}"

    def _in_a_row(self, replay: Callable[[], None]) -> str:
        calls = CALLS[self.case] * IN_A_ROW
        times_us = [timed_us(replay, IN_A_ROW) / calls for _ in range(ROWS)]
        lasts_ns, gap_ns = kernels_ns(replay)
        return f"{median(times_us):.2f} ({lasts_ns:.0f}, {gap_ns:+.0f})"


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
@click.argument(
    "file",
    default=FOLDER / "triton_softmax.py",
    type=click.Path(path_type=Path, exists=True),
)
def main(file: Path) -> None:
    """Time the same graph after different things."""
    alone(needs_gpu)
    import triton.testing  # noqa: F401 - takes seconds; forks have it

    print("| case | streams | graphs | alone (kernel, gap) | another works | then (kernel, gap) |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in CALLS:
        for streams, graphs in BEFORE:
            scene = Scene(file, case, streams, graphs)
            words = [case, str(streams), str(graphs), alone(scene.alone), alone(scene.beside)]
            print(f"| {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    main()
