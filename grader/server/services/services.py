"""Everything that routes need, made once when the server starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from grader.db.engine import BoardError, open_engine
from grader.db.migrate import upgrade
from grader.fleet import Ledger
from grader.problem import Problem, ProblemError
from grader.server.services.accounts import Accounts
from grader.server.services.admin_service import Office
from grader.server.services.drain import Drain
from grader.server.services.job_events import Hub
from grader.server.services.metrics import Metrics
from grader.server.services.standings import Races
from grader.server.services.submission_queries import Shelf
from grader.server.settings import Settings


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Services:
    """The server's parts. Every one is safe to use from several threads."""

    settings: Settings
    ledger: Ledger
    accounts: Accounts
    office: Office
    problems: dict[str, Problem]
    """By name, as they were when the server started."""
    now: Callable[[], datetime]
    shelf: Shelf
    races: Races
    hub: Hub
    metrics: Metrics
    drain: Drain

    @classmethod
    def open(
        cls,
        url: str,
        problems: Mapping[str, Problem],
        settings: Settings | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> Services:
        """Open the database at a URL, its tables made or migrated first. Raises `BoardError`."""
        settings = settings or Settings()
        engine = open_engine(url, create=True)
        try:
            upgrade(engine)
        except BoardError:
            engine.dispose()
            raise
        ledger, shelf = Ledger(engine, now), Shelf(engine)
        return cls(
            settings=settings,
            ledger=ledger,
            accounts=Accounts(engine, now),
            office=Office(engine, now),
            problems=dict(problems),
            now=now,
            shelf=shelf,
            races=Races(shelf),
            hub=Hub(ledger, settings.poll_s, settings.listeners, settings.listeners_per_address),
            metrics=Metrics(ledger, shelf, settings.worker_alive_s, now),
            drain=Drain(),
        )

    def close(self) -> None:
        """Let go of the database."""
        self.ledger.close()


def load_problems(folder: Path) -> dict[str, Problem]:
    """Every problem of a folder, by name. Raises `ProblemError` for one that is broken, or none."""
    found = [Problem.load(spec.parent) for spec in sorted(folder.glob("*/problem.yaml"))]
    if not found:
        raise ProblemError(f"{folder}: holds no problem; name another folder with --problems")
    return {problem.name: problem for problem in found}
