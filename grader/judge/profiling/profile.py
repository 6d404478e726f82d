"""`profile()`: what a submission's kernels are made of, and what limits them.

For one's own code. Unlike a grading it believes the submission: the profiler runs beside it, in the
sandbox, and nothing it tells is held against a clock of ours or checked for right outputs. What
comes back is still treated as a stranger's: capped, checked against a schema, escaped when shown,
and the trace, PTX and SASS are bytes that nobody here looks into.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, prod

import torch

from grader.judge.compile import compiling
from grader.judge.gpu.environment import gpu_name, measure_ceilings
from grader.judge.gpu.lock import exclusive
from grader.judge.grade import greet
from grader.judge.grading import Grading
from grader.judge.memory.argument_sets import ArgumentSets, layout_of
from grader.judge.problem_code import seed_for
from grader.judge.profiling.occupancy import Multiprocessor, occupancy, this_gpu
from grader.judge.profiling.report import (
    CODE_BYTES,
    FACTS_BYTES,
    TRACE_BYTES,
    Bulk,
    Facts,
    Kernel,
    KernelClaim,
    Profile,
    Unprofiled,
    read_facts,
)
from grader.judge.profiling.roofline import Rates, explain
from grader.judge.record import Device, Record
from grader.judge.session import Session
from grader.judge.timing.plan import POLICY
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import LOG_BYTES, Report, escape, one_line
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.submission import Submission
from grader.wire import fixed_size_memfd

LIMIT_S = 400.0
"""For the profile itself: the profiler, the disassembler, and `ncu`, which starts a process."""
LEAST_SETS, MOST_SETS = 4, 32
MEMORY_SHARE = 0.1
"""Of the device memory, for one copy of the sets; the judge holds three."""


@dataclass(frozen=True)
class Subject:
    """What is profiled, and where."""

    problem: Problem
    submission: Submission
    case: Case | None
    """A benchmark case; None to look only at what the submission compiles to."""
    sandbox: Sandbox
    device: Device


def profile(
    problem: Problem,
    submission: Submission,
    case: Case | None,
    *,
    sandbox: Sandbox,
    device: Device,
) -> tuple[Profile, Bulk]:
    """Profile a submission on one benchmark case; without one, look only at what it compiles to.

    Raises `Unprofiled` when the submission fails, `ProblemError` when the problem is broken, and
    `SandboxError` when no runner can be started.
    """
    subject = Subject(problem, submission, case, sandbox, device)
    limits, record = problem.spec.limits, Record()
    master = secrets.randbits(53)
    with exclusive(device), compiling(problem, submission, sandbox, device) as compilation:
        runner = sandbox.start(RunnerLimits.of(limits), device)
        try:
            with runner:
                session = Session(runner, limits.total_s + LIMIT_S)
                greeting = greet(session, submission, device)
                grading = Grading(problem, session, device, master, record)
                grading.meet(greeting)
                grading.load(submission, compilation.library())
                grading.finish_precompiling()
                facts, bulk = _ask(grading, case)
        except SubmissionFault as stop:
            log = compilation.log + runner.log()
            raise Unprofiled(_report(subject, master, stop.fault, log)) from stop
    record.log = compilation.log + runner.log()
    return _profile(subject, facts, record), bulk


def _ask(grading: Grading, case: Case | None) -> tuple[Facts, Bulk]:
    """Lend the case's sets, and files to fill; read what comes."""
    if case is None:
        return _exchange(grading.session, run=False)
    template = grading.code.inputs(case, seed_for(grading.master, "profile", case.name))
    count = _sets(layout_of(grading.problem, case, template).nbytes, grading.device)
    sets = ArgumentSets(grading.problem, case, template, count, grading.device)
    try:
        for index in range(count):
            seed = seed_for(grading.master, "profile", case.name, index)
            sets.fill(index, grading.code.inputs(case, seed))
        sets.publish(list(range(sets.count)))
        grading.lend(sets)
        return _exchange(grading.session, run=True)
    finally:
        sets.close()


def _sets(each_bytes: int, device: Device) -> int:
    """Enough sets for a cold L2 cache, as far as memory allows."""
    if device == "cpu":
        return 1
    properties = torch.cuda.get_device_properties()
    cold = ceil(POLICY.cold_l2 * properties.L2_cache_size / each_bytes) + 1
    room = int(properties.total_memory * MEMORY_SHARE) // each_bytes
    return max(1, min(max(cold, LEAST_SETS), MOST_SETS, room))


def _exchange(session: Session, *, run: bool) -> tuple[Facts, Bulk]:
    with _files([FACTS_BYTES, TRACE_BYTES, CODE_BYTES, CODE_BYTES]) as fds:
        session.ask("profile", {"run": run}, LIMIT_S, "the profile", fds=tuple(fds))
        facts = read_facts(os.pread(fds[0], FACTS_BYTES, 0).rstrip(b"\0"))
        sizes = (facts.trace_bytes, facts.ptx_bytes, facts.sass_bytes)
        trace, ptx, sass = (os.pread(fd, n, 0) for fd, n in zip(fds[1:], sizes, strict=True))
    return facts, Bulk(escape(facts.table, 4 * len(facts.table)), trace, ptx, sass)


