"""The dispatcher: takes jobs from a source, gives them to an engine, and brings back the results.

One thread does it all, round by round: hear what has ended, speak of what we have, take what is
next. Nothing that it holds is the truth: when it dies, its leases expire and others get the jobs.
While the source is away, it keeps what it has and tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from grader.db.engine import BoardError
from grader.fleet.engine import Engine, NoSlot, Outcome, Slot, Task
from grader.fleet.job import Lease, Ticket, Via, Worker
from grader.fleet.ledger import Ledger
from grader.judge import Progress
from grader.judge.record import Device
from grader.problem import Problem
from grader.report import Report, one_line

log = logging.getLogger(__name__)

LEASE_S = 30.0
"""How long a job is ours without a word. Three heartbeats fit into it."""

TICK_S = 0.5
"""How often the dispatcher looks for new jobs, and tells where a grading is."""

SWEEP_S = 5.0
"""How often expired leases are taken back."""

SEEN_S = 10.0
"""How often the dispatcher says that it is there."""

LONGEST_PAUSE_S = 10.0
"""Between two tries at a source that is away."""

NOT_RANKED = "not ranked: graded in the process sandbox, which suits only one's own code"


class Source(Protocol):
    """Where jobs come from and results go: `Ledger`, or `RemoteLedger` over HTTP.

    What each method does stands in `Ledger`. All raise `BoardError` when the source is away, and
    may be called again then, whether or not the call had come through.
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

    def begin(self, lease: Ticket) -> bool: ...

    def heartbeat(
        self, lease: Ticket, lease_s: float, progress: Progress | None = None
    ) -> bool: ...

    def finish(self, lease: Ticket, report: Report) -> int | None: ...

    def fail(self, lease: Ticket, reason: str) -> bool: ...

    def give_back(self, lease: Ticket) -> bool: ...

    def seen(self, worker: Worker) -> None: ...


def hosted(report: Report) -> Report:
    """A report as a hosted board takes it: ranked only where strangers' code was fenced in."""
    if not report.sandbox.startswith("process") or NOT_RANKED in report.notes:
        return report
    return report.model_copy(update={"ranked": False, "notes": [*report.notes, NOT_RANKED]})


