"""Removes old sources that nothing needs any more, and old batches, while the server runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from grader.db.engine import BoardError
from grader.fleet import Ledger

log = logging.getLogger(__name__)

STEP = 100
"""Submissions that a step looks at. Other writers wait while it removes their sources."""

PAUSE_S = 1.0
"""Pause between two steps."""

PASS_INTERVAL_S = 3600.0
"""Pause between two passes over all submissions."""


class SourceRetention:
    """Keeps sources for a number of days, and the reports of batches for `batch_days` after their
    end. `grader.fleet.retention` says which sources it keeps for longer.

    Several servers may do this to one database.
    """

    def __init__(
        self,
        ledger: Ledger,
        keep_days: float,
        now: Callable[[], datetime],
        batch_days: float,
    ) -> None:
        self._ledger = ledger
        self._keep_days = keep_days
        self._batch_days = batch_days
        self._now = now
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grade-retention", daemon=True)

    def start(self) -> None:
        """Run in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the batch that it may be in. May be called without `start`."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def run_pass(self, pause_s: float = PAUSE_S) -> int:
        """Look at all old submissions once. Returns how many sources it removed.

        Raises `BoardError` if the database fails; the next pass begins again.
        """
        before = self._days_ago(self._keep_days)
        if before is None:
            return 0
        removed = 0
        last: int | None = 0
        while last is not None and not self._stopped.is_set():
            step = self._ledger.remove_old_sources(before, after=last, limit=STEP)
            removed, last = removed + step.removed, step.last
            if last is not None:
                self._stopped.wait(pause_s)
        return removed

    def remove_batches(self, pause_s: float = PAUSE_S) -> int:
        """Remove the reports and sources of old batches. Returns the number of batches.

        Raises `BoardError` if the database fails; the next pass begins again.
        """
        before = self._days_ago(self._batch_days)
        removed = 0
        while before is not None and not self._stopped.is_set():
            step = self._ledger.remove_old_batches(before, limit=1)
            if not step:
                break
            removed += step
            self._stopped.wait(pause_s)
        return removed

    def _days_ago(self, days: float) -> datetime | None:
        """None for longer ago than there are dates."""
        try:
            return self._now() - timedelta(days=days)
        except OverflowError:
            return None

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if removed := self.remove_batches():
                    log.info("removed the reports of %d old batches", removed)
                if removed := self.run_pass():
                    log.info("removed the sources of %d old submissions", removed)
            except BoardError as error:
                log.warning("could not remove old sources: %s", error)
            except Exception:  # a bug costs one pass, not the thread
                log.exception("could not remove old sources")
            self._stopped.wait(PASS_INTERVAL_S)