@contextmanager
def _files(sizes: list[int]) -> Iterator[list[int]]:
    """Memory files to be filled; they are closed at the end."""
    fds: list[int] = []
    try:
        for nbytes in sizes:
            fds.append(fixed_size_memfd("profile", nbytes))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _profile(subject: Subject, facts: Facts, record: Record) -> Profile:
    problem, submission, case = subject.problem, subject.submission, subject.case
    sm = this_gpu() if subject.device == "cuda" else None
    kernels = [kernel_of(claim, facts, sm) for claim in facts.kernels]
    time_us = time_per_call_us(facts)
    rates = _rates(problem, case, facts, time_us) if sm and case and time_us else None
    calls = max(facts.calls, 1)
    return Profile(
        problem=problem.name,
        submission_name=escape(submission.name, 100),
        submission_sha256=submission.sha256,
        language=submission.language,
        device=subject.device,
        gpu=gpu_name(subject.device),
        sandbox=subject.sandbox.describe(),
        case=case.name if case else None,
        params=case.params if case else {},
        calls=facts.calls,
        time_us=time_us,
        eager_us=facts.eager_us / calls if facts.eager_us else None,
        graph_us=facts.graph_us / calls if facts.graph_us else None,
        gb_per_s=problem.bytes(case) / time_us / 1e3 if case and time_us else None,
        tflop_per_s=problem.flops(case) / time_us / 1e6 if case and time_us else None,
        ceiling_gb_per_s=rates.most_bytes_per_s / 1e9 if rates else None,
        ceiling_tflop_per_s=rates.most_flops_per_s / 1e12 if rates else None,
        limit=explain(rates, kernels) if rates else _why_not(case),
        kernels=kernels,
        ncu=[c.model_copy(update={"name": one_line(c.name)}) for c in facts.ncu],
        notes=[*record.notes, *(one_line(note) for note in facts.notes)],
        log=escape(record.log.decode("utf-8", "replace"), LOG_BYTES),
        environment=record.environment,
    )


def time_per_call_us(facts: Facts) -> float | None:
    """Per call, the time that the GPU worked; where nobody saw it work, the time of a call."""
    rounds_us = [facts.busy_us] if facts.busy_us else [facts.graph_us, facts.eager_us]
    known_us = [us for us in rounds_us if us]
    return min(known_us) / facts.calls if known_us and facts.calls else None


def kernel_of(claim: KernelClaim, facts: Facts, sm: Multiprocessor | None) -> Kernel:
    calls = max(facts.calls, 1)
    total_us = sum(kernel.total_us for kernel in facts.kernels) or 1.0
    kernel = Kernel(
        name=one_line(claim.name),
        launches=claim.launches / calls,
        time_us=claim.total_us / calls,
        share=claim.total_us / total_us,
        **claim.model_dump(exclude={"name", "launches", "total_us"}),
    )
    if sm is None or not claim.block or not claim.registers or claim.shared_bytes is None:
        return kernel
    fits = occupancy(sm, prod(claim.block), claim.registers, claim.shared_bytes)
    if not (claim.grid and fits.blocks):
        return kernel
    waves = prod(claim.grid) / (fits.blocks * sm.count)
    update = {"occupancy": fits.share, "occupancy_bound": fits.bound, "waves": waves}
    return kernel.model_copy(update=update)


def _rates(problem: Problem, case: Case, facts: Facts, time_us: float) -> Rates:
    """The call against this GPU's ceilings."""
    ceilings, unit = measure_ceilings(), problem.spec.cost.unit
    rounds_us = [us for us in (facts.graph_us, facts.eager_us) if us]
    elapsed_us = min(rounds_us, default=0.0) / facts.calls
    return Rates(
        time_us=time_us,
        elapsed_us=max(elapsed_us, time_us),
        bytes_per_s=problem.bytes(case) / time_us * 1e6,
        flops_per_s=problem.flops(case) / time_us * 1e6,
        most_bytes_per_s=ceilings.bytes_per_s,
        most_flops_per_s=ceilings.tensor_per_s if unit == "tensor" else ceilings.fp32_per_s,
        unit=unit,
    )


def _why_not(case: Case | None) -> str:
    if case is None:
        return "Compiled, not run: no GPU. Registers and code are those of the compiler."
    return "Nothing ran on a GPU, so nothing can be said about what limits a kernel there."


def _report(subject: Subject, master: int, fault: Fault, log: bytes) -> Report:
    """The fault as a report, for `Unprofiled`."""
    return Report(
        problem=subject.problem.name,
        problem_digest=subject.problem.digest,
        submission_sha256=subject.submission.sha256,
        submission_name=escape(subject.submission.name, 100),
        language=subject.submission.language,
        verdict=fault.verdict,
        rule=fault.rule,
        reason=one_line(fault.reason),
        device=subject.device,
        gpu=gpu_name(subject.device),
        sandbox=subject.sandbox.describe(),
        log=escape(log.decode("utf-8", "replace"), LOG_BYTES),
        notes=["not profiled: the submission failed first"],
        seed=master,
    )
