"""`grade()`: the table of contents of a grading."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from grader.judge.compile import Compilation, compiling
from grader.judge.gpu.lock import exclusive
from grader.judge.record import Device, Effort, Progress, Record, Watcher
from grader.judge.session import Session, ours_alone
from grader.judge.verdict import Fault, SubmissionFault, decide
from grader.problem import Problem, ProblemError
from grader.problem.spec import Case
from grader.report import (
    LOG_BYTES,
    CaseResult,
    Report,
    Verdict,
    escape,
    geometric_mean,
    one_line,
)
from grader.sandbox.base import RunnerLimits, Sandbox, SandboxError
from grader.submission import Submission

if TYPE_CHECKING:
    from grader.judge.grading import Grading


def grade(
    problem: Problem,
    submission: Submission,
    *,
    sandbox: Sandbox,
    device: Device,
    seed: int | None = None,
    benchmarks: bool = True,
    effort: Effort = "full",
    progress: Watcher = lambda _: None,
) -> Report:
    """Grade one submission: start a sandbox, load, test, benchmark, decide.

    `seed` repeats an earlier grading's inputs; without it a fresh secret one is drawn. Raises
    `ProblemError` when the problem itself is broken and `SandboxError` when no runner can be
    started, or the sandbox loses sight of it; every fault of the submission is in the report. A
    `quick` effort is for one's own code: times are the runner's word, roughly, and are not ranked.

    A runner that looks like one that killed itself may have been killed by another, such as the
    kernel of a host without memory. Unless more was wrong, it is graded once more, on other inputs;
    and twice is its own doing. Both together have the time of one grading, and where less than half
    of it is left there is no second.
    """

    total_s = problem.spec.limits.total_s

    def run() -> tuple[int, Record]:
        master = secrets.randbits(53) if seed is None else seed
        left_s = end - time.monotonic()
        given = (problem, submission, sandbox, device, master, benchmarks, effort, left_s, progress)
        return master, _recorded(partial(_run, *given))

    progress(Progress("sandbox_start"))
    with exclusive(device):
        end = time.monotonic() + total_s
        master, record = run()
        was_killed = record.faults and all(fault.killed for fault in record.faults)
        if is_twice := was_killed and end - time.monotonic() > total_s / 2:
            progress(Progress("sandbox_start"))
            master, record = run()
    if is_twice:
        record.notes.append("graded twice: the first time, its runner was killed")
    report = partial(_report, problem, submission, sandbox, device, master, effort, record)
    try:
        return report()
    except Exception as error:  # noqa: BLE001 - numbers that nothing can be made of
        _blame_us(record, error)
        return report()


def _recorded(run: Callable[[Record], None]) -> Record:
    """What is found, whichever way the run ends. Raises `ProblemError` and `SandboxError`."""
    record = Record()
    with record.stage("total"):
        try:
            run(record)
        except SubmissionFault as stop:
            record.faults.append(stop.fault)
        except (ProblemError, SandboxError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours is never the submission's fault
            _blame_us(record, error)
    return record


def _blame_us(record: Record, error: Exception) -> None:
    record.faults.append(Fault(Verdict.JUDGE_ERROR, f"{type(error).__name__}: {error}"))
    record.notes.append("".join(traceback.format_exception(error, limit=-5)))


def _run(
    problem: Problem,
    submission: Submission,
    sandbox: Sandbox,
    device: Device,
    master: int,
    benchmarks: bool,
    effort: Effort,
    left_s: float,
    progress: Watcher,
    record: Record,
) -> None:
    limits = problem.spec.limits
    start = time.monotonic()
    # The runner imports torch as soon as it is there; so do we, while it is on its way.
    threading.Thread(target=_import_torch, daemon=True).start()
    with (
        compiling(problem, submission, sandbox, device) as compilation,
        sandbox.start(RunnerLimits.of(limits), device) as runner,
    ):
        try:
            session = Session(runner, limits.total_s, left_s)
            greeting = greet(session, submission, device)
            from grader.judge.grading import Grading

            grading = Grading(problem, session, device, master, record, effort)
            grading.meet(greeting)
            record.stages_s["sandbox_start"] = time.monotonic() - start
            _examine(grading, submission, compilation, benchmarks, effort, progress)
        finally:
            runner.stop()
            record.log = compilation.log + runner.log()
            record.stages_s |= compilation.stages_s


def _import_torch() -> None:
    with contextlib.suppress(Exception):  # told by whoever needs it
        import grader.judge.grading  # noqa: F401


def _examine(
    grading: Grading,
    submission: Submission,
    compilation: Compilation,
    benchmarks: bool,
    effort: Effort,
    progress: Watcher,
) -> None:
    """Everything after the runner is ready: baselines, load, tests, benchmarks."""
    from grader.judge.benchmark import benchmark

    record, problem, device = grading.record, grading.problem, grading.device
    only_compile = submission.language == "cuda" and device == "cpu"
    benchmarks = benchmarks and not only_compile
    progress(Progress("load"))
    with record.stage("load"):
        library = compilation.library()
    if benchmarks and effort == "full":  # now that the compiler has ended, too
        with record.stage("baseline"):
            grading.prepare()
    with record.stage("load"):
        grading.load(submission, library)
    if only_compile:
        record.loaded_only = True
        return
    try:
        with contextlib.closing(grading.reused_arena()) as reused:
            tests = problem.cases("test", device)
            _cases(partial(grading.test, reused), tests, "test", progress, record)
        if benchmarks and not record.faults:
            if effort == "quick":  # for one's own code, whose first answer shall come first
                with record.stage("baseline"):
                    grading.prepare()
            cases = problem.cases("benchmark", device)
            _cases(partial(benchmark, grading), cases, "benchmark", progress, record)
            if grading.ranks:
                record.environment["overlaps_seen"] = grading.audit_log.overlaps
    except (RuntimeError, ProblemError) as error:
        # A driver or an allocator that has no memory left for us, or for the problem's own code.
        is_memory = isinstance(error, RuntimeError) or isinstance(error.__cause__, RuntimeError)
        if not is_memory or (fault := grading.hoarding_at_last()) is None:
            raise
        raise SubmissionFault(fault) from error
    grading.session.expect_silence()


def greet(session: Session, submission: Submission, device: Device) -> int:
    """Tell the runner to import what this submission will need; the request's number."""
    request = {"device": device, "triton": submission.uses_triton}
    with ours_alone(session):
        return session.send("hello", request, "starting up")


