"""Capturing and timing the judge's own PyTorch code, with CUDA graphs and events."""

from __future__ import annotations

from collections.abc import Callable

import torch

BUSY_CYCLES = 400_000
"""Clock cycles that the GPU is kept busy while a graph is launched, 0.2 ms at 2 GHz. Without this
it waits for the host, and the launch counts into the graph's time."""


def capture_graph(body: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """Capture what `body` launches; it must have run once before.

    None if that raises `RuntimeError`, such as for code that synchronises. Other errors propagate.
    """
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
    """GPU time of one replay, in microseconds."""
    torch.cuda._sleep(BUSY_CYCLES)
    return event_us(graph.replay)


def event_us(body: Callable[[], object]) -> float:
    """Microseconds between CUDA events before and after `body`, including the cost of launching its
    kernels unless the GPU is still busy."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    body()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
