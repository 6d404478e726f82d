"""`profile()`: the resources of a submission's kernels, and what limits them.

For one's own code: unlike a grading, a profile trusts the submission. The profiler runs beside it
in the sandbox; its times are not checked by the outside clock, and outputs are not checked. The
data is still handled as hostile: size-limited, validated against a schema, and escaped when shown.
The trace, PTX and SASS are never parsed here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, prod

import torch

from grader.judge.compile import start_compile
from grader.judge.gpu.environment import gpu_name, measure_ceilings
from grader.judge.gpu.lock import gpu_lock
from grader.judge.grading import Grading
from grader.judge.memory.argument_sets import ArgumentSets, layout_of
from grader.judge.problem_code import seed_for
from grader.judge.profiling.kernel_report import (
    CODE_BYTES,
    PROFILE_DATA_BYTES,
    TRACE_BYTES,
    KernelProfile,
    Profile,
    ProfileArtifacts,
    ProfileData,
    ProfilingError,
    ReportedKernel,
    parse_profile_data,
)
from grader.judge.profiling.occupancy import Multiprocessor, current_multiprocessor, occupancy
from grader.judge.profiling.roofline import RooflinePoint, explain_bottleneck
from grader.judge.record import Device, Record
from grader.judge.session import Session, greet
from grader.judge.timing.plan import POLICY
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import LOG_BYTES, Report, escape, one_line
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.submission import Submission
from grader.wire import fixed_size_memfd

LIMIT_S = 400.0
"""Time limit of the profiler, the disassembler, and `ncu`, which starts a process, together."""
MIN_SETS, MAX_SETS = 4, 32
MEMORY_SHARE = 0.1
"""Share of the device memory for one copy of the sets; the judge holds three."""


@dataclass(frozen=True)
class ProfileRequest:
    """What is profiled, and where."""

    problem: Problem
    submission: Submission
    case: Case | None
    """A benchmark case; None to compile only."""
    sandbox: Sandbox
    device: Device


def profile(
    problem: Problem,
    submission: Submission,
    case: Case | None,
    *,
    sandbox: Sandbox,
    device: Device,
) -> tuple[Profile, ProfileArtifacts]:
    """Profile a submission on one benchmark case; without a case, only compile it.

    Raises `ProfilingError` when the submission fails, `ProblemError` when the problem is broken,
    and `SandboxError` when no runner can be started.
    """
    request = ProfileRequest(problem, submission, case, sandbox, device)
    limits, record = problem.spec.limits, Record()
    master = secrets.randbits(53)
    with gpu_lock(device), start_compile(problem, submission, sandbox, device) as compilation:
        runner = sandbox.start(RunnerLimits.of(limits), device)
        try:
            with runner:
                session = Session(runner, limits.total_s + LIMIT_S)
                greeting = greet(session, submission, device)
                grading = Grading(problem, session, device, master, record, sandbox=sandbox)
                grading.meet(greeting)
                grading.load(submission, compilation.library())
                grading.finish_precompiling()
                data, artifacts = _run_profiler(grading, case)
        except SubmissionFault as stop:
            log = compilation.log + runner.log()
            raise ProfilingError(_report(request, master, stop.fault, log)) from stop
    record.log = compilation.log + runner.log()
    return _profile(request, data, record), artifacts


def _run_profiler(grading: Grading, case: Case | None) -> tuple[ProfileData, ProfileArtifacts]:
    """Lend the case's argument sets to the runner, and have it profile a call on each."""
    if case is None:
        return _exchange(grading.session, run=False)
    template = grading.code.inputs(case, seed_for(grading.master, "profile", case.name))
    count = _set_count(layout_of(grading.problem, case, template).nbytes, grading.device)
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


def _set_count(each_bytes: int, device: Device) -> int:
    """Enough argument sets for a cold L2 cache, as far as memory allows."""
    if device == "cpu":
        return 1
    properties = torch.cuda.get_device_properties()
    cold = ceil(POLICY.cold_l2 * properties.L2_cache_size / each_bytes) + 1
    room = int(properties.total_memory * MEMORY_SHARE) // each_bytes
    return max(1, min(max(cold, MIN_SETS), MAX_SETS, room))


def _exchange(session: Session, *, run: bool) -> tuple[ProfileData, ProfileArtifacts]:
    with _memory_files([PROFILE_DATA_BYTES, TRACE_BYTES, CODE_BYTES, CODE_BYTES]) as fds:
        session.ask("profile", {"run": run}, LIMIT_S, "the profile", fds=tuple(fds))
        data = parse_profile_data(os.pread(fds[0], PROFILE_DATA_BYTES, 0).rstrip(b"\0"))
        sizes = (data.trace_bytes, data.ptx_bytes, data.sass_bytes)
        trace, ptx, sass = (os.pread(fd, n, 0) for fd, n in zip(fds[1:], sizes, strict=True))
    return data, ProfileArtifacts(escape(data.table, 4 * len(data.table)), trace, ptx, sass)


