"""The services of a running server, created once at its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from grader.db.engine import BoardError, open_engine
from grader.db.migrate import upgrade
from grader.fleet import Ledger
from grader.fleet.set_problems import SetProblems
from grader.problem import Problem, ProblemError
from grader.server.services.accounts import Accounts
from grader.server.services.admin_service import AdminService
from grader.server.services.announcements import Announcements
from grader.server.services.drain import Drain
from grader.server.services.fingerprints import Fingerprints
from grader.server.services.groups import Groups
from grader.server.services.invitations import Invitations
from grader.server.services.job_events import JobEvents
from grader.server.services.metrics import Metrics
from grader.server.services.problem_reload import ProblemReload, problem_folders
from grader.server.services.problem_versions import VersionChange, record_served
from grader.server.services.served_problems import ServedProblems
from grader.server.services.sign_in import SignIns
from grader.server.services.source_retention import SourceRetention
from grader.server.services.standings import LeaderboardQueries
from grader.server.services.submission_queries import SubmissionQueries
from grader.server.services.teams import Teams
from grader.server.services.user_progress import UserProgress
from grader.server.services.verdict_counts import VerdictCounts
from grader.server.services.withdrawals import Withdrawals
from grader.server.settings import ProviderSettings, Settings


def utc_now() -> datetime:
    """The current time, timezone-aware."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Services:
    """The services of one server. Each is safe to use from several threads."""

    settings: Settings
    ledger: Ledger
    accounts: Accounts
    sign_ins: SignIns
    providers: Mapping[str, ProviderSettings]
    """By name: the sites whose accounts users sign in with."""
    groups: Groups
    invitations: Invitations
    teams: Teams
    admin: AdminService
    announcements: Announcements
    problems: ServedProblems
    """By name, as loaded at the start of the server, or by a reload."""
    reload: ProblemReload
    version_changes: list[VersionChange]
    """Problems whose version was another one at the last start of a server."""
    now: Callable[[], datetime]
    submissions: SubmissionQueries
    standings: LeaderboardQueries
    progress: UserProgress
    events: JobEvents
    metrics: Metrics
    drain: Drain
    retention: SourceRetention
    verdicts: VerdictCounts
    withdrawals: Withdrawals
    fingerprints: Fingerprints

    @classmethod
    def open(
        cls,
        url: str,
        problems: Mapping[str, Problem],
        settings: Settings | None = None,
        now: Callable[[], datetime] = utc_now,
        providers: Mapping[str, ProviderSettings] | None = None,
        folder: Path | None = None,
        sets: SetProblems | None = None,
    ) -> Services:
        """Open the database at a URL, create or migrate its tables, and record the versions of the
        problems. `folder` is where they were loaded from, and `sets` those of other sets; without
        a folder, they cannot be reloaded. Raises `BoardError`."""
        settings = settings or Settings()
        engine = open_engine(url, create=True)
        try:
            upgrade(engine)
            version_changes = record_served(engine, problems.values(), now())
        except BoardError:
            engine.dispose()
            raise
        ledger, submissions = Ledger(engine, now), SubmissionQueries(engine)
        admin, served = AdminService(engine, now), ServedProblems(problems)
        return cls(
            settings=settings,
            ledger=ledger,
            accounts=Accounts(engine, now),
            sign_ins=SignIns(engine, now),
            providers=providers or {},
            groups=Groups(engine, now),
            invitations=Invitations(engine, now),
            teams=Teams(engine, now),
            admin=admin,
            announcements=Announcements(engine, now),
            problems=served,
            reload=ProblemReload(engine, ledger, served, folder, settings.verify_s, now, sets),
            version_changes=version_changes,
            now=now,
            submissions=submissions,
            standings=LeaderboardQueries(submissions),
            progress=UserProgress(submissions),
            events=JobEvents(
                ledger, settings.poll_s, settings.listeners, settings.listeners_per_address
            ),
            metrics=Metrics(ledger, submissions, settings.worker_alive_s, now),
            drain=Drain(),
            retention=SourceRetention(ledger, settings.source_days, now, settings.batch_days),
            verdicts=VerdictCounts(engine),
            withdrawals=Withdrawals(engine, now),
            fingerprints=Fingerprints(),
        )

    def close(self) -> None:
        """End the removal of old sources and a reload, and close the database connections."""
        self.retention.stop()
        self.reload.stop()
        self.fingerprints.stop()
        self.ledger.close()


def load_problems(folder: Path, may_be_empty: bool = False) -> dict[str, Problem]:
    """Every problem in a folder, by name. Raises `ProblemError` for a broken one, or for none
    unless it `may_be_empty`."""
    found = [Problem.load(one) for one in problem_folders(folder)]
    if not found and not may_be_empty:
        raise ProblemError(f"{folder}: holds no problem; name another folder with --problems")
    return {problem.name: problem for problem in found}
