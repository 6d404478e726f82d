from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest
from sqlalchemy import literal, select
from sqlalchemy.exc import IntegrityError

from grader.board import BoardError
from grader.db.tables import tokens, users
from grader.fleet import Ledger
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import MAX_NAME_CHARS, Accounts, Banned, User, validate_name
from grader.server.services.admin_service import AdminService
from grader.server.services.audit import audit_entries
from tests.fleet.conftest import Clock


@pytest.fixture
def accounts(ledger: Ledger, clock: Clock) -> Accounts:
    return Accounts(ledger._engine, clock)


@pytest.fixture
def admin(ledger: Ledger, clock: Clock) -> AdminService:
    return AdminService(ledger._engine, clock)


def stored(ledger: Ledger) -> str:
    """All rows of the table `tokens`."""
    with ledger._engine.connect() as connection:
        return repr(connection.execute(select(tokens)).all())


def test_a_token_is_shown_once_and_stored_as_its_hash(accounts: Accounts, ledger: Ledger) -> None:
    token = accounts.add_user("ada")
    assert token.startswith("grade_")
    assert len(token) == len("grade_") + 43
    assert token not in stored(ledger)
    assert hashlib.sha256(token.encode()).hexdigest() in stored(ledger)
    me = accounts.whoami(token)
    assert me is not None
    assert (me.name, me.role) == ("ada", "competitor")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1],
        lambda token: token + "a",
        lambda token: token.upper(),
        lambda token: "",
        lambda token: hashlib.sha256(token.encode()).hexdigest(),
        lambda token: "' OR 1=1 --",
        lambda token: "\ud800\x00",
    ],
)
def test_an_unknown_token_has_no_user(accounts: Accounts, spoil: Callable[[str], str]) -> None:
    token = accounts.add_user("ada")
    assert accounts.whoami(spoil(token)) is None
    assert accounts.open_session(spoil(token)) is None


def test_a_rotated_token_is_replaced_and_its_sessions_end(
    accounts: Accounts, ledger: Ledger
) -> None:
    old, other = accounts.add_user("ada"), accounts.new_token("ada", "laptop")
    session = accounts.open_session(old)
    assert isinstance(session, str)
    (first, _) = accounts.tokens("ada")
    new = accounts.rotate(first.id, by="root")
    assert new not in stored(ledger)
    assert [accounts.whoami(one) for one in (old, session)] == [None, None]
    assert accounts.whoami(new) == accounts.whoami(other) is not None
    labels = [(token.label, token.revoked_at is None) for token in accounts.tokens("ada")]
    assert labels == [("first", False), ("laptop", True), ("first", True)]
    act = audit_entries(ledger._engine, 1)[0]
    assert (act.actor, act.action, act.subject) == ("root", "token rotate", str(first.id))
    hidden = [first.id, 0, -1, 2**70]
    with ledger._engine.connect() as connection:
        sessions = select(tokens.c.id).where(tokens.c.kind == "session")
        hidden += connection.scalars(sessions)
    for number in hidden:
        with pytest.raises(NotFound, match="or it is revoked"):
            accounts.rotate(number)


def test_names_are_unique_whatever_their_case(accounts: Accounts) -> None:
    accounts.add_user("Ada")
    for name in ("Ada", "ada", "ADA", " ada ", "Ａda"):
        with pytest.raises(Conflict, match="is taken; choose another"):
            accounts.add_user(name)
    found = accounts.user("aDA")
    assert found is not None
    assert found.name == "Ada"
    for name in ("bob", "\x00", "\ud800", "' OR 1=1 --", "a" * 10_000):
        assert accounts.user(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a" * 41,
        "a/b",
        "a\\b",
        "a\nb",
        "a\x00b",
        "..",
        ".",
        "\u202eevil",
        "ﷺ" * 20,
        "\ud800",
        "a\u2215b",  # looks like a slash
        "\u3164",  # shows nothing
        "a\u200bb",
    ],
)
def test_invalid_names_are_refused(accounts: Accounts, name: str) -> None:
    with pytest.raises(Invalid, match=r"1 to 40 printable characters without slashes"):
        accounts.add_user(name)


@pytest.mark.parametrize(
    "name",
    [
        "x" * MAX_NAME_CHARS,
        "'; DROP TABLE users; --",
        "<img src=x onerror=alert(1)>",
        "Li é 名 🦊",
        "Жанна",
    ],
)
def test_unusual_names_are_valid(accounts: Accounts, name: str) -> None:
    me = accounts.whoami(accounts.add_user(name))
    assert me is not None
    assert me.name == name
    assert [user.name for user in accounts.users()] == [name]


@pytest.mark.parametrize("name", ["ad\u0430", "\u03b1da", "Ж é 名 🦊"])
def test_names_of_several_scripts_are_refused(accounts: Accounts, name: str) -> None:
    with pytest.raises(Invalid, match=rf"letters of one script, and {name} mixes \w+ and \w+"):
        accounts.add_user(name)
    assert accounts.users() == []


