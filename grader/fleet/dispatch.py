"""The dispatcher: it takes jobs from a source, runs them on an engine, and returns the results.

One thread does everything in rounds: poll the engine, send heartbeats and results, claim new jobs.
It keeps no durable state: when it dies, its leases expire and other dispatchers take the jobs.
While the source is unreachable, it keeps its jobs and retries.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from grader.db.engine import BoardError
from grader.fleet.grading_engine import Engine, NoFreeSlot, Task, TaskOutcome, WorkerSlot
from grader.fleet.job import Lease, LeaseKey, Via, Worker
from grader.fleet.ledger import Ledger
from grader.fleet.loaded_problems import ProblemFolders, changed_versions
from grader.judge import Progress
from grader.judge.record import Device
from grader.problem import Problem
from grader.report import Report, one_line

log = logging.getLogger(__name__)

LEASE_S = 30.0
"""The length of a lease, three heartbeats long."""

TICK_S = 0.5
"""Interval of claims and of progress reports."""

SWEEP_S = 5.0
"""Interval of sweeps for expired leases."""

ANNOUNCE_S = 10.0
"""Interval of announcements of the workers."""

MAX_RETRY_DELAY_S = 10.0
"""The longest delay between tries while the source is unreachable."""

NOT_RANKED = "not ranked: graded in the process sandbox, which suits only one's own code"


class JobSource(Protocol):
    """A source of jobs: `Ledger`, or `RemoteLedger` over HTTP.

    `Ledger` documents the methods. Each raises `BoardError` while the source is unreachable, and
    can then be called again, even if the first call took effect.
    """

    def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        problems: Mapping[str, str],
        gpu: str | None,
        languages: Collection[str] | None,
    ) -> Lease | None: ...

    def begin(self, key: LeaseKey) -> bool: ...

    def heartbeat(
        self, key: LeaseKey, lease_s: float, progress: Progress | None = None
    ) -> bool: ...

    def finish(self, key: LeaseKey, report: Report) -> int | None: ...

    def fail(self, key: LeaseKey, reason: str) -> bool: ...

    def give_back(self, key: LeaseKey) -> bool: ...

    def announce(self, worker: Worker) -> None: ...


def unrank_process_sandbox(report: Report) -> Report:
    """The report for a hosted board, which ranks no result of the process sandbox."""
    if not report.sandbox.startswith("process") or NOT_RANKED in report.notes:
        return report
    return report.model_copy(update={"ranked": False, "notes": [*report.notes, NOT_RANKED]})


class Dispatcher:
    """Keeps the slots of an engine busy with the jobs of a source.

    `problems` maps names to folders. Their versions at construction are the only ones it claims,
    until `set_problems` replaces them; raises `ProblemError` if one cannot be loaded. `look` is
    called every `ANNOUNCE_S` seconds for the problems to grade from then on; None keeps them. If
    the source is a `Ledger`, it also sweeps and holds jobs of outdated versions, even without
    slots. The caller closes the engine, after `drain`.
    """

    def __init__(
        self,
        source: JobSource,
        engine: Engine,
        problems: Mapping[str, Path],
        name: str,
        via: Via = "local",
        *,
        look: Callable[[], Mapping[str, Problem]] | None = None,
        lease_s: float = LEASE_S,
        tick_s: float = TICK_S,
    ) -> None:
        self._source = source
        self._engine = engine
        self._problems = {name: Problem.load(folder) for name, folder in problems.items()}
        self._look = look
        self._folders = ProblemFolders()
        self._name = name
        self._via: Via = via
        self._lease_s = lease_s
        self._tick_s = tick_s
        self._jobs: dict[int, _DispatchedJob] = {}
        """By task id. Each lease has a new one, since a submission can return while the task of its
        previous lease is still ending."""
        self._last_task_id = 0
        self._claims, self._sweeps, self._announcements = _Schedule(), _Schedule(), _Schedule()
        self._looks = _Schedule()
        self._drain_until: float | None = None
        self._thread = threading.Thread(target=self.run, name="grade-dispatcher", daemon=True)
        self.swept = 0
        """The number of expired leases that it has swept."""

    def start(self) -> None:
        """Run in a thread."""
        self._thread.start()

    def set_problems(self, problems: Mapping[str, Problem]) -> None:
        """Claim jobs of these versions from now on. Jobs that run go on."""
        self._problems = dict(problems)

    def drain(self, drain_s: float) -> None:
        """Claim no more jobs, wait up to `drain_s` seconds for running ones, and give back the
        rest. Returns after that."""
        self._drain_until = time.monotonic() + drain_s
        if self._thread.is_alive():
            self._thread.join()

    def run(self) -> None:
        """Run until drained."""
        while not self._is_drained():
            try:
                self._round()
            except Exception:  # a bug costs one round, not the whole dispatcher
                log.exception("the dispatcher %s", self._name)
                time.sleep(self._tick_s)
        for task_id, job in list(self._jobs.items()):
            self._give_up(task_id, job)
        self._folders.close()

    def _is_drained(self) -> bool:
        until = self._drain_until
        return until is not None and (not self._jobs or time.monotonic() >= until)

    def _round(self) -> None:
        self._poll(self._tick_s)
        for task_id, job in list(self._jobs.items()):
            if job.schedule.is_due(self._report_interval_s(job)):
                with job.schedule.attempt(f"report on submission {job.lease.submission_id}"):
                    self._report(task_id, job)
        if self._look is not None and self._looks.is_due(ANNOUNCE_S):
            with self._looks.attempt("look at the problems"):
                self._look_at_problems(self._look())
        if self._announcements.is_due(ANNOUNCE_S):
            with self._announcements.attempt("announce the workers"):
                for worker in self._workers():
                    self._source.announce(worker)
        if self._sweeps.is_due(SWEEP_S):
            with self._sweeps.attempt("sweep"):
                self._sweep()
        if self._drain_until is None and self._claims.is_due(0):
            with self._claims.attempt("claim a job"):
                self._claim()

    def _look_at_problems(self, found: Mapping[str, Problem]) -> None:
        for problem in changed_versions(self._problems, found).values():
            log.info("problem %s: now of version %s", problem.name, problem.digest[:12])
        self.set_problems(found)

    @property
    def _digests(self) -> dict[str, str]:
        """The versions that it claims."""
        return {name: problem.digest for name, problem in self._problems.items()}

    def _poll(self, timeout_s: float) -> None:
        for outcome in self._engine.poll(timeout_s):
            job = self._jobs.get(outcome.task_id)
            if job is not None:  # otherwise we have given the task up
                job.outcome = outcome

    def _report_interval_s(self, job: _DispatchedJob) -> float:
        if job.outcome is not None or not job.begun:
            return 0
        return self._tick_s if job.progress is not job.reported else self._lease_s / 3

    def _report(self, task_id: int, job: _DispatchedJob) -> None:
        """Report a job's progress or outcome. Drop the job if it is over or its lease is lost."""
        if not job.begun:
            # If the reply to an earlier `begin` was lost, `begin` fails and the heartbeat succeeds.
            job.begun = self._source.begin(job.lease) or self._source.heartbeat(
                job.lease, self._lease_s
            )
        leased = job.begun
        if leased and job.outcome is not None:
            self._finish(job.lease, job.outcome)
        elif leased:
            progress = job.progress
            news = None if progress is job.reported else progress
            leased = self._source.heartbeat(job.lease, self._lease_s, news)
            job.reported = progress
        if not leased:
            log.info("the lease of submission %d is lost", job.lease.submission_id)
            self._engine.cancel(task_id)
        if not leased or job.outcome is not None:
            del self._jobs[task_id]

    def _finish(self, lease: Lease, outcome: TaskOutcome) -> None:
        reason = outcome.failure
        if outcome.report is not None:
            reason = outcome.report.reason
            if outcome.report.verdict is not None and not outcome.is_system_failure:
                try:
                    report = unrank_process_sandbox(outcome.report)
                    if self._source.finish(lease, report) is None:
                        log.info("submission %d: the result came too late", lease.submission_id)
                    return
                except ValueError as error:
                    reason = f"its report was refused: {error}"
        log.warning("submission %d failed: %s", lease.submission_id, reason)
        self._source.fail(lease, one_line(reason or "no reason was given"))

    def _claim(self) -> None:
        """Claim a job for every free slot, while there are jobs."""
        kinds = sorted(self._slots_by_kind().items(), reverse=True)  # GPUs first
        for (device, gpu), slots in kinds:
            for _ in range(sum(slot.free for slot in slots)):
                lease = self._source.claim(
                    self._name,
                    lease_s=self._lease_s,
                    problems=self._digests,
                    gpu=gpu or None,
                    languages=("python",) if device == "cpu" else None,
                )
                if lease is None or not self._start_task(lease, device):
                    break

    def _start_task(self, lease: Lease, device: Device) -> bool:
        """Submit a job to the engine. False if it has no free slot any more."""
        problem = self._problems.get(lease.problem)
        if problem is None or problem.digest != lease.problem_digest:
            self._source.give_back(lease)  # it was replaced while the job was claimed
            return False
        self._last_task_id += 1
        job = _DispatchedJob(lease)
        task = Task(
            id=self._last_task_id,
            folder=self._folders.folder_of(problem),
            digest=lease.problem_digest,
            name=lease.name,
            language=lease.language,
            source=lease.source,
            device=device,
            gpu=lease.gpu,
            benchmarks=lease.benchmarks,
        )
        try:
            self._engine.submit(task, job.on_progress)
        except NoFreeSlot:
            self._source.give_back(lease)
            return False
        self._jobs[task.id] = job
        return True

    def _slots_by_kind(self) -> dict[tuple[Device, str], list[WorkerSlot]]:
        """The slots by device and GPU name (empty on a CPU). Skips GPU slots that are starting."""
        kinds: dict[tuple[Device, str], list[WorkerSlot]] = {}
        for slot in self._engine.slots():
            if slot.device == "cpu" or slot.gpu is not None:
                kinds.setdefault((slot.device, slot.gpu or ""), []).append(slot)
        return kinds

    def _workers(self) -> list[Worker]:
        kinds = self._slots_by_kind()
        return [
            Worker(
                name=one_line(
                    f"{self._name} {gpu or device}" if len(kinds) > 1 else self._name, 200
                ),
                via=self._via,
                device=device,
                gpu=gpu or None,
                slots=len(slots),
                problems=self._digests,
            )
            for (device, gpu), slots in kinds.items()
        ]

    def _sweep(self) -> None:
        # After an outage our own leases may have expired; heartbeats must renew them first.
        if isinstance(self._source, Ledger) and not any(
            job.schedule.failed for job in self._jobs.values()
        ):
            self.swept += self._source.sweep()
            self._source.hold_outdated(self._digests)

    def _give_up(self, task_id: int, job: _DispatchedJob) -> None:
        """Give back a job that is unfinished at the end of the drain."""
        with job.schedule.attempt(f"give back submission {job.lease.submission_id}"):
            if job.outcome is None and self._engine.cancel(task_id):
                self._source.give_back(job.lease)
            else:  # it has just ended
                self._poll(0)
                self._report(task_id, job)


