from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import pytest
from sqlalchemy import select

from grader.db.engine import connect
from grader.db.tables import audit, team_codes
from grader.fleet.job import DailyLimitReached, EntryRefused
from grader.report import Report
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.access import daily_left
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.teams import CODE_LIFETIME, MAX_CODES
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.db.conftest import url as url
from tests.fleet.conftest import DIGEST, Clock, a_submission
from tests.fleet.test_races import at_once
from tests.server.conftest import H100, every_problem

MakeReport = Callable[..., Report]


class Contest:
    """A board that takes teams of up to three, on either database."""

    def __init__(self, services: Services, clock: Clock, make_report: MakeReport) -> None:
        self.services, self.clock, self._make_report = services, clock, make_report
        for name in ("ada", "bob", "cleo", "dan"):
            services.accounts.add_user(name)
        services.admin.set_board("softmax", BoardSettings(team_size=3), "root")

    def user(self, name: str) -> User:
        token = self.services.accounts.new_token(name)
        found = self.services.accounts.whoami(token)
        assert found is not None
        return found

    def team(self, name: str, *members: str) -> None:
        """Make a team of these users."""
        self.services.teams.add(name, self.user(members[0]))
        for member in members[1:]:
            self.services.teams.add_member(name, member, "root")

    def submit(self, user: str, problem: str = "softmax", daily_limit: int | None = None) -> int:
        """Submit as the HTTP layer does."""
        board = self.services.admin.board(problem)
        self.clock.move(1)
        return self.services.ledger.submit(
            user,
            problem,
            DIGEST,
            a_submission(user),
            daily_limit=daily_limit,
            team_size=board.team_size,
        )

    def graded(self, user: str, score_us: float, problem: str = "softmax") -> int:
        """Submit and grade. Returns the submission's number."""
        ledger, number = self.services.ledger, self.submit(user, problem)
        self.grade(score_us, user)
        job = ledger.job(number)
        assert job is not None
        assert job.result_id is not None, "another submission was graded"
        return number

    def grade(self, score_us: float, source: str) -> None:
        ledger = self.services.ledger
        lease = ledger.claim("w", lease_s=60, gpu=H100)
        assert lease is not None
        assert ledger.begin(lease)
        report = self._make_report(
            problem=lease.problem,
            problem_digest=DIGEST,
            submission_sha256=a_submission(source).sha256,
            gpu=H100,
            score_us=score_us,
            score_ci_us=(score_us, score_us),
        )
        assert ledger.finish(lease, report)

    def standings(self, as_of: datetime | None = None) -> list[tuple[int, str, bool, float]]:
        """Rank, name, whether it is a team, and score of each row of the board."""
        found = self.services.standings.snapshot()(DIGEST, as_of)
        return [
            (one.rank, one.user, one.is_team, one.score_us)
            for leaderboard in found
            for one in leaderboard.standings
        ]

    def audit(self) -> list[tuple[str, str, str, str]]:
        """Actor, action, subject and detail of the changes of teams, oldest first."""
        entries = reversed(self.services.admin.audit())
        return [
            (one.actor, one.action, one.subject, one.detail)
            for one in entries
            if one.action.startswith("team")
        ]

    def members(self, name: str) -> list[str]:
        return self.services.teams.team(name).members


@pytest.fixture
def contest(url: str, make_report: MakeReport) -> Iterator[Contest]:
    migrate_by_copy(url)
    clock = Clock()
    services = Services.open(url, dict(every_problem()), Settings(), clock)
    yield Contest(services, clock, make_report)
    services.close()


def test_a_team_has_one_row_and_its_best_result(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 50.0)
    contest.graded("bob", 40.0)
    contest.graded("cleo", 45.0)
    assert contest.standings() == [(1, "tile", True, 40.0), (2, "cleo", False, 45.0)]
    board = contest.services.ledger.board.leaderboard(DIGEST, H100)
    assert [(one.rank, one.user) for one in board] == [(1, "tile"), (2, "cleo")]


def test_a_board_without_teams_has_a_row_for_each_member(contest: Contest) -> None:
    contest.services.admin.set_board("softmax", BoardSettings(), "root")
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 50.0)
    contest.graded("bob", 40.0)
    assert contest.standings() == [(1, "bob", False, 40.0), (2, "ada", False, 50.0)]