def test_names_that_look_like_anothers_are_refused(accounts: Accounts) -> None:
    accounts.add_user("Bill")
    accounts.add_user("\u0441\u043e\u0440")
    for name in ("BiIl", "Bi1l", "B\u00edll", "Bill\ufe0f"):
        with pytest.raises(Conflict, match=rf"the name {name} looks like Bill, .*choose another"):
            accounts.add_user(name)
    with pytest.raises(Conflict, match="the name cop looks like \u0441\u043e\u0440, "):
        accounts.add_user("cop")
    assert [user.name for user in accounts.users()] == ["Bill", "\u0441\u043e\u0440"]


def test_concurrent_users_who_look_alike(accounts: Accounts) -> None:
    def add(name: str) -> str | None:
        try:
            return accounts.add_user(name)
        except Conflict:
            return None

    names = ["modern", "modem", "m0dern", "rnodem"]
    with ThreadPoolExecutor(4) as pool:
        assert sum(token is not None for token in pool.map(add, names)) == 1


def test_the_database_holds_no_two_users_who_look_alike(accounts: Accounts, ledger: Ledger) -> None:
    accounts.add_user("bill")
    same = users.insert().from_select(
        ["name", "name_key", "role", "created_at", "skeleton"],
        select(literal("x"), literal("x"), users.c.role, users.c.created_at, users.c.skeleton),
    )
    with ledger._engine.connect() as connection, pytest.raises(IntegrityError):
        connection.execute(same)


def test_names_are_normalized() -> None:
    assert validate_name("e\u0301") == validate_name("\u00e9")


def test_the_first_admin_is_created_once(accounts: Accounts) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: accounts.first_admin(), range(4)))
    (token,) = (one for one in made if one is not None)
    assert accounts.whoami(token) == User(1, "admin", "admin")
    assert accounts.first_admin() is None


def test_new_admin_token_unbans_the_admin(
    accounts: Accounts, admin: AdminService, ledger: Ledger
) -> None:
    first = accounts.first_admin()
    assert first is not None
    accounts.add_user("ada")
    accounts.add_user("root", "admin")
    again = accounts.new_admin_token()
    assert accounts.whoami(again) == User(1, "admin", "admin")
    assert accounts.whoami(first) is not None, "the old one may turn up; it can be revoked"
    admin.ban("admin", "", "root")
    assert accounts.whoami(accounts.new_admin_token()) == User(3, "root", "admin")
    admin.ban("root", "", "admin")
    back = accounts.new_admin_token()
    assert accounts.whoami(back) == User(1, "admin", "admin"), "all were banned"
    told = [(a.actor, a.action, a.subject) for a in reversed(audit_entries(ledger._engine, 100))][
        3:
    ]
    assert told == [
        ("server", "token new", "admin"),
        ("root", "ban", "admin"),
        ("server", "token new", "root"),
        ("admin", "ban", "root"),
        ("server", "unban", "admin"),
        ("server", "token new", "admin"),
    ]
    assert back not in repr(audit_entries(ledger._engine, 100))


def test_new_admin_token_creates_the_first_admin(accounts: Accounts) -> None:
    assert accounts.whoami(accounts.new_admin_token()) == User(1, "admin", "admin")


