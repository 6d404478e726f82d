"""What each user has tried and solved, for the marks beside the list of problems.

Kept in memory and read on from the last known result, since a page that many readers share must not
query for each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from grader.server.services.submission_queries import SubmissionQueries


class ProblemState(NamedTuple):
    """What a user has reached on a problem that they have tried."""

    accepted: bool
    """Whether a kernel was accepted, for this version of the problem or another."""
    best_us: Mapping[str, float]
    """Digest of a version → the best ranked score, on any GPU."""


Progress = Mapping[str, Mapping[str, ProblemState]]
"""User → problem → state. It never changes."""


class UserProgress:
    """The progress of all users of one database. Thread-safe."""

    def __init__(self, submissions: SubmissionQueries) -> None:
        self._submissions = submissions
        self._lock = threading.Lock()
        self._last_id = 0
        self._voids: tuple[object, ...] = ()
        self._progress: dict[str, dict[str, ProblemState]] = {}

    def snapshot(self) -> Progress:
        """The progress as the database has it now. Raises `BoardError` if that fails."""
        last_id, *voids = self._submissions.version()
        with self._lock:
            if tuple(voids) != self._voids:
                # A result that no longer counts may have been anybody's best.
                self._progress, self._last_id, self._voids = {}, 0, tuple(voids)
            if last_id > self._last_id:
                self._add_results(last_id)
                self._last_id = last_id
            return self._progress

    def _add_results(self, until: int) -> None:
        """Add the results up to an id, in a copy: snapshots stay as they are."""
        progress = dict(self._progress)
        copied: set[str] = set()
        for one in self._submissions.attempts(self._last_id, until):
            if one.user not in copied:
                progress[one.user] = dict(progress.get(one.user, {}))
                copied.add(one.user)
            before = progress[one.user].get(one.problem, ProblemState(False, {}))
            best_us = dict(before.best_us)
            if one.best_us is not None:
                known_us = best_us.get(one.problem_digest, one.best_us)
                best_us[one.problem_digest] = min(one.best_us, known_us)
            accepted = before.accepted or one.accepted
            progress[one.user][one.problem] = ProblemState(accepted, best_us)
        self._progress = progress
