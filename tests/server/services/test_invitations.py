"""Groups and invitations, on both databases."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from grader.db.tables import invitations as table
from grader.fleet import Ledger
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import Accounts, User
from grader.server.services.admin_service import AdminService, BoardSettings
from grader.server.services.audit import audit_entries
from grader.server.services.groups import Groups
from grader.server.services.invitations import Invitations
from grader.server.services.sign_in import Person, SignIns
from tests.fleet.conftest import Clock


@pytest.fixture
def accounts(ledger: Ledger, clock: Clock) -> Accounts:
    return Accounts(ledger._engine, clock)


@pytest.fixture
def groups(ledger: Ledger, clock: Clock) -> Groups:
    made = Groups(ledger._engine, clock)
    made.add("course-a", "root")
    return made


@pytest.fixture
def invitations(ledger: Ledger, clock: Clock, groups: Groups) -> Invitations:
    return Invitations(ledger._engine, clock)


def user_of(accounts: Accounts, token: str) -> User:
    found = accounts.whoami(token)
    assert found is not None
    return found


def members(groups: Groups) -> list[str]:
    return next(one.members for one in groups.groups() if one.name == "course-a")


def test_a_code_makes_an_account_in_its_group(
    invitations: Invitations, accounts: Accounts, ledger: Ledger
) -> None:
    accounts.first_admin()
    code = invitations.add("Course-A", 2, None, "root")
    assert re.fullmatch("[0-9a-f]{32}", code), "a hyphen would begin an option of a command"
    with ledger._engine.connect() as connection:
        stored = repr(connection.execute(select(table)).all())
    assert code not in stored
    assert hashlib.sha256(code.encode()).hexdigest() in stored
    token, session = invitations.sign_up(code, "jane")
    for one in (token, session):
        assert user_of(accounts, one) == User(
            2, "jane", "competitor", groups=frozenset({"course-a"})
        )
    assert [(one.used, one.group) for one in invitations.invitations()] == [(1, "course-a")]
    acts = [(act.actor, act.action) for act in audit_entries(ledger._engine, 2)]
    assert acts == [("jane", "invite use"), ("jane", "user add")]
    accounts.revoke(accounts.tokens("jane")[0].id)
    assert accounts.whoami(session) is None, "the token opened it"


def test_a_code_without_a_group(invitations: Invitations, accounts: Accounts) -> None:
    code = invitations.add(None, 2, None, "root")
    token, _ = invitations.sign_up(code, "jane")
    jane = user_of(accounts, token)
    assert jane.groups == frozenset()
    with pytest.raises(Conflict, match="for a new account"):
        invitations.join(code, jane)
    assert invitations.find(code).used == 1


def test_a_code_is_used_as_often_as_it_says(
    invitations: Invitations, accounts: Accounts, groups: Groups
) -> None:
    code = invitations.add("course-a", 3, None, "root")

    def use(number: int) -> str:
        try:
            invitations.sign_up(code, f"user {number}")
        except Invalid:
            return "refused"
        return "done"

    with ThreadPoolExecutor(8) as pool:
        assert Counter(pool.map(use, range(8))) == {"done": 3, "refused": 5}
    assert len(accounts.users()) == len(members(groups)) == 3
    with pytest.raises(Invalid, match="not valid, or no longer"):
        invitations.find(code)


def test_a_refused_name_uses_nothing_up(invitations: Invitations, accounts: Accounts) -> None:
    accounts.add_user("bill")
    code = invitations.add("course-a", 1, None, "root")
    for name, error in (("bill", Conflict), ("biIl", Conflict), ("", Invalid), ("a/b", Invalid)):
        with pytest.raises(error):
            invitations.sign_up(code, name)
    assert invitations.find(code).used == 0
    invitations.sign_up(code, "jane")


def test_codes_that_cannot_be_used(invitations: Invitations, clock: Clock) -> None:
    over = invitations.add("course-a", 1, clock() + timedelta(hours=1), "root")
    revoked = invitations.add("course-a", 1, None, "root")
    invitations.revoke(2, "root")
    with pytest.raises(NotFound, match="or it is revoked"):
        invitations.revoke(2, "root")
    invitations.find(over)
    clock.move(3600)
    with pytest.raises(Invalid, match="until"):
        invitations.add(None, 1, clock(), "root")
    for uses in (0, -1, 10**9):
        with pytest.raises(Invalid, match="uses"):
            invitations.add(None, uses, None, "root")
    with pytest.raises(NotFound, match="no group course-b"):
        invitations.add("course-b", 1, None, "root")
    for code in (over, revoked, "", "x", over[:-1], "\x00", "\ud800"):
        with pytest.raises(Invalid, match="not valid, or no longer"):
            invitations.find(code)
        with pytest.raises(Invalid, match="not valid, or no longer"):
            invitations.sign_up(code, "jane")
    for number in (0, -1, 3, 2**70):
        with pytest.raises(NotFound):
            invitations.revoke(number, "root")


def test_a_user_joins_once(invitations: Invitations, accounts: Accounts, groups: Groups) -> None:
    ada = user_of(accounts, accounts.add_user("ada"))
    code = invitations.add("course-a", 2, None, "root")
    invitations.join(code, ada)
    with pytest.raises(Conflict, match="in the group course-a already"):
        invitations.join(code, ada)
    assert invitations.find(code).used == 1
    assert members(groups) == ["ada"]


def test_a_code_is_used_at_sign_up_with_another_site(
    invitations: Invitations, accounts: Accounts, ledger: Ledger, clock: Clock
) -> None:
    sign_ins = SignIns(ledger._engine, clock)
    code = invitations.add("course-a", 1, None, "root")
    secret = sign_ins.await_name("github", Person("https://github.com", "1"), "/")
    with pytest.raises(Invalid, match="not valid, or no longer"):
        sign_ins.sign_up(secret, "jane", "wrong")
    assert accounts.user("jane") is None
    session = sign_ins.sign_up(secret, "jane", code)
    assert user_of(accounts, session).groups == {"course-a"}


def test_groups_and_their_members(groups: Groups, accounts: Accounts, ledger: Ledger) -> None:
    token = accounts.add_user("ada")
    groups.add("Course B", "root")
    for name in ("course-a", "course b"):
        groups.add_member(name, "ADA", "root")
        groups.add_member(name, "ada", "root")
    assert [(one.name, one.members) for one in groups.groups()] == [
        ("Course B", ["ada"]), ("course-a", ["ada"]),
    ]  # fmt: skip
    assert user_of(accounts, token).groups == {"course-a", "Course B"}
    session = accounts.open_session(token)
    assert isinstance(session, str)
    assert len(accounts.users_of({token, session})) == 2
    groups.remove_member("course-a", "ada", "root")
    assert user_of(accounts, token).groups == {"Course B"}
    with pytest.raises(NotFound, match="ada is not in the group"):
        groups.remove_member("course-a", "ada", "root")
    with pytest.raises(NotFound, match="no user bob"):
        groups.add_member("course-a", "bob", "root")
    for name, error in (("Course-A", Conflict), ("none", Invalid), ("a/b", Invalid), ("", Invalid)):
        with pytest.raises(error):
            groups.add(name, "root")
    for name in ("course-c", "", "\x00", "\ud800"):
        with pytest.raises(NotFound, match="no group"):
            groups.remove(name, "root")


def test_a_group_of_a_board_is_kept(
    groups: Groups, invitations: Invitations, ledger: Ledger, clock: Clock, accounts: Accounts
) -> None:
    admin = AdminService(ledger._engine, clock)
    with pytest.raises(NotFound, match="no group course-b"):
        admin.set_board("softmax", BoardSettings(group="course-b"), "root")
    assert admin.set_board("softmax", BoardSettings(group="COURSE-A"), "root").group == "course-a"
    assert admin.board("softmax").group == "course-a"
    assert admin.boards_with_version()[0]["softmax"].group == "course-a"
    code = invitations.add("course-a", 5, None, "root")
    accounts.add_user("ada")
    groups.add_member("course-a", "ada", "root")
    with pytest.raises(Conflict, match="the board softmax is for this group"):
        groups.remove("course-a", "root")
    admin.set_board("softmax", BoardSettings(), "root")
    groups.remove("course-a", "root")
    assert groups.groups() == []
    with pytest.raises(Invalid):
        invitations.find(code)
