"""Our own PyTorch code on the same cases, timed before any submission is loaded.

Once a submission runs, it could slow the machine down while a baseline is timed; so it does not
run yet. Only a quick grading, which is of one's own code, tests first and times baselines then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from grader import stats
from grader.judge.cases import ProblemCode, seed_for
from grader.judge.clock import calls_per_round
from grader.problem.spec import Case

ROUNDS = 3
MOST_CALLS = 24
MOST_PREPARED = 4
"""Sets of a prepared baseline: what a library prepares may be far larger than the inputs."""
KEPT = 8
"""Results that are held while the next calls run. Let go at once, each call's outputs would get the
memory of the last one's, stay in L2, and never be paid for: `torch.compile` then copied at 3.2 TB/s
on a GPU that can do 3.0."""
SEED = 20_262


def time_baselines(
    code: ProblemCode, case: Case, functions: dict[str, Callable[..., Any]] | None = None
) -> dict[str, float]:
    """Microseconds per call of each baseline of the problem on a benchmark case, cold L2.

    With `functions`, of those instead. Raises `ProblemError` when one fails, or gives something
    else than the outputs.
    """
    template = code.inputs(case, SEED)
    calls = min(MOST_CALLS, calls_per_round(code.problem, case, template, code.device))
    sets = [code.inputs(case, seed_for(SEED, i)) for i in range(calls)]
    times = {}
    with torch.no_grad():
        for name, function in (functions or code.baselines).items():
            code.run(function, f"{name}()", case, sets[0])
            times[name] = _time([partial(function, **values) for values in sets], code.device)
        for name, prepare in ({} if functions else code.prepared).items():
            ready = [prepare(**values) for values in sets[:MOST_PREPARED]]
            if ready[0] is not None:
                code.run(lambda *, call=ready[0], **_: call(), f"{name}()", case, sets[0])
                times[name] = _time(ready, code.device)
    return times


def _time(calls: Sequence[Callable[[], object]], device: str) -> float:
    """Median microseconds per call, each on its own set; on a GPU by graph replay if possible."""
    for call in calls[:3]:
        call()

    def body() -> None:
        kept: deque[object] = deque(maxlen=KEPT)
        for call in calls:
            kept.append(call())

    replay = _captured(body) if device == "cuda" else None
    times = [_round_us(replay or body, device) for _ in range(ROUNDS)]
    return stats.median(times) / len(calls)


def _captured(body: Callable[[], None]) -> Callable[[], None] | None:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            body()
    except RuntimeError:  # baselines that synchronise run eagerly
        torch.cuda.synchronize()
        return None
    return graph.replay


def _round_us(body: Callable[[], None], device: str) -> float:
    if device == "cpu":
        start_ns = time.perf_counter_ns()
        body()
        return (time.perf_counter_ns() - start_ns) / 1e3
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    body()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