def test_a_token_works_on_a_read_only_database(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = accounts.add_user("ada")

    def full(*_: object) -> NoReturn:
        raise BoardError("database or disk is full")

    monkeypatch.setattr("grader.server.services.accounts.transaction", full)
    assert accounts.whoami(token) is not None
    assert "the last use of a token was not stored: database or disk is full" in caplog.text


def test_concurrent_users_of_one_name(accounts: Accounts) -> None:
    def add(_: int) -> str | None:
        try:
            return accounts.add_user("ada")
        except Conflict:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert sum(token is not None for token in pool.map(add, range(4))) == 1


def test_a_user_may_have_several_tokens(accounts: Accounts) -> None:
    accounts.first_admin()
    first = accounts.add_user("ada")
    second = accounts.new_token("ADA", "laptop", by="root")
    assert accounts.whoami(first) == accounts.whoami(second)
    one, other = accounts.tokens("ada")
    assert (one.label, other.label) == ("first", "laptop")
    assert accounts.revoke(one.id) == 1
    assert accounts.whoami(first) is None
    assert accounts.whoami(second) is not None
    assert accounts.revoke(one.id) == 0, "it is revoked already"
    assert accounts.revoke("ada") == 1
    assert accounts.whoami(second) is None
    third = accounts.new_token("ada")
    assert accounts.whoami(third) is not None


def test_unknown_users_and_tokens(accounts: Accounts) -> None:
    with pytest.raises(NotFound, match="no user eve"):
        accounts.new_token("eve")
    with pytest.raises(NotFound, match="no user eve"):
        accounts.revoke("eve")
    with pytest.raises(NotFound, match=r"no user \\x00"):
        accounts.revoke("\x00")
    with pytest.raises(NotFound, match="no user eve"):
        accounts.tokens("eve")
    for number in (0, -1, 99, 2**80):
        with pytest.raises(NotFound, match="no token"):
            accounts.revoke(number)


def test_the_last_admin_keeps_a_token(accounts: Accounts) -> None:
    token = accounts.first_admin()
    assert token is not None
    with pytest.raises(Conflict, match="last token of an admin"):
        accounts.revoke("admin")
    with pytest.raises(Conflict, match="last token of an admin"):
        accounts.revoke(1)
    assert accounts.whoami(token) is not None
    accounts.add_user("root", "admin")
    assert accounts.revoke("admin") == 1
    assert accounts.whoami(token) is None


def test_a_token_can_be_revoked_where_no_admin_has_one(
    accounts: Accounts, admin: AdminService
) -> None:
    """As where the only other admin signs in by another site."""
    accounts.add_user("root", "admin")
    accounts.add_user("ada")
    admin.ban("root", "", "someone else")
    assert accounts.revoke("ada") == 1


def test_a_session_expires_and_opens_no_other(accounts: Accounts, clock: Clock) -> None:
    accounts.first_admin()
    token = accounts.add_user("ada")
    session = accounts.open_session(token)
    assert isinstance(session, str)
    assert session != token
    assert accounts.whoami(session) == accounts.whoami(token)
    assert accounts.open_session(session) is None
    assert len(accounts.tokens("ada")) == 1, "a session is not listed"
    clock.move(12 * 3600 - 1)
    assert accounts.whoami(session) is not None
    clock.move(1)
    assert accounts.whoami(session) is None
    assert accounts.whoami(token) is not None


def test_a_session_is_closed(accounts: Accounts) -> None:
    token = accounts.add_user("ada")
    session = accounts.open_session(token)
    assert isinstance(session, str)
    accounts.close_session(token)
    assert accounts.whoami(token) is not None, "it is a token, not a session"
    accounts.close_session(session)
    assert accounts.whoami(session) is None
    accounts.close_session(session)


def test_sessions_end_with_the_token_that_opened_them(accounts: Accounts) -> None:
    accounts.first_admin()
    token = accounts.add_user("ada")
    other = accounts.new_token("ada")
    session, kept = accounts.open_session(token), accounts.open_session(other)
    assert isinstance(session, str)
    assert isinstance(kept, str)
    assert accounts.revoke(accounts.tokens("ada")[0].id) == 2
    assert accounts.whoami(session) is None
    assert accounts.whoami(kept) is not None
    accounts.revoke("ada")
    assert accounts.whoami(kept) is None


def test_expired_sessions_are_deleted(accounts: Accounts, clock: Clock, ledger: Ledger) -> None:
    token = accounts.add_user("ada")
    for _ in range(3):
        accounts.open_session(token)
    clock.move(13 * 3600)
    accounts.open_session(token)
    assert stored(ledger).count("'session'") == 1


def test_the_last_use_is_stored_once_a_minute(accounts: Accounts, clock: Clock) -> None:
    token = accounts.add_user("ada")

    def last_used() -> object:
        found = accounts.user("ada")
        assert found is not None
        return found.last_used_at

    assert last_used() is None
    accounts.whoami(token)
    first = clock()
    assert last_used() == first
    clock.move(59)
    accounts.whoami(token)
    assert last_used() == first
    clock.move(1)
    accounts.whoami(token)
    assert last_used() == clock()


def test_a_banned_user_has_no_access_until_unbanned(
    accounts: Accounts, admin: AdminService
) -> None:
    token = accounts.add_user("ada")
    session = accounts.open_session(token)
    assert isinstance(session, str)
    admin.ban("ada", "shared her token", "root")
    assert accounts.whoami(token) is None
    assert accounts.whoami(session) is None
    banned = Banned("shared her token")
    assert accounts.open_session(token) == accounts.open_session(session) == banned
    assert accounts.users_of([token, session]) == {token: banned, session: banned}
    admin.unban("ada", "root")
    assert accounts.whoami(token) is not None
    assert isinstance(accounts.open_session(token), str)


def test_every_change_is_audited_without_secrets(accounts: Accounts, ledger: Ledger) -> None:
    secrets = [
        accounts.first_admin(),
        accounts.add_user("ada", "worker", by="root"),
        accounts.new_token("ada", "laptop", by="root"),
    ]
    accounts.revoke(2, by="root")
    accounts.revoke("ada", by="root")
    told = [(a.actor, a.action, a.subject) for a in reversed(audit_entries(ledger._engine, 100))]
    assert told == [
        ("server", "user add", "admin"),
        ("root", "user add", "ada"),
        ("root", "token new", "ada"),
        ("root", "token revoke", "2"),
        ("root", "token revoke", "ada"),
    ]
    whole = repr(audit_entries(ledger._engine, 100))
    for secret in secrets:
        assert secret is not None
        assert secret not in whole
        assert hashlib.sha256(secret.encode()).hexdigest() not in whole


def test_a_refused_change_is_not_audited(accounts: Accounts, ledger: Ledger) -> None:
    accounts.add_user("ada")
    before = audit_entries(ledger._engine, 100)
    with pytest.raises(Conflict):
        accounts.add_user("ada")
    with pytest.raises(NotFound):
        accounts.revoke("eve")
    assert audit_entries(ledger._engine, 100) == before