def test_results_stay_with_the_team_that_they_were_made_for(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 40.0)
    contest.services.teams.leave("tile", contest.user("ada"))
    contest.team("warp", "ada")
    assert contest.standings() == [(1, "tile", True, 40.0)]
    with pytest.raises(EntryRefused) as refused:
        contest.submit("ada")
    assert str(refused.value) == (
        "you have submitted to softmax for the team tile, and a person has one entry on each "
        "board; join tile again to go on"
    )
    contest.services.teams.leave("warp", contest.user("ada"))
    with pytest.raises(EntryRefused, match="for the team tile"):
        contest.submit("ada")  # alone
    contest.services.teams.add_member("tile", "ada", "root")
    contest.graded("ada", 30.0)
    assert contest.standings() == [(1, "tile", True, 30.0)]
    contest.services.teams.leave("tile", contest.user("ada"))
    contest.submit("ada", "gelu")


def test_who_has_an_entry_alone_gets_no_second_one_by_a_team(contest: Contest) -> None:
    contest.graded("ada", 40.0)
    contest.team("tile", "ada", "bob")
    with pytest.raises(EntryRefused, match=r"to softmax alone, .*; leave your team to go on"):
        contest.submit("ada")
    contest.graded("bob", 50.0)
    assert contest.standings() == [(1, "ada", False, 40.0), (2, "tile", True, 50.0)]
    contest.services.teams.leave("tile", contest.user("ada"))
    contest.graded("ada", 30.0)
    assert contest.standings() == [(1, "ada", False, 30.0), (2, "tile", True, 50.0)]


def test_what_was_cancelled_before_a_worker_had_it_is_no_entry(contest: Contest) -> None:
    ledger = contest.services.ledger
    assert ledger.cancel(contest.submit("ada"), "ada")
    contest.team("tile", "ada")
    number = contest.submit("ada")
    assert ledger.claim("w", lease_s=60) is not None
    assert ledger.cancel(number, "ada")
    contest.services.teams.leave("tile", contest.user("ada"))
    with pytest.raises(EntryRefused):
        contest.submit("ada")


def test_a_repeated_request_is_answered_whatever_the_team(contest: Contest) -> None:
    ledger, submission = contest.services.ledger, a_submission("x")

    def submit() -> int:
        return ledger.submit("ada", "softmax", DIGEST, submission, team_size=3, idempotency_key="k")

    number = submit()
    contest.team("tile", "ada")
    assert submit() == number


def test_a_team_is_as_large_as_the_board_allows(contest: Contest) -> None:
    teams = contest.services.teams
    contest.team("tile", "ada", "bob", "cleo", "dan")
    with pytest.raises(EntryRefused) as refused:
        contest.submit("ada")
    assert str(refused.value) == (
        "softmax takes teams of up to 3, and 4 people are in the team tile or have submitted for it"
    )
    teams.remove_member("tile", "dan", "root")
    for name in ("ada", "bob", "cleo"):
        contest.submit(name)
    # Who leaves makes no room: their work for the team stays.
    teams.leave("tile", contest.user("cleo"))
    with pytest.raises(Conflict, match="submitted to softmax, which takes teams of up to 3"):
        teams.add_member("tile", "dan", "root")
    teams.add_member("tile", "cleo", "root")
    assert contest.members("tile") == ["ada", "bob", "cleo"]


def test_a_code_brings_one_user_into_the_team(contest: Contest) -> None:
    teams, ada = contest.services.teams, contest.user("ada")
    contest.team("tile", "ada")
    code, until = teams.invite("TILE", ada)
    assert re.fullmatch("[0-9a-f]{32}", code), "a hyphen would begin an option of a command"
    assert until == contest.clock() + CODE_LIFETIME
    assert teams.join(code, contest.user("bob")).members == ["ada", "bob"]
    with pytest.raises(Invalid, match="not valid"):
        teams.join(code, contest.user("cleo"))
    with pytest.raises(Invalid, match="not valid"):
        contest.services.invitations.sign_up(teams.invite("tile", ada)[0], "eve")
    assert contest.audit() == [
        ("ada", "team new", "tile", ""),
        ("ada", "team invite", "tile", ""),
        ("bob", "team join", "bob", "in tile"),
        ("ada", "team invite", "tile", ""),
    ]


def test_a_code_is_stored_as_its_hash(contest: Contest) -> None:
    contest.team("tile", "ada")
    code, _ = contest.services.teams.invite("tile", contest.user("ada"))
    with connect(contest.services.ledger.board._engine) as connection:
        row = connection.execute(select(team_codes)).mappings().one()
        audited = connection.execute(select(audit)).all()
    assert row["hash"] == hashlib.sha256(code.encode()).hexdigest()
    assert code not in repr(row)
    assert code not in repr(audited)


