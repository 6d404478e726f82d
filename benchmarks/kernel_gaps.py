"""How much longer is the gap between kernels in a process that has used several streams or graphs?

    python -m benchmarks.kernel_gaps [FILE]

Needs a GPU. FILE is an honest softmax submission, which runs in forks of this process. A fork first
uses some streams, or captures and replays some graphs of one kernel, or neither. Then it times the
calls of a case, in microseconds per call, by a pair of CUDA events:

- around many replays of one graph in a row;
- around single replays, before each of which another process has used the GPU (the median);
- around many replays in a row again.

In parentheses are medians by PyTorch's profiler, in nanoseconds: the duration of a kernel, and the
gap from its end to the start of the next. A negative gap is an overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.gpu import require_gpu
from benchmarks.timers import (
    FOLDER,
    OtherProcess,
    alone,
    argument_sets,
    captured,
    cases,
    entry,
    timed_us,
)

CALLS = {"small": 64, "vocabulary": 16}
USED_BEFORE = ((0, 0), (8, 0), (0, 2), (0, 3))
"""Numbers of streams and of graphs that a fork uses first."""
ROWS, IN_A_ROW = 5, 20


@dataclass(frozen=True)
class Scenario:
    """What a fork uses before it times a graph."""

    file: Path
    case: str
    streams: int
    graphs: int

    def replay(self) -> Callable[[], None]:
        """A function that replays a graph of the case's calls, each on its own argument set."""
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
        """Times without another process."""
        return self._in_a_row(self.replay())

    def beside(self) -> str:
        """Times after another process has used the GPU, then in a row."""
        other, replay, times_us = OtherProcess(), self.replay(), []
        for _ in range(ROWS):
            other.use_gpu()
            times_us.append(timed_us(replay, 1) / CALLS[self.case])
        return f"{median(times_us):.2f} | {self._in_a_row(replay)}"

    def _in_a_row(self, replay: Callable[[], None]) -> str:
        calls = CALLS[self.case] * IN_A_ROW
        times_us = [timed_us(replay, IN_A_ROW) / calls for _ in range(ROWS)]
        duration_ns, gap_ns = kernels_ns(replay)
        return f"{median(times_us):.2f} ({duration_ns:.0f}, {gap_ns:+.0f})"


def kernels_ns(replay: Any) -> tuple[float, float]:
    """Median duration of a replay's kernels, and median gap to the next kernel, nanoseconds."""
    import torch
    from torch.autograd import DeviceType  # type: ignore[attr-defined] # not exported
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
    """Time the same graph in processes that have used different things."""
    alone(require_gpu)
    import triton.testing  # noqa: F401 - takes seconds; forks have it

    print("| case | streams | graphs | alone (kernel, gap) | beside another | then (kernel, gap) |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in CALLS:
        for streams, graphs in USED_BEFORE:
            scenario = Scenario(file, case, streams, graphs)
            words = [case, str(streams), str(graphs), alone(scenario.alone), alone(scenario.beside)]
            print(f"| {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    main()
