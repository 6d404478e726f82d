"""Our own PyTorch code on the same cases, timed before any submission is loaded.

Once a submission runs, it could slow the machine down while a baseline is timed; so it does not
run yet. Only a quick grading, which is of one's own code, tests first and times baselines then.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from grader import stats
from grader.judge.gpu.graphs import captured, replay_us
from grader.judge.problem_code import ProblemCode, Values, seed_for
from grader.judge.timing.plan import POLICY, calls_per_round
from grader.problem.spec import Case

ROUNDS = 3
KEPT = 8
"""Results that are held while the next calls run. Let go at once, each call's outputs would get the
memory of the last one's, stay in L2, and never be paid for: `torch.compile` then copied at 3.2 TB/s
on a GPU that can do 3.0."""
SEED = 20_262

Call = Callable[[], object]


def time_baselines(
    code: ProblemCode, case: Case, functions: dict[str, Callable[..., Any]] | None = None
) -> dict[str, float]:
    """Microseconds per call of each baseline of the problem on a benchmark case, cold L2, in rounds
    of as many calls as a submission's have.

    With `functions`, of those instead. Raises `ProblemError` when one fails, or gives something
    else than the outputs.
    """
    template = code.inputs(case, SEED)
    count = calls_per_round(code.problem, case, template, code.device)
    sets = [code.inputs(case, seed_for(SEED, i)) for i in range(count)]
    times = {}
    with torch.no_grad():
        for name, function in (functions or code.baselines).items():
            code.run(function, f"{name}()", case, sets[0])
            times[name] = _time([partial(function, **values) for values in sets], code.device)
        for name, prepare in ({} if functions else code.prepared).items():
            if ready := _prepared(prepare, sets, code.device):
                code.run(lambda *, call=ready[0], **_: call(), f"{name}()", case, sets[0])
                calls = list(itertools.islice(itertools.cycle(ready), count))
                times[name] = _time(calls, code.device)
    return times


def _prepared(
    prepare: Callable[..., Call | None], sets: Sequence[Values], device: str
) -> list[Call]:
    """What a library has to time, of as many sets as keep L2 cold; of none where it has no such
    call. What it prepares may be far larger than the inputs."""
    before_bytes = torch.cuda.memory_allocated() if device == "cuda" else 0
    first = prepare(**sets[0])
    if first is None:
        return []
    count = len(sets)
    if device == "cuda" and (taken_bytes := torch.cuda.memory_allocated() - before_bytes):
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        count = min(count, math.ceil(POLICY.cold_l2 * l2_bytes / taken_bytes) + 1)
    others = [prepare(**values) for values in sets[1:count]]
    return [first, *(call for call in others if call is not None)]


def _time(calls: Sequence[Call], device: str) -> float:
    """Median microseconds per call, each on its own set; on a GPU by graph replay if possible."""
    for call in calls[:3]:
        call()

    def body() -> None:
        kept: deque[object] = deque(maxlen=KEPT)
        for call in calls:
            kept.append(call())

    graph = captured(body) if device == "cuda" else None
    one_round = partial(replay_us, graph) if graph else partial(_round_us, body, device)
    return stats.median([one_round() for _ in range(ROUNDS)]) / len(calls)


def _round_us(body: Callable[[], None], device: str) -> float:
    """Microseconds of it, with what launching its kernels takes."""
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
