"""`grade()`: the table of contents of a grading."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grader.judge.compile import CompileJob, start_compile
from grader.judge.gpu.lock import gpu_is_shared, gpu_lock
from grader.judge.kept_kernels import KeptKernels
from grader.judge.record import Device, Effort, Progress, ProgressCallback, Record
from grader.judge.score import scored, tensor_bound_share
from grader.judge.session import Session, greet
from grader.judge.verdict import Fault, SubmissionFault, decide, reason_of
from grader.problem import Problem, ProblemError
from grader.problem.spec import Case
from grader.report import (
    LOG_BYTES,
    CaseResult,
    PassedTests,
    Report,
    Rule,
    Verdict,
    escape,
    one_line,
)
from grader.sandbox.base import RunnerLimits, Sandbox, SandboxError
from grader.sandbox.pool import RunnerPool
from grader.submission import Submission

if TYPE_CHECKING:
    from grader.judge.grading import Grading

Kind = Literal["test", "benchmark"]
NOTED_S = 0.1
"""Compiling beyond the limit of a call is noted from here on."""


@dataclass(frozen=True)
class GradingRequest:
    """What is to be graded, and how."""

    problem: Problem
    submission: Submission
    sandbox: Sandbox
    device: Device
    benchmarks: bool
    effort: Effort
    progress: ProgressCallback
    passed: PassedTests | None = None
    kernels: KeptKernels | None = None

    @property
    def compiles_only(self) -> bool:
        """Whether the submission can be compiled here and not run."""
        return self.submission.language == "cuda" and self.device == "cpu"


def grade(
    problem: Problem,
    submission: Submission,
    *,
    sandbox: Sandbox,
    device: Device,
    seed: int | None = None,
    benchmarks: bool = True,
    effort: Effort = "full",
    progress: ProgressCallback = lambda _: None,
    passed: PassedTests | None = None,
    kernels: Path | None = None,
) -> Report:
    """Grade one submission: start a sandbox, load, test, benchmark, decide.

    `seed` repeats the inputs of an earlier grading; without it, a fresh secret one is drawn. A
    `quick` effort is for one's own code: its times are roughly what the runner reports, and never
    rank. Every fault of the submission is in the report. Raises `ProblemError` when the problem
    itself is broken, and `SandboxError` when no runner can be started or the sandbox loses it.

    A runner that was killed for no visible reason is graded once more on other inputs, since the
    host may have killed it for lack of memory; and so is one whose times the judge's clock does not
    bear out, since a busy host may have held up every round of an honest kernel. Both attempts
    share the time of one grading; there is no second one when less than half of it is left.

    Gradings without benchmarks may share a GPU. One that then runs out of time or memory is graded
    once more, alone. A `.cu` file is compiled while its grading waits for the GPU.

    With `passed`, the tests that the same submission has passed on the same device are not run
    again: its benchmarks follow, with the same seed. Raises ValueError if they are of another one.
    `kernels` names a file in which a grading without benchmarks leaves what was compiled, by Triton
    or of a `.cu` file, and where one with `passed` finds it.
    """
    if passed is not None:
        seed = _seed_of(passed, problem, submission, device)
    request = GradingRequest(
        problem,
        submission,
        sandbox,
        device,
        benchmarks,
        effort,
        progress,
        passed,
        KeptKernels(kernels) if kernels is not None else None,
    )
    progress(Progress("sandbox_start"))
    with start_compile(problem, submission, sandbox, device, request.kernels) as compilation:
        if not benchmarks and gpu_is_shared(device):
            compilation.wait()  # another may be timed meanwhile
        with gpu_lock(device, shared=not benchmarks):
            master, record = _attempts(request, compilation, seed)
            in_company = gpu_is_shared(device)
            if in_company:
                import torch

                torch.cuda.empty_cache()  # the grading that is timed next may need the memory
        if in_company and _may_differ_alone(record):
            progress(Progress("sandbox_start"))
            with gpu_lock(device):
                compilation.retry()
                master, record = _attempts(request, compilation, seed)
            record.notes.append("graded twice: the first time, others may have used the GPU too")
    try:
        return _report(request, master, record)
    except Exception as error:  # noqa: BLE001 - times of which no score can be computed
        _blame_judge(record, error)
        return _report(request, master, record)


@contextlib.contextmanager
def prestarted(sandbox: Sandbox, problem: Problem, device: Device) -> Iterator[Sandbox]:
    """Start a runner for `problem` now, while its grading is still being set up.

    Yields a sandbox for one `grade()` in this thread, which takes that runner; at the end an
    unused runner is stopped. The GPU is locked meanwhile. If another process holds it, nothing is
    started early, since that would disturb its measurements.
    """
    with contextlib.ExitStack() as stack:
        try:
            is_ours = stack.enter_context(gpu_lock(device, wait=False))
        except (SandboxError, OSError):  # `grade()` will meet the same error, and report it
            is_ours = False
        if is_ours:
            limits = RunnerLimits.of(problem.spec.limits)
            sandbox = stack.enter_context(RunnerPool(sandbox, limits, device, refill=False))
        yield sandbox


def _seed_of(passed: PassedTests, problem: Problem, submission: Submission, device: Device) -> int:
    of = passed.problem_digest, passed.submission_sha256, passed.device
    if of != (problem.digest, submission.sha256, device):
        raise ValueError("the passed tests are of another problem, submission or device")
    return passed.seed


def _attempts(
    request: GradingRequest, compilation: CompileJob, seed: int | None
) -> tuple[int, Record]:
    """Grade; once more if the host may be at fault. The seed of the inputs, and the record."""
    total_s = request.problem.spec.limits.total_s
    end = time.monotonic() + total_s

    def attempt(seed: int | None) -> tuple[int, Record]:
        master = secrets.randbits(53) if seed is None else seed
        return master, _attempt(request, compilation, master, end - time.monotonic())

    master, record = attempt(seed)
    end += record.stopped_s
    why = _why_again(record.faults)
    if why is not None and end - time.monotonic() > total_s / 2:
        request.progress(Progress("sandbox_start"))
        compilation.retry()
        # Its benchmarks have seen the inputs; who asked for a seed asked for these.
        master, record = attempt(seed if request.passed is None else None)
        record.notes.append(f"graded twice: the first time, {why}")
    return master, record


def _why_again(faults: list[Fault]) -> str | None:
    """What a busy host may have done to an honest submission; None if it is not that."""
    if faults and all(fault.killed for fault in faults):
        return "its runner was killed"
    if faults and all(fault.rule is Rule.TIME_CLAIM for fault in faults):
        return "the clock outside saw longer times than it claims"
    return None


def _may_differ_alone(record: Record) -> bool:
    """Whether the grading failed for lack of time or memory, which others may have used."""
    resources = (
        Verdict.TIME_LIMIT_EXCEEDED,
        Verdict.MEMORY_LIMIT_EXCEEDED,
        Verdict.JUDGE_ERROR,
    )
    return any(
        fault.verdict in resources or fault.killed or "out of memory" in fault.reason
        for fault in record.faults
    )


def _attempt(
    request: GradingRequest, compilation: CompileJob, master: int, left_s: float
) -> Record:
    """Grade once. Raises `ProblemError` and `SandboxError`; other errors become faults."""
    record = Record()
    with record.stage("total"):
        try:
            _run(request, compilation, master, left_s, record)
        except SubmissionFault as stop:
            record.faults += stop.faults
        except (ProblemError, SandboxError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours is never the submission's fault
            _blame_judge(record, error)
    return record


def _blame_judge(record: Record, error: Exception) -> None:
    record.faults.append(Fault(Verdict.JUDGE_ERROR, f"{type(error).__name__}: {error}"))
    record.notes.append("".join(traceback.format_exception(error, limit=-5)))


def _run(
    request: GradingRequest, compilation: CompileJob, master: int, left_s: float, record: Record
) -> None:
    """The stages in order: sandbox_start, load, baseline, test, benchmark."""
    problem, submission, device = request.problem, request.submission, request.device
    limits = problem.spec.limits
    start = time.monotonic()
    # Importing torch takes seconds; the runner does the same in parallel.
    threading.Thread(target=_import_torch, daemon=True).start()
    with request.sandbox.start(RunnerLimits.of(limits), device) as runner:
        session = Session(runner, limits.total_s, left_s, limits.compile_s)
        try:
            greeting = greet(session, submission, device)
            from grader.judge.grading import Grading

            grading = Grading(
                problem,
                session,
                device,
                master,
                record,
                request.effort,
                request.sandbox,
                tests=request.passed is None,
                benchmarks=request.benchmarks,
                kernels=request.kernels,
            )
            grading.meet(greeting)
            record.stages_s["sandbox_start"] = time.monotonic() - start
            _load(request, grading, compilation)
            if not request.compiles_only:
                _run_cases(request, grading)
            if (compiled_s := session.compiled_s) >= NOTED_S:
                record.notes.append(
                    f"the first calls took {compiled_s:.1f} s longer than {limits.call_s:g} s, of "
                    f"the {limits.compile_s:g} s that compiling may take"
                )
        finally:
            runner.stop()
            record.stopped_s = session.stopped_s
            record.log = compilation.log + runner.log()
            record.stages_s |= compilation.stages_s


def _import_torch() -> None:
    with contextlib.suppress(Exception):  # the import in `_run` raises it again
        import grader.judge.grading  # noqa: F401


def _load(request: GradingRequest, grading: Grading, compilation: CompileJob) -> None:
    """Load the submission; for a ranked grading, time the baselines first."""
    record = grading.record
    request.progress(Progress("load"))
    with record.stage("load"):
        library = compilation.library()
    # The compiler has ended, and no code of the submission runs yet: nothing disturbs the times.
    if request.benchmarks and request.effort == "full" and not request.compiles_only:
        _time_baselines(grading)
    with record.stage("load"):
        grading.load(request.submission, library)
    record.compiled_only = request.compiles_only


def _time_baselines(grading: Grading) -> None:
    with grading.record.stage("baseline"):
        grading.prepare()


def _run_cases(request: GradingRequest, grading: Grading) -> None:
    """Tests, then benchmarks. Running out of memory is blamed on the submission if it holds more
    than it may."""
    try:
        _test(request, grading)
        if request.benchmarks and not grading.record.faults:
            _benchmark(request, grading)
        elif not grading.record.faults:
            grading.keep_kernels()
    except (RuntimeError, ProblemError) as error:
        # The driver or an allocator has no memory left for the judge or the problem's own code.
        is_memory = isinstance(error, RuntimeError) or isinstance(error.__cause__, RuntimeError)
        if not is_memory or (fault := grading.out_of_memory_fault()) is None:
            raise
        raise SubmissionFault(fault) from error
    grading.session.expect_silence()


def _test(request: GradingRequest, grading: Grading) -> None:
    if request.passed is not None:
        grading.record.cases += request.passed.cases
        return
    with contextlib.closing(grading.reused_arena()) as reused:
        run = partial(grading.test, reused)
        try:
            _cases(run, grading.tests, "test", request.progress, grading.record)
        finally:
            grading.record.notes += grading.code.notes()


def _benchmark(request: GradingRequest, grading: Grading) -> None:
    from grader.judge.benchmark_case import benchmark

    record = grading.record
    if request.effort == "quick":  # the tests' results come first there
        _time_baselines(grading)
    cases = request.problem.cases("benchmark", request.device)
    with contextlib.closing(grading.benchmark_arena()) as reused:
        run = partial(benchmark, grading, reused)
        _cases(run, cases, "benchmark", request.progress, record)
    if grading.ranks:
        record.environment["overlaps_seen"] = grading.audit_tally.overlaps


def _cases(
    run: Callable[[Case], CaseResult],
    cases: list[Case],
    kind: Kind,
    progress: ProgressCallback,
    record: Record,
) -> None:
    """Run cases in order. After a fault that ends the grading, the rest is `not_run`."""
    with record.stage(kind):
        for index, case in enumerate(cases):
            progress(Progress(kind, case.name, index, len(cases)))
            try:
                result = run(case)
            except SubmissionFault as stop:
                record.cases.append(_failed(case, kind, stop))
                progress(Progress(kind, case.name, index, len(cases), stop.fault.verdict))
                record.cases += [_not_run(other, kind) for other in cases[index + 1 :]]
                raise
            record.cases.append(result)
            progress(Progress(kind, case.name, index, len(cases), result.status))


def _failed(case: Case, kind: Kind, stop: SubmissionFault) -> CaseResult:
    status: Any = stop.fault.verdict.value
    reason = reason_of(stop.faults)
    return CaseResult(name=case.name, kind=kind, params=case.params, status=status, reason=reason)


def _not_run(case: Case, kind: Kind) -> CaseResult:
    return CaseResult(name=case.name, kind=kind, params=case.params, status="not_run")


def _report(request: GradingRequest, master: int, record: Record) -> Report:
    """The record as a report, with its verdict and, if accepted on a GPU, its score."""
    problem, submission, device = request.problem, request.submission, request.device
    fault = decide(record.faults)
    verdict: Verdict | None = Verdict.ACCEPTED if fault is None else fault.verdict
    selected = problem.selected
    every_case = "every case" if selected is None else "the selected cases"
    reason = f"right on {every_case}" if fault is None else reason_of(record.faults)
    if fault is None and record.compiled_only:
        verdict, reason = None, "compiled, not run: no GPU"
    every = [*problem.spec.tests, *problem.spec.benchmarks]
    left_out = sum(case.device == "cuda" and device == "cpu" for case in every)
    if selected is not None:
        record.notes.append("not ranked: only selected cases ran; leave out --case to run all")
    elif left_out and verdict is not None:
        cases = "case needs" if left_out == 1 else "cases need"
        record.notes.append(f"{left_out} {cases} a GPU; not run here")
    report = Report(
        problem=problem.name,
        problem_digest=problem.digest,
        submission_sha256=submission.sha256,
        submission_name=escape(submission.name, 100),
        language=submission.language,
        verdict=verdict,
        rule=fault.rule if fault else None,
        reason=one_line(reason),
        device=device,
        gpu=record.environment.get("gpu"),
        sandbox=request.sandbox.describe(),
        cases=record.cases,
        environment=record.environment,
        stages_s={name: round(value, 3) for name, value in record.stages_s.items()},
        log=escape(record.log.decode("utf-8", "replace"), LOG_BYTES),
        notes=record.notes,
        seed=master,
    )
    if verdict is Verdict.ACCEPTED and device == "cuda" and selected is None:
        share = tensor_bound_share(problem)
        return scored(report, request.effort, share, record.unranked_cases)
    return report
