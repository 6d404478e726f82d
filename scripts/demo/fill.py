"""Fills the demo server's boards with example data, none of it measured.

Every result says that it is made up: in the names of its user and GPU, in a note and the
environment of its report, and in the first line of its file. Since each board has one GPU, its name
also separates made-up results from graded ones. The results go through the ledger as
real ones do, at dates in the past, and are the same for the same problems and end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from grader.problem import Problem
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from scripts.demo.attempts import MARK, Attempt, attempts
from scripts.demo.reports import Reports
from scripts.demo.sources import Sources

NOTE = (
    f"Example data: the users and GPUs named “…{MARK}” and all of their results are made up, and "
    "nothing of it was measured. Submissions that you make are really graded."
)
WORKER = "example data"
"""The name of the worker, and of the author of the notes."""
GRADING = timedelta(seconds=30)


@dataclass
class _Clock:
    """The time of the services while they are filled."""

    time: datetime

    def __call__(self) -> datetime:
        return self.time


def fill(file: Path, problems: Mapping[str, Problem], until: datetime) -> int:
    """Write a new SQLite database with filled boards. Returns the number of results.

    until: the end of the results' dates.
    """
    clock = _Clock(until)
    # Thousands of transactions wait for no disk in memory.
    services = Services.open("sqlite://", problems, now=clock)
    try:
        for name in problems:
            services.admin.set_board(name, BoardSettings(note=NOTE), WORKER)
        made = [
            (attempt, number, maker)
            for maker in (_Maker(problem) for problem in problems.values())
            for number, attempt in enumerate(maker.attempts(until), start=1)
        ]
        # Numbers of submissions grow with the dates, as on a real board.
        for attempt, number, maker in sorted(made, key=lambda one: one[0].at):
            maker.play(services, clock, attempt, number)
        in_memory = services.ledger.board._engine.raw_connection().driver_connection
        assert isinstance(in_memory, sqlite3.Connection)
        with closing(sqlite3.connect(file)) as target:
            in_memory.backup(target)
    finally:
        services.close()
    return len(made)


class _Maker:
    """Makes the results of one problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._sources = Sources(problem)
        self._reports = Reports(problem)

    def attempts(self, until: datetime) -> list[Attempt]:
        """The submissions to the problem."""
        return attempts(self._problem, until, self._sources.failures())

    def play(self, services: Services, clock: _Clock, attempt: Attempt, number: int) -> None:
        """Submit an attempt and finish its grading, at its date."""
        problem, ledger = self._problem, services.ledger
        submission, example = self._sources.pick(attempt, number)
        clock.time = attempt.at
        ledger.submit(attempt.user, problem.name, problem.digest, submission)
        lease = ledger.claim(WORKER, lease_s=60)
        assert lease is not None
        ledger.begin(lease)
        clock.time += GRADING
        rule = example.rule if example else None
        ledger.finish(lease, self._reports.report(attempt, submission, clock.time, rule))