@dataclass
class _DispatchedJob:
    """A leased job and its task."""

    lease: Lease
    begun: bool = False
    progress: Progress | None = None
    """The latest progress, set by a thread of the engine."""
    reported: Progress | None = None
    """The latest progress that the source has."""
    outcome: TaskOutcome | None = None
    schedule: _Schedule = field(default_factory=lambda: _Schedule())

    def on_progress(self, progress: Progress) -> None:
        self.progress = progress


class _Schedule:
    """When to repeat an action: at an interval, or with exponential backoff while it fails."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._retry_delay_s = 0.0

    @property
    def failed(self) -> bool:
        """Whether the last attempt failed."""
        return self._retry_delay_s > 0

    def is_due(self, interval_s: float) -> bool:
        return time.monotonic() - self._last >= (self._retry_delay_s if self.failed else interval_s)

    @contextmanager
    def attempt(self, action: str) -> Iterator[None]:
        """One attempt. Logs any exception, with a traceback if it is not the source's outage."""
        try:
            yield
        except Exception as error:
            self._retry_delay_s = min(2 * self._retry_delay_s or 0.5, MAX_RETRY_DELAY_S)
            unexpected = not isinstance(error, BoardError)
            log.warning("could not %s: %s", action, error, exc_info=unexpected)
        else:
            self._retry_delay_s = 0.0
        finally:
            self._last = time.monotonic()