class Dispatcher:
    """Keeps the slots of an engine busy with the jobs of a source.

    `problems` are folders by the problem's name; their versions now are the only ones it takes.
    Raises `ProblemError` when one cannot be loaded. On a `Ledger` it also sweeps, with an engine
    that has no slots too. The engine is the caller's to close, after `drain`.
    """

    def __init__(
        self,
        source: Source,
        engine: Engine,
        problems: Mapping[str, Path],
        name: str,
        via: Via = "local",
        *,
        lease_s: float = LEASE_S,
        tick_s: float = TICK_S,
    ) -> None:
        self._source = source
        self._engine = engine
        self._folders = {problem: folder.absolute() for problem, folder in problems.items()}
        self._digests = {problem: Problem.load(path).digest for problem, path in problems.items()}
        self._name = name
        self._via: Via = via
        self._lease_s = lease_s
        self._tick_s = tick_s
        self._held: dict[int, _Held] = {}
        """What we have, by the number of its task: a new one for each lease, since a submission may
        come back while the task of its last lease still ends."""
        self._tasks = 0
        self._claims, self._sweeps, self._signs = _Tries(), _Tries(), _Tries()
        self._drain_until: float | None = None
        self._thread = threading.Thread(target=self.run, name="grade-dispatcher", daemon=True)
        self.swept = 0
        """How many expired leases were taken back so far."""

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def drain(self, drain_s: float) -> None:
        """Take no more jobs, wait for those that run for at most `drain_s` seconds, and give back
        the rest. Returns when all that is done."""
        self._drain_until = time.monotonic() + drain_s
        if self._thread.is_alive():
            self._thread.join()

    def run(self) -> None:
        """Work until drained."""
        while not self._is_over():
            try:
                self._round()
            except Exception:  # a bug of ours shall cost a round, and not the fleet
                log.exception("the dispatcher %s", self._name)
                time.sleep(self._tick_s)
        for number, held in list(self._held.items()):
            self._give_up(number, held)

    def _is_over(self) -> bool:
        until = self._drain_until
        return until is not None and (not self._held or time.monotonic() >= until)

    def _round(self) -> None:
        self._hear(self._tick_s)
        for number, held in list(self._held.items()):
            if held.tries.is_due(self._patience_s(held)):
                with held.tries.once(f"speak of submission {held.lease.submission_id}"):
                    self._attend(number, held)
        if self._signs.is_due(SEEN_S):
            with self._signs.once("say that we are there"):
                for worker in self._workers():
                    self._source.seen(worker)
        if self._sweeps.is_due(SWEEP_S):
            with self._sweeps.once("sweep"):
                self._sweep()
        if self._drain_until is None and self._claims.is_due(0):
            with self._claims.once("claim a job"):
                self._claim()

    def _hear(self, timeout_s: float) -> None:
        """Note what has ended."""
        for outcome in self._engine.poll(timeout_s):
            held = self._held.get(outcome.task_id)
            if held is not None:  # else it is of a task that we gave up
                held.outcome = outcome

    def _patience_s(self, held: _Held) -> float:
        """How long to be silent about a job."""
        if held.outcome is not None or not held.begun:
            return 0
        return self._tick_s if held.news is not held.told else self._lease_s / 3

    def _attend(self, number: int, held: _Held) -> None:
        """Say what there is to say of one job, and let go of it when it is over."""
        if not held.begun:
            # One whose answer was lost has begun already; the heartbeat tells whose it is.
            held.begun = self._source.begin(held.lease) or self._source.heartbeat(
                held.lease, self._lease_s
            )
        ours = held.begun
        if ours and held.outcome is not None:
            self._settle(held.lease, held.outcome)
        elif ours:
            news = held.news
            told = None if news is held.told else news
            ours = self._source.heartbeat(held.lease, self._lease_s, told)
            held.told = news
        if not ours:
            log.info("submission %d is no longer ours", held.lease.submission_id)
            self._engine.cancel(number)
        if not ours or held.outcome is not None:
            del self._held[number]

    def _settle(self, lease: Lease, outcome: Outcome) -> None:
        """Tell how a grading ended."""
        why = outcome.failure
        if outcome.report is not None:
            why = outcome.report.reason
            if outcome.report.verdict is not None and not outcome.is_ours:
                try:
                    if self._source.finish(lease, hosted(outcome.report)) is None:
                        log.info("submission %d: the result came too late", lease.submission_id)
                    return
                except ValueError as error:
                    why = f"its report was refused: {error}"
        log.warning("submission %d failed: %s", lease.submission_id, why)
        self._source.fail(lease, one_line(why or "no reason was given"))

    def _claim(self) -> None:
        """A job for every free slot, as far as there are jobs."""
        for (device, gpu), slots in sorted(self._kinds().items(), reverse=True):  # GPUs first
            for _ in range(sum(slot.free for slot in slots)):
                lease = self._source.claim(
                    self._name,
                    lease_s=self._lease_s,
                    problems=self._digests,
                    gpu=gpu or None,
                    languages=("python",) if device == "cpu" else None,
                )
                if lease is None or not self._place(lease, device):
                    break

    def _place(self, lease: Lease, device: Device) -> bool:
        """Give a job to the engine; False when it has no slot after all."""
        self._tasks += 1
        held = _Held(lease)
        task = Task(
            id=self._tasks,
            folder=self._folders[lease.problem],
            digest=lease.problem_digest,
            name=lease.name,
            language=lease.language,
            source=lease.source,
            device=device,
            gpu=lease.gpu,
        )
        try:
            self._engine.submit(task, held.hear)
        except NoSlot:
            self._source.give_back(lease)
            return False
        self._held[task.id] = held
        return True

    def _kinds(self) -> dict[tuple[Device, str], list[Slot]]:
        """The slots by device and GPU name (empty on a CPU), without GPUs that still start."""
        kinds: dict[tuple[Device, str], list[Slot]] = {}
        for slot in self._engine.slots():
            if slot.device == "cpu" or slot.gpu is not None:
                kinds.setdefault((slot.device, slot.gpu or ""), []).append(slot)
        return kinds

    def _workers(self) -> list[Worker]:
        kinds = self._kinds()
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
        # Where the database was away, our own leases may have expired: they are to be kept first.
        if isinstance(self._source, Ledger) and not any(
            h.tries.failed for h in self._held.values()
        ):
            self.swept += self._source.sweep()
            self._source.hold_changed(self._digests)

    def _give_up(self, number: int, held: _Held) -> None:
        """The last word on a job that is not done when we end."""
        with held.tries.once(f"give back submission {held.lease.submission_id}"):
            if held.outcome is None and self._engine.cancel(number):
                self._source.give_back(held.lease)
            else:  # it ended just now
                self._hear(0)
                self._attend(number, held)


@dataclass
class _Held:
    """A job that we have."""

    lease: Lease
    begun: bool = False
    news: Progress | None = None
    """Where the grading is; the engine's threads say it."""
    told: Progress | None = None
    """What the source knows of that."""
    outcome: Outcome | None = None
    """How it ended, until the source knows."""
    tries: _Tries = field(default_factory=lambda: _Tries())

    def hear(self, progress: Progress) -> None:
        self.news = progress


class _Tries:
    """When to do something again: every so often, and ever more rarely while it fails."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._pause_s = 0.0

    @property
    def failed(self) -> bool:
        """Whether the last try did."""
        return self._pause_s > 0

    def is_due(self, every_s: float) -> bool:
        return time.monotonic() - self._last >= (self._pause_s if self.failed else every_s)

    @contextmanager
    def once(self, what: str) -> Iterator[None]:
        """One try. A source that is away is logged, and so is whatever else goes wrong."""
        try:
            yield
        except Exception as error:
            self._pause_s = min(2 * self._pause_s or 0.5, LONGEST_PAUSE_S)
            ours = not isinstance(error, BoardError)
            log.warning("could not %s: %s", what, error, exc_info=ours)
        else:
            self._pause_s = 0.0
        finally:
            self._last = time.monotonic()