def _cases(
    run: Callable[[Case], CaseResult],
    cases: list[Case],
    kind: Literal["test", "benchmark"],
    progress: Watcher,
    record: Record,
) -> None:
    """Run cases in order; a fault that ends the grading leaves the rest as not run."""
    with record.stage(kind):
        for index, case in enumerate(cases):
            progress(Progress(kind, case.name, index, len(cases)))
            try:
                result = run(case)
            except SubmissionFault as stop:
                record.cases.append(_failed(case, kind, stop.fault))
                progress(Progress(kind, case.name, index, len(cases), stop.fault.verdict))
                record.cases += [_not_run(other, kind) for other in cases[index + 1 :]]
                raise
            record.cases.append(result)
            progress(Progress(kind, case.name, index, len(cases), result.status))


def _failed(case: Case, kind: Literal["test", "benchmark"], fault: Fault) -> CaseResult:
    status: Any = fault.verdict.value
    return CaseResult(
        name=case.name, kind=kind, params=case.params, status=status, reason=fault.reason
    )


def _not_run(case: Case, kind: Literal["test", "benchmark"]) -> CaseResult:
    return CaseResult(name=case.name, kind=kind, params=case.params, status="not_run")


def _report(
    problem: Problem,
    submission: Submission,
    sandbox: Sandbox,
    device: Device,
    master: int,
    effort: Effort,
    record: Record,
) -> Report:
    fault = decide(record.faults)
    verdict: Verdict | None = Verdict.ACCEPTED if fault is None else fault.verdict
    reason = "right on every case" if fault is None else fault.reason
    if fault is None and record.loaded_only:
        verdict, reason = None, "compiled, not run: no GPU"
    every = [*problem.spec.tests, *problem.spec.benchmarks]
    left_out = sum(case.device == "cuda" and device == "cpu" for case in every)
    if left_out and verdict is not None:
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
        sandbox=sandbox.describe(),
        cases=record.cases,
        environment=record.environment,
        stages_s={name: round(value, 3) for name, value in record.stages_s.items()},
        log=escape(record.log.decode("utf-8", "replace"), LOG_BYTES),
        notes=record.notes,
        seed=master,
    )
    if verdict is Verdict.ACCEPTED and device == "cuda":
        return _scored(report, effort, _heavy_share(problem), record.unseen)
    return report


