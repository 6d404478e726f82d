"""Baselines: PyTorch and library code that a kernel is compared with, timed by the judge.

A grading times a problem's baselines before the submission is loaded: a running submission could
slow the machine down meanwhile. Only a quick grading, which is of one's own code, tests first.
`grade baseline` also measures torch.compile, as far as it compiles in time (`compiled_cases`).
"""

from __future__ import annotations

import itertools
import math
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch

from grader import __version__, stats
from grader.judge.gpu.environment import gpu_name, package_version
from grader.judge.gpu.graphs import capture_graph, event_us, replay_us
from grader.judge.gpu.lock import gpu_lock
from grader.judge.gpu.state import gpu_state
from grader.judge.problem_code import ProblemCode, Values, seed_for
from grader.judge.record import Device, Progress, ProgressCallback
from grader.judge.timing.baseline_store import COMPILED, BaselineEnvironment, processor_name
from grader.judge.timing.compiled_cases import NotCompiledError, compiled_cases, note
from grader.judge.timing.plan import POLICY, calls_per_round
from grader.problem import Problem, ProblemError
from grader.problem.spec import Case

ROUNDS = 3
"""Timed rounds per baseline; the median counts."""
KEPT_RESULTS = 8
"""Results that stay allocated during the next calls. Freed at once, every call's outputs would
reuse the memory of the last one's, stay in L2, and cost no traffic: torch.compile then copied at
3.2 TB/s on a GPU that can do 3.0."""
SEED = 20_262

Call = Callable[[], object]


@dataclass
class Baselines:
    """The measured baselines of one problem."""

    hardware: str
    """Name of the GPU, or of the processor."""
    environment: BaselineEnvironment
    cases: dict[str, dict[str, float]] = field(default_factory=dict)
    """Benchmark case → baseline → microseconds per call, cold L2."""
    notes: list[str] = field(default_factory=list)
    """Baselines that could not be measured, and why."""
    missing: list[str] = field(default_factory=list)
    """Cases that were not measured, since it was interrupted."""
    interrupted: bool = False
    """Whether cases are missing, or torch.compile of some of them."""


def measure_baselines(
    problem: Problem, device: Device, progress: ProgressCallback = lambda _: None
) -> Baselines:
    """Time every baseline of a problem on every benchmark case, then torch.compile of its eager
    function.

    Ctrl-C ends it with the times that are measured; without any case, `KeyboardInterrupt` passes
    through. Raises `ProblemError` when a baseline fails; a failure of torch.compile is noted
    instead.
    """
    if problem.imported is not None:
        raise ProblemError(
            f"{problem.folder}: the code of another set does not run in the judge, so it has no "
            "baselines; compare with its reference, submitted as a file"
        )
    code = ProblemCode(problem, device)
    found = Baselines(gpu_name(device) or processor_name(), environment(device))
    cases = problem.cases("benchmark", device)
    try:
        with gpu_lock(device):
            for index, case in enumerate(cases):

                def begin(name: str, case: Case = case, index: int = index) -> None:
                    progress(Progress("baseline", f"{case.name}, {name}", index, len(cases)))

                found.cases[case.name] = time_baselines(code, case, begin=begin)
        _time_compiled(code, cases, found, progress)
    except KeyboardInterrupt:
        if not found.cases:
            raise
        found.missing = [case.name for case in cases if case.name not in found.cases]
        found.interrupted = True
    return found


def _time_compiled(
    code: ProblemCode, cases: Sequence[Case], found: Baselines, progress: ProgressCallback
) -> None:
    """Add torch.compile to the times of each case. Others may use the GPU while it compiles."""
    if code.device == "cuda":
        torch.cuda.empty_cache()  # for the processes that compile
    with ExitStack() as stack:
        with gpu_lock(code.device, shared=True):
            compiling = compiled_cases(code.problem, cases, code.device, found.notes, progress)
            compiled = stack.enter_context(compiling)
        with gpu_lock(code.device):
            for index, process in enumerate(compiled):
                progress(Progress("compile", f"timing {process.case.name}", index, len(compiled)))
                try:
                    found.cases[process.case.name][COMPILED] = process.time_us()
                except NotCompiledError as error:
                    found.notes.append(note(process.case, error))
                process.end()


def time_baselines(
    code: ProblemCode,
    case: Case,
    functions: dict[str, Callable[..., Any]] | None = None,
    begin: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Time each baseline of the problem, or each of `functions`, on a benchmark case.

    Returns name → microseconds per call with a cold L2 cache, in rounds of as many calls as a
    submission's rounds have. Calls `begin` with each name beforehand. Raises `ProblemError` when
    one fails or returns something else than the outputs.
    """
    if not (functions or code.baselines or code.prepared):
        return {}
    template = code.inputs(case, SEED)
    count = calls_per_round(code.problem, case, template, code.device)
    sets = [code.inputs(case, seed_for(SEED, i)) for i in range(count)]
    times: dict[str, float] = {}

    def time_calls(name: str, calls: Sequence[Call]) -> None:
        times[name] = code.call(f"{name}()", case, sets, partial(median_us, calls, code.device))

    for name, function in (functions or code.baselines).items():
        begin(name)
        code.run(function, f"{name}()", case, sets[0])
        time_calls(name, [partial(code.bound(function, case), **values) for values in sets])
    for name, unbound in ({} if functions else code.prepared).items():
        begin(name)
        prepare = code.bound(unbound, case)
        ready = code.call(
            f"{name}()", case, sets, partial(_prepared_calls, prepare, sets, code.device)
        )
        if ready:
            code.run(lambda *, call=ready[0], **_: call(), f"{name}()", case, sets[0])
            time_calls(name, list(itertools.islice(itertools.cycle(ready), count)))
    return times


def _prepared_calls(
    prepare: Callable[..., Call | None], sets: Sequence[Values], device: str
) -> list[Call]:
    """A library's prepared calls, one per argument set; empty if it does not support the case.

    What a library prepares may be far larger than the inputs, so only as many sets are prepared as
    keep L2 cold.
    """
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


def median_us(calls: Sequence[Call], device: str) -> float:
    """Median microseconds per call, each on its own set; on a GPU by graph replay if possible."""
    for call in calls[:3]:
        call()

    def body() -> None:
        kept: deque[object] = deque(maxlen=KEPT_RESULTS)
        for call in calls:
            kept.append(call())

    graph = capture_graph(body) if device == "cuda" else None
    one_round = partial(replay_us, graph) if graph else partial(_round_us, body, device)
    return stats.median([one_round() for _ in range(ROUNDS)]) / len(calls)


def _round_us(body: Callable[[], None], device: str) -> float:
    """Microseconds of one round, including the cost of launching its kernels."""
    if device == "cpu":
        start_ns = time.perf_counter_ns()
        body()
        return (time.perf_counter_ns() - start_ns) / 1e3
    return event_us(body)


def environment(device: Device) -> BaselineEnvironment:
    """The versions on this machine, and the current time."""
    return BaselineEnvironment(
        driver=gpu_state().get("driver") if device == "cuda" else None,
        cuda=torch.version.cuda if device == "cuda" else None,
        torch=torch.__version__,
        triton=package_version("triton"),
        python=platform.python_version(),
        grade=__version__,
        measured_at=datetime.now(UTC).replace(microsecond=0),
    )
