"""Benchmark one case: rounds until its time is known, and a result of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from grader.judge.benchmark import Benchmark, open_benchmark
from grader.judge.benchmark_result import benchmark_result
from grader.judge.grading import Grading
from grader.judge.memory.shared_block import ReusedArena
from grader.judge.timing.measure import Timing, believable, measure
from grader.judge.timing.returned_copy import returned_copy_us
from grader.judge.verdict import SubmissionFault
from grader.problem.spec import Case
from grader.report import CaseResult


def benchmark(
    grading: Grading,
    reused: ReusedArena,
    case: Case,
    gate: bool = True,
    captures: bool = True,
) -> CaseResult:
    """Measure one case, in the `reused` arena if it is not too large. Raises `SubmissionFault` when
    it goes wrong or breaks a rule."""
    with open_benchmark(grading, case, gate=gate, captures=captures, reused=reused) as bench:
        timing = None if bench.needs_messages else _measured(bench)
        copy_us = _copy_us(bench) if timing is not None else None
    if timing is None:
        return benchmark(grading, reused, case, gate=False, captures=bench.graph)
    if timing.fault is not None:
        raise SubmissionFault(timing.fault)
    for reason, count in timing.discarded.items():
        grading.record.notes.append(f"'{case.name}': {count} rounds left out ({reason})")
    return benchmark_result(grading, case, timing, bench.cold_us, bench.check.eager_us, copy_us)


def _copy_us(bench: Benchmark) -> float | None:
    """What copying the outputs takes, if the function returns them; noted, since writing them saves
    it. None if memory is too short to measure it."""
    grading = bench.grading
    if not grading.returns:
        return None
    roles = {argument.name: argument.role for argument in grading.problem.spec.args}
    outputs = {n: v for n, v in bench.sets.outputs(0).items() if roles[n] == "out"}
    if not outputs:  # state that is written in place
        return None
    try:
        copy_us = returned_copy_us(outputs, grading.device)
    except torch.OutOfMemoryError:
        return None
    grading.record.notes.append(
        f"'{bench.case.name}': copying the outputs that the function returns takes about "
        f"{copy_us:.1f} µs of its time; it is saved by writing them"
    )
    return copy_us


def _measured(bench: Benchmark) -> Timing:
    record, ranks = bench.grading.record, bench.grading.ranks
    timing = measure(bench.next, bench.plan, bench.sets.count, bench.graph, ranks)
    if bench.grading.device == "cpu":
        timing, note = believable(timing, bench.long_round_us)
        record.notes += [f"the time of '{bench.case.name}' is the judge's: {note}"] if note else []
    if (why := bench.auditor.unranked_reason()) is None:
        return timing
    record.unranked_cases.append(bench.case.name)
    record.notes.append(f"not ranked: of '{bench.case.name}' {why}")
    return replace(timing, converged=False)