KNOWN_SHARE = 0.002
"""A score that is ranked is known to ± this share of itself."""
BETWEEN_RUNS = 0.002
"""A score's interval reaches at least this share to both sides: a grading sees its own rounds only,
and two gradings of one file seldom lie more than twice that apart (docs/measurements.md)."""
BETWEEN_LEVELS = 0.0045
"""The same where all cases keep the tensor cores busy: under that load a chip may tick slower, or
not, by 0.9 %, and stay there for all of a grading. Nothing seen from outside tells which it was."""


def _heavy_share(problem: Problem) -> float:
    """The share of the benchmark cases that tensor cores limit."""
    from grader.judge.timing.plan import is_tensor_bound

    cases = problem.cases("benchmark", "cuda")
    return sum(is_tensor_bound(problem, case) for case in cases) / max(1, len(cases))


def _scored(
    report: Report, effort: Effort, heavy_share: float, unseen: Sequence[str] = ()
) -> Report:
    """Score an accepted GPU grading: geometric means over its benchmark cases, of which
    `heavy_share` keep the tensor cores busy. It is ranked if all of them were measured as well as
    ranking asks; why those `unseen` were not is noted already."""
    from grader.stats import Middle, middle, product_interval, widened

    timed = [c for c in report.cases if c.kind == "benchmark" and c.time_us is not None]
    if not timed:
        return report
    loose = [c.name for c in timed if not c.converged]
    notes = [*report.notes]
    unsettled = ", ".join(name for name in loose if name not in unseen)
    if unsettled and effort == "full":
        notes.append(f"not ranked: the time of {unsettled} did not settle; submit it again")
    names = set.intersection(*(set(c.baseline_us) for c in timed))
    score_us = geometric_mean([c.time_us for c in timed if c.time_us is not None])
    within = product_interval([Middle(c.time_us, c.ci_us) for c in timed if c.time_us and c.ci_us])
    # What the rounds leave open; `ci_us` may be wider, for what the outside clock does.
    rounds = product_interval([middle(c.round_us) for c in timed])
    doubt = (rounds[1] - rounds[0]) / 2 / score_us
    between = BETWEEN_RUNS + (BETWEEN_LEVELS - BETWEEN_RUNS) * heavy_share
    if not loose and doubt > KNOWN_SHARE and effort == "full":
        notes.append(f"not ranked: the score is known to ±{doubt:.2%} only; submit it again")
    return report.model_copy(
        update={
            "score_us": score_us,
            "score_ci_us": widened(within, score_us, between),
            "speedup": {
                name: geometric_mean([c.baseline_us[name] / (c.time_us or 1.0) for c in timed])
                for name in sorted(names)
            },
            "ranked": effort == "full" and not loose and doubt <= KNOWN_SHARE,
            "notes": notes,
        }
    )
