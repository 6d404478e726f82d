"""The queue as its page shows it: the first jobs, and each user's own, with the expected wait."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from grader.fleet import State, WorkerStatus
from grader.fleet.job import Job, QueuePlace, gpu_matches, unschedulable_reason
from grader.judge import Progress
from grader.server.services import visibility
from grader.server.services.access import access_to, board_settings, visible_job
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.visibility import Access

SHOWN_JOBS = 50
"""Jobs that the page shows, besides one's own."""

SHOWN_GRADED = 12
"""Graded submissions that the page shows."""

RECENT_GRADINGS = 40
"""Gradings whose durations the expected wait is computed from."""


@dataclass(frozen=True)
class QueueRow:
    """A job that is graded or waits."""

    place: QueuePlace
    progress: Progress | None = None
    created_at: datetime | None = None
    """None for a job behind the first ones, of which only the place was read."""
    obstacle: str | None = None
    """Why no worker can take it now; None if one can, and for a running job."""
    wait_s: float | None = None
    """The expected wait; None if it is unknown, and for a running job."""


@dataclass(frozen=True)
class QueueSnapshot:
    """The queue at one moment, for all callers who may see the same boards."""

    places: Sequence[QueuePlace]
    jobs: dict[int, Job]
    """The first `SHOWN_JOBS` jobs by their id, complete."""
    boards: dict[str, BoardSettings]
    workers: Sequence[WorkerStatus]
    graded: Sequence[tuple[SubmissionSummary, Access]]
    """The submissions that were graded last, newest first."""
    durations_s: Sequence[tuple[str | None, float]]
    """The GPU and the duration of the last gradings."""
    now: datetime
    _lanes: dict[tuple[str | None, ...], tuple[str | None, float | None]] = field(
        default_factory=dict
    )

    @property
    def running(self) -> int:
        """The number of jobs that workers hold."""
        return len(self.places) - self.waiting

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return sum(place.state is State.QUEUED for place in self.places)

    def rows(self, caller: User | None) -> list[QueueRow]:
        """The first jobs, with what the caller may see of them."""
        return [self._row(caller, place) for place in self.places[:SHOWN_JOBS]]

    def own_rows(self, caller: User) -> list[QueueRow]:
        """All of the caller's jobs."""
        return [self._row(caller, place) for place in self._by_user.get(caller.name, ())]

    @cached_property
    def _by_user(self) -> dict[str, list[QueuePlace]]:
        found: dict[str, list[QueuePlace]] = {}
        for place in self.places:
            found.setdefault(place.user, []).append(place)
        return found

    def _row(self, caller: User | None, place: QueuePlace) -> QueueRow:
        job = self.jobs.get(place.submission_id)
        row = QueueRow(place)
        if job is not None:
            board = self.boards[place.problem]
            access = visibility.access_for(caller, place.user, board, self.now, team=job.team)
            progress = visible_job(job, access).progress
            row = replace(row, progress=progress, created_at=job.created_at)
        if place.state is not State.QUEUED:
            return row
        obstacle, place_s = self._lane(place)
        wait_s = None if place_s is None or place.position is None else place.position * place_s
        return replace(row, obstacle=obstacle, wait_s=wait_s)

    def _lane(self, place: QueuePlace) -> tuple[str | None, float | None]:
        """Why no worker can take such jobs, and the expected wait in seconds per place.

        That is the median of recent gradings, divided by the slots that can take the job. It is too
        long if many jobs before it wait for another type of GPU. None without such a slot, or
        without a recent grading. Computed once for all jobs that the same workers can take.
        """
        key = (place.problem, place.problem_digest, place.language, place.gpu)
        if key not in self._lanes:
            able = [one for one in self.workers if unschedulable_reason(place, [one]) is None]
            slots = sum(worker.slots for worker in able)
            times_s = [time_s for gpu, time_s in self.durations_s if gpu_matches(gpu, place.gpu)]
            place_s = statistics.median(times_s) / slots if slots and times_s else None
            self._lanes[key] = unschedulable_reason(place, self.workers), place_s
        return self._lanes[key]


def read_queue(services: Services, caller: User | None) -> QueueSnapshot:
    """The queue of the boards that the caller may see, without jobs of rejudges.

    It is the same for all callers whose `sees_more` is false. The number of queries does not
    depend on its length.
    """
    boards = {
        name: board
        for name, board in board_settings(services).items()
        if visibility.can_see_board(caller, board, services.now())
    }
    head = services.ledger.queue_head(boards.keys(), SHOWN_JOBS)
    graded = services.submissions.summaries(
        limit=RECENT_GRADINGS, problems=list(boards), state=State.DONE
    )
    visible = [(one, access_to(services, caller, one, boards[one.problem])) for one in graded]
    numbers = {one.result_id: one.gpu for one in graded if one.result_id is not None}
    details = services.standings.details(numbers)
    return QueueSnapshot(
        places=head.places,
        jobs={job.submission_id: job for job in head.jobs},
        boards=boards,
        workers=services.ledger.workers(services.settings.worker_alive_s),
        graded=[(one, access) for one, access in visible if access.exists][:SHOWN_GRADED],
        durations_s=[
            (gpu, duration_s)
            for number, gpu in numbers.items()
            if (duration_s := details[number].graded_in_s) is not None
        ],
        now=services.now(),
    )