@contextmanager
def _memory_files(sizes: list[int]) -> Iterator[list[int]]:
    """Memory files of fixed sizes, for the runner to fill; closed at the end of the block."""
    fds: list[int] = []
    try:
        for nbytes in sizes:
            fds.append(fixed_size_memfd("profile", nbytes))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _profile(request: ProfileRequest, data: ProfileData, record: Record) -> Profile:
    problem, submission, case = request.problem, request.submission, request.case
    sm = current_multiprocessor() if request.device == "cuda" else None
    kernels = [kernel_profile(reported, data, sm) for reported in data.kernels]
    time_us = time_per_call_us(data)
    costed = case if problem.spec.cost is not None else None
    point = _roofline_point(problem, costed, data, time_us) if sm and costed and time_us else None
    calls = max(data.calls, 1)
    return Profile(
        problem=problem.name,
        submission_name=escape(submission.name, 100),
        submission_sha256=submission.sha256,
        language=submission.language,
        device=request.device,
        gpu=gpu_name(request.device),
        sandbox=request.sandbox.describe(),
        case=case.name if case else None,
        params=case.params if case else {},
        calls=data.calls,
        time_us=time_us,
        eager_us=data.eager_us / calls if data.eager_us else None,
        graph_us=data.graph_us / calls if data.graph_us else None,
        gb_per_s=problem.bytes(costed) / time_us / 1e3 if costed and time_us else None,
        tflop_per_s=problem.flops(costed) / time_us / 1e6 if costed and time_us else None,
        ceiling_gb_per_s=point.ceiling_bytes_per_s / 1e9 if point else None,
        ceiling_tflop_per_s=point.ceiling_flops_per_s / 1e12 if point else None,
        limit=explain_bottleneck(point, kernels) if point else _why_no_limit(case, costed),
        kernels=kernels,
        ncu=[c.model_copy(update={"name": one_line(c.name)}) for c in data.ncu],
        notes=[*record.notes, *(one_line(note) for note in data.notes)],
        log=escape(record.log.decode("utf-8", "replace"), LOG_BYTES),
        environment=record.environment,
    )


def time_per_call_us(data: ProfileData) -> float | None:
    """Per call, the time that the GPU was busy; if unknown, the shortest time of a call."""
    rounds_us = [data.busy_us] if data.busy_us else [data.graph_us, data.eager_us]
    known_us = [us for us in rounds_us if us]
    return min(known_us) / data.calls if known_us and data.calls else None


def kernel_profile(
    reported: ReportedKernel, data: ProfileData, sm: Multiprocessor | None
) -> KernelProfile:
    """A reported kernel, per call; with its occupancy if `sm` and its resources are known."""
    calls = max(data.calls, 1)
    total_us = sum(kernel.total_us for kernel in data.kernels) or 1.0
    kernel = KernelProfile(
        name=one_line(reported.name),
        launches=reported.launches / calls,
        time_us=reported.total_us / calls,
        share=reported.total_us / total_us,
        **reported.model_dump(exclude={"name", "launches", "total_us"}),
    )
    if sm is None or not reported.block or not reported.registers or reported.shared_bytes is None:
        return kernel
    fits = occupancy(sm, prod(reported.block), reported.registers, reported.shared_bytes)
    if not (reported.grid and fits.blocks):
        return kernel
    waves = prod(reported.grid) / (fits.blocks * sm.count)
    update = {"occupancy": fits.share, "occupancy_bound": fits.bound, "waves": waves}
    return kernel.model_copy(update=update)


def _roofline_point(
    problem: Problem, case: Case, data: ProfileData, time_us: float
) -> RooflinePoint:
    """The call on this GPU's roofline."""
    ceilings, unit = measure_ceilings(), problem.unit
    rounds_us = [us for us in (data.graph_us, data.eager_us) if us]
    elapsed_us = min(rounds_us, default=0.0) / data.calls
    return RooflinePoint(
        time_us=time_us,
        elapsed_us=max(elapsed_us, time_us),
        bytes_per_s=problem.bytes(case) / time_us * 1e6,
        flops_per_s=problem.flops(case) / time_us * 1e6,
        ceiling_bytes_per_s=ceilings.bytes_per_s,
        ceiling_flops_per_s=ceilings.tensor_per_s if unit == "tensor" else ceilings.fp32_per_s,
        unit=unit,
    )


def _why_no_limit(case: Case | None, costed: Case | None) -> str:
    if case is None:
        return "Compiled, not run: no GPU. Registers and code are those of the compiler."
    if costed is None:
        return "The problem states no cost, so nothing can be said about what limits a kernel."
    return "Nothing ran on a GPU, so nothing can be said about what limits a kernel there."


def _report(request: ProfileRequest, master: int, fault: Fault, log: bytes) -> Report:
    """The fault as a report, for `ProfilingError`."""
    return Report(
        problem=request.problem.name,
        problem_digest=request.problem.digest,
        submission_sha256=request.submission.sha256,
        submission_name=escape(request.submission.name, 100),
        language=request.submission.language,
        verdict=fault.verdict,
        rule=fault.rule,
        reason=one_line(fault.reason),
        device=request.device,
        gpu=gpu_name(request.device),
        sandbox=request.sandbox.describe(),
        log=escape(log.decode("utf-8", "replace"), LOG_BYTES),
        notes=["not profiled: the submission failed first"],
        seed=master,
    )
