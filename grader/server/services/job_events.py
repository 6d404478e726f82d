"""Change events of jobs: one poller of the database for all listeners of this process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync

from grader.board import BoardError
from grader.fleet import Job, Ledger, State
from grader.report import one_line

log = logging.getLogger(__name__)

FINAL_STATES = (State.DONE, State.CANCELLED)


class JobEvents:
    """Polls the ledger for changed jobs while there are listeners.

    It belongs to one event loop. Other threads may only call `close` and read `listeners`.
    """

    def __init__(
        self, ledger: Ledger, poll_s: float, listeners: int, listeners_per_address: int
    ) -> None:
        self._ledger = ledger
        self._poll_s = poll_s
        self._max_listeners = listeners
        self._max_listeners_per_address = listeners_per_address
        self._addresses: Counter[str] = Counter()
        self._queues: dict[int, set[asyncio.Queue[Job | None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.listeners = 0
        """The number of listeners."""

    def is_full_for(self, address: str) -> bool:
        """Whether no further listener is accepted from this address."""
        if self._closed or self.listeners >= self._max_listeners:
            return True
        return self._addresses.get(address, 0) >= self._max_listeners_per_address

    def close(self) -> None:
        """End every stream soon, as the server stops."""
        self._closed = True

    async def follow(self, submission_id: int, address: str) -> AsyncIterator[Job]:
        """Yield the job of a submission now and after each change, until its state is final or the
        server stops."""
        queue: asyncio.Queue[Job | None] = asyncio.Queue()
        self.listeners += 1
        self._addresses[address] += 1
        self._queues.setdefault(submission_id, set()).add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        try:
            last = None
            while (job := await queue.get()) is not None:
                shown = (job.state, job.position, job.progress)
                if shown != last:
                    last = shown
                    yield job
                if job.state in FINAL_STATES:
                    return
        finally:
            self.listeners -= 1
            self._addresses[address] -= 1
            self._addresses += Counter()  # drops entries that are 0
            self._queues[submission_id].discard(queue)
            if not self._queues[submission_id]:
                del self._queues[submission_id]

    async def _poll(self) -> None:
        """Poll and send changes while there are listeners."""
        try:
            while self._queues and not self._closed:
                try:
                    jobs = await run_sync(self._read, set(self._queues))
                except BoardError as error:
                    log.warning("job events wait for the database: %s", one_line(str(error)))
                    jobs = {}
                for submission_id, job in jobs.items():
                    for queue in self._queues.get(submission_id, ()):
                        queue.put_nowait(job)
                await asyncio.sleep(self._poll_s)
        finally:
            self._task = None
            for queues in self._queues.values():
                for queue in queues:
                    queue.put_nowait(None)

    def _read(self, submission_ids: set[int]) -> dict[int, Job | None]:
        """The jobs of these submissions: those in the queue by one query, the others one by one."""
        jobs: dict[int, Job | None] = {
            job.submission_id: job
            for job in self._ledger.queue()
            if job.submission_id in submission_ids
        }
        for submission_id in submission_ids - jobs.keys():
            jobs[submission_id] = self._ledger.job(submission_id)
        return jobs
