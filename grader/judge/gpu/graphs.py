"""CUDA graphs of our own PyTorch code: captured, and timed without what launching them takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

AHEAD_CYCLES = 400_000
"""How long the GPU is kept busy while a graph is launched, 0.2 ms at 2 GHz: else it waits for the
processor, and the graph seems to take so much longer."""


def captured(body: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """A graph of what `body` launches, which must have run before. None where that cannot be
    captured, such as code that synchronises; other errors than `RuntimeError` are passed on."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            body()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds that one replay takes on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