def test_codes_end(contest: Contest) -> None:
    teams, ada, bob = contest.services.teams, contest.user("ada"), contest.user("bob")
    contest.team("tile", "ada")
    old = teams.invite("tile", ada)[0]
    contest.clock.move(CODE_LIFETIME.total_seconds())
    with pytest.raises(Invalid, match="not valid"):
        teams.join(old, bob)
    codes = [teams.invite("tile", ada)[0] for _ in range(MAX_CODES)]
    with pytest.raises(Conflict, match="20 codes"):
        teams.invite("tile", ada)
    teams.join(codes.pop(), bob)
    code = teams.invite("tile", bob)[0]
    teams.leave("tile", bob)
    with pytest.raises(Invalid, match="not valid"):
        teams.join(code, bob)  # one's own code is no way back
    with pytest.raises(Conflict, match="you are not in the team tile"):
        teams.invite("tile", bob)


def test_a_code_is_used_once_however_many_try(contest: Contest) -> None:
    contest.team("tile", "ada")
    code = contest.services.teams.invite("tile", contest.user("ada"))[0]
    users = [contest.user(name) for name in ("bob", "cleo", "dan")]

    def join(user: User) -> bool:
        try:
            contest.services.teams.join(code, user)
        except Invalid:
            return False
        return True

    joined = at_once(*(partial(join, user) for user in users))
    assert sorted(joined) == [False, False, True]
    assert len(contest.members("tile")) == 2


def test_a_refused_join_leaves_the_code(contest: Contest) -> None:
    teams, bob = contest.services.teams, contest.user("bob")
    contest.team("tile", "ada")
    contest.team("warp", "bob")
    code = teams.invite("tile", contest.user("ada"))[0]
    with pytest.raises(Conflict, match="bob is in the team warp"):
        teams.join(code, bob)
    teams.leave("warp", bob)
    assert teams.join(code, bob).name == "tile"


def test_the_last_one_to_leave_ends_a_team_without_submissions(contest: Contest) -> None:
    teams = contest.services.teams
    contest.team("tile", "ada", "bob")
    teams.invite("tile", contest.user("ada"))
    teams.leave("tile", contest.user("bob"))
    teams.leave("tile", contest.user("ada"))
    assert teams.teams() == []
    assert contest.audit()[-1] == ("ada", "team leave", "ada", "of tile, which ends")
    contest.team("tile", "cleo")
    contest.graded("cleo", 40.0)
    teams.leave("tile", contest.user("cleo"))
    assert contest.members("tile") == []
    assert contest.standings() == [(1, "tile", True, 40.0)]
    with pytest.raises(Conflict, match="the name Tile is taken"):
        contest.services.accounts.add_user("Tile")


def test_names_are_shared_with_users(contest: Contest) -> None:
    teams, accounts = contest.services.teams, contest.services.accounts
    contest.team("tile", "ada")
    for taken in ("BOB", "Tile"):
        with pytest.raises(Conflict, match=f"the name {taken} is taken"):
            teams.add(taken, contest.user("cleo"))
    with pytest.raises(Conflict, match="b0b looks like bob, which is another user's"):
        teams.add("b0b", contest.user("cleo"))
    with pytest.raises(Conflict, match="ti1e looks like tile, which is a team's"):
        accounts.add_user("ti1e")
    with pytest.raises(Invalid, match="without slashes"):
        teams.add("a/b", contest.user("cleo"))
    assert [team.name for team in teams.teams()] == ["tile"]


def test_admins_change_teams(contest: Contest) -> None:
    teams = contest.services.teams
    contest.team("tile", "ada")
    teams.add_member("tile", "bob", "root")
    teams.add_member("tile", "bob", "root")  # does nothing
    teams.remove_member("tile", "bob", "root")
    with pytest.raises(NotFound, match="bob is not in the team tile"):
        teams.remove_member("tile", "bob", "root")
    with pytest.raises(NotFound, match="there is no team warp"):
        teams.add_member("warp", "bob", "root")
    contest.services.accounts.add_user("farm", "worker")
    with pytest.raises(Invalid, match="farm is a worker"):
        teams.add_member("tile", "farm", "root")
    contest.submit("ada")
    with pytest.raises(Conflict, match="tile has submissions"):
        teams.remove("tile", "root")
    contest.team("warp", "bob")
    teams.remove("warp", "root")
    assert [team.name for team in teams.teams()] == ["tile"]
    assert contest.user("bob").team is None
    assert contest.audit()[1:] == [
        ("root", "team join", "bob", "in tile"),
        ("root", "team leave", "bob", "of tile"),
        ("bob", "team new", "warp", ""),
        ("root", "team delete", "warp", ""),
    ]


