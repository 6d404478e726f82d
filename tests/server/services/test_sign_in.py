"""Identities and sign-ins in progress, on both databases."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from grader.fleet import Ledger
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import Accounts, Banned
from grader.server.services.admin_service import AdminService
from grader.server.services.audit import audit_entries
from grader.server.services.sign_in import Person, SignIns
from tests.fleet.conftest import Clock

JANE = Person("https://github.com", "583231", "jane")


@pytest.fixture
def sign_ins(ledger: Ledger, clock: Clock) -> SignIns:
    return SignIns(ledger._engine, clock)


@pytest.fixture
def accounts(ledger: Ledger, clock: Clock) -> Accounts:
    return Accounts(ledger._engine, clock)


def outcome(work: object) -> str:
    try:
        work()  # type: ignore[operator]
    except (Conflict, Invalid) as error:
        return type(error).__name__
    return "done"


def test_a_sign_in_is_taken_once_by_all_servers(sign_ins: SignIns) -> None:
    secret = sign_ins.begin("github", {"state": "s"})
    with ThreadPoolExecutor(8) as pool:
        taken = list(
            pool.map(lambda _: outcome(lambda: sign_ins.take(secret, "github", "s")), range(8))
        )
    assert Counter(taken) == {"done": 1, "Invalid": 7}


def test_a_person_signs_up_once(sign_ins: SignIns, accounts: Accounts) -> None:
    secret = sign_ins.await_name("github", JANE, "/")
    names = [f"jane {letter}" for letter in "abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda name: outcome(lambda: sign_ins.sign_up(secret, name)), names))
    assert Counter(done) == {"done": 1, "Invalid": 7}
    assert len(accounts.users()) == 1
    second = sign_ins.await_name("github", JANE, "/")
    with pytest.raises(Conflict, match="linked to a user already"):
        sign_ins.sign_up(second, "joan")
    assert accounts.user("joan") is None
    assert sign_ins.awaited(second).details["name"] == "jane", "a refusal uses nothing up"


def test_the_audit_names_who_signed_up_and_linked(
    sign_ins: SignIns, accounts: Accounts, ledger: Ledger
) -> None:
    sign_ins.sign_up(sign_ins.await_name("github", JANE, "/"), "jane")
    accounts.new_token("jane")
    sign_ins.link_by_admin("jane", Person("https://a.example", "7"), "root")
    sign_ins.unlink("jane", sign_ins.identities("jane")[0].id, "jane")
    acts = [(act.actor, act.action, act.subject) for act in audit_entries(ledger._engine, 100)]
    assert acts[::-1] == [
        ("jane", "user add", "jane"),
        ("jane", "identity link", "jane"),
        ("server", "token new", "jane"),
        ("root", "identity link", "jane"),
        ("jane", "identity unlink", "jane"),
    ]


def test_a_subject_of_another_provider_is_another_person(
    sign_ins: SignIns, accounts: Accounts
) -> None:
    session = sign_ins.sign_up(sign_ins.await_name("github", JANE, "/"), "jane")
    found = accounts.whoami(session)
    assert found is not None
    assert found.name == "jane"
    assert sign_ins.open_session(JANE) is not None
    assert sign_ins.open_session(Person("https://a.example", JANE.subject)) is None
    assert sign_ins.open_session(Person(JANE.provider, "583232", "jane")) is None


def test_one_who_is_banned_links_nothing(
    sign_ins: SignIns, accounts: Accounts, ledger: Ledger, clock: Clock
) -> None:
    accounts.add_user("ada")
    ada = accounts.user("ada")
    assert ada is not None
    AdminService(ledger._engine, clock).ban("ada", "cheated", "root")
    assert sign_ins.link(ada.id, JANE) == Banned("cheated")
    assert sign_ins.identities("ada") == []


@pytest.mark.parametrize("subject", ["", "a\x00b", "a\nb", "a" * 256, "\ud800"])
def test_an_admin_links_only_what_a_provider_can_say(
    sign_ins: SignIns, accounts: Accounts, subject: str
) -> None:
    accounts.add_user("ada")
    with pytest.raises(Invalid, match="subject"):
        sign_ins.link_by_admin("ada", Person("https://github.com", subject), "root")
    with pytest.raises(NotFound):
        sign_ins.link_by_admin("bob", JANE, "root")
    for number in (0, -1, 1, 2**70):
        with pytest.raises(NotFound, match="has no linked account"):
            sign_ins.unlink("ada", number, "ada")
