"""One poller of the database for everyone who follows a submission in this process."""

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

FINAL = (State.DONE, State.CANCELLED)


class Hub:
    """Asks the ledger what has changed, as long as anybody wants to know.

    For one event loop; other threads may only call `close` and read what it counts.
    """

    def __init__(
        self, ledger: Ledger, poll_s: float, listeners: int, listeners_per_address: int
    ) -> None:
        self._ledger = ledger
        self._poll_s = poll_s
        self._most = listeners
        self._most_per_address = listeners_per_address
        self._addresses: Counter[str] = Counter()
        self._boxes: dict[int, set[asyncio.Queue[Job | None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.listeners = 0
        """How many listen now."""

    @property
    def pollers(self) -> int:
        """How many pollers run: one while anybody listens."""
        return 0 if self._task is None else 1

    def is_full_for(self, address: str) -> bool:
        """Whether nobody more may listen, or nobody more from this address."""
        alone = self._addresses.get(address, 0)
        return self._closed or self.listeners >= self._most or alone >= self._most_per_address

    def close(self) -> None:
        """Let every listener go, soon; the server ends."""
        self._closed = True

    async def follow(self, number: int, address: str) -> AsyncIterator[Job]:
        """The job of a submission as it is now, and again at each change until it is final, or
        until the server ends."""
        box: asyncio.Queue[Job | None] = asyncio.Queue()
        self.listeners += 1
        self._addresses[address] += 1
        self._boxes.setdefault(number, set()).add(box)
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        try:
            last = None
            while (job := await box.get()) is not None:
                told = (job.state, job.position, job.progress)
                if told != last:
                    last = told
                    yield job
                if job.state in FINAL:
                    return
        finally:
            self.listeners -= 1
            self._addresses[address] -= 1
            self._addresses += Counter()  # only those that are not 0
            self._boxes[number].discard(box)
            if not self._boxes[number]:
                del self._boxes[number]

    async def _poll(self) -> None:
        """Until nobody listens: look, and tell."""
        try:
            while self._boxes and not self._closed:
                try:
                    found = await run_sync(self._look, set(self._boxes))
                except BoardError as error:
                    log.warning("events wait for the database: %s", one_line(str(error)))
                    found = {}
                for number, job in found.items():
                    for box in self._boxes.get(number, ()):
                        box.put_nowait(job)
                await asyncio.sleep(self._poll_s)
        finally:
            self._task = None
            for boxes in self._boxes.values():
                for box in boxes:
                    box.put_nowait(None)

    def _look(self, numbers: set[int]) -> dict[int, Job | None]:
        """The jobs of these submissions: the queue at once, what has left it one by one."""
        found: dict[int, Job | None] = {
            job.submission_id: job for job in self._ledger.queue() if job.submission_id in numbers
        }
        for number in numbers - found.keys():
            found[number] = self._ledger.job(number)
        return found