def test_a_board_goes_on_taking_teams(contest: Contest) -> None:
    """Otherwise members would have an entry of their own besides that of the team."""
    admin = contest.services.admin
    contest.team("tile", "ada")
    admin.set_board("softmax", BoardSettings(), "root")
    admin.set_board("softmax", BoardSettings(team_size=2), "root")
    contest.submit("ada")
    with pytest.raises(Conflict, match="the team tile has submitted to softmax"):
        admin.set_board("softmax", BoardSettings(), "root")
    admin.set_board("softmax", BoardSettings(team_size=4), "root")


def test_a_daily_limit_is_one_for_the_team(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.submit("ada", daily_limit=2)
    contest.submit("bob", daily_limit=2)
    with pytest.raises(DailyLimitReached, match="tile has submitted 2 files to softmax"):
        contest.submit("ada", daily_limit=2)
    contest.submit("cleo", daily_limit=2)
    contest.submit("bob", "gelu", daily_limit=1)
    contest.submit("ada", "gelu", daily_limit=1)  # a board without teams counts each alone
    boards = {
        "softmax": BoardSettings(daily_limit=3, team_size=3),
        "gelu": BoardSettings(daily_limit=3),
    }
    left = [
        daily_left(contest.services, contest.user(name), boards) for name in ("ada", "bob", "cleo")
    ]
    assert left == [
        {"softmax": 1, "gelu": 2},
        {"softmax": 1, "gelu": 2},
        {"softmax": 2, "gelu": 3},
    ]


def test_a_team_takes_turns_as_one_user(contest: Contest) -> None:
    ledger = contest.services.ledger
    contest.team("tile", "ada", "bob")
    for name in ("ada", "bob", "ada", "cleo"):
        contest.submit(name)
    shown = [job.user for job in ledger.queue()]
    assert shown == ["ada", "cleo", "bob", "ada"]
    taken = []
    for _ in shown:
        contest.clock.move(1)
        lease = ledger.claim("w", lease_s=60)
        assert lease is not None
        taken.append(lease.submission_id)
    assert [job.user for number in taken if (job := ledger.job(number))] == shown


def test_a_ban_takes_off_the_members_own_results_alone(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 40.0)
    contest.graded("bob", 50.0)
    contest.services.admin.ban("ada", "", "root")
    assert contest.standings() == [(1, "tile", True, 50.0)]
    assert contest.members("tile") == ["ada", "bob"]
    contest.services.admin.unban("ada", "root")
    assert contest.standings() == [(1, "tile", True, 40.0)]


def test_only_the_author_withdraws(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    number = contest.graded("ada", 40.0)
    contest.graded("bob", 50.0)
    withdrawals = contest.services.withdrawals
    with pytest.raises(Conflict, match="bob has no submission"):
        withdrawals.withdraw(number, "bob")
    withdrawals.withdraw(number, "ada")
    assert contest.standings() == [(1, "tile", True, 50.0)]


def test_frozen_standings_have_teams(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 40.0)
    contest.clock.move(60)
    moment = contest.clock()
    contest.graded("bob", 30.0)
    assert contest.standings(moment) == [(1, "tile", True, 40.0)]
    assert contest.standings() == [(1, "tile", True, 30.0)]


def test_a_rejudge_keeps_the_team(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 50.0)
    best = contest.graded("bob", 40.0)
    contest.graded("cleo", 45.0)
    rejudges = contest.services.admin.rejudges
    number = rejudges.start("softmax", DIGEST, "best", reason="", by="root")
    # The best of each row: ada's was not.
    contest.grade(48.0, "bob")
    contest.grade(44.0, "cleo")
    found = rejudges.preview(number)
    assert found is not None
    changes = [
        (one.original_id == best, one.old.rank, one.new and one.new.rank) for one in found.changes
    ]
    assert changes == [(True, 1, 2), (False, 2, 1)]
    rejudges.apply(number, "root")
    assert contest.standings() == [(1, "cleo", False, 44.0), (2, "tile", True, 48.0)]
    # A member of a team of old cannot begin anew either.
    contest.services.teams.leave("tile", contest.user("bob"))
    with pytest.raises(EntryRefused):
        contest.submit("bob")


def test_the_rank_of_a_result_is_among_other_entries(contest: Contest) -> None:
    contest.team("tile", "ada", "bob")
    contest.graded("ada", 40.0)
    slower = contest.graded("bob", 50.0)
    contest.graded("cleo", 45.0)
    summary = contest.services.submissions.summary(slower)
    assert summary is not None
    assert summary.owner == "tile"
    assert contest.services.standings.rank(summary) == 2, "behind cleo, not behind its own team"
