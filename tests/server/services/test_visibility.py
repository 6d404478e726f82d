from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from grader.report import CaseResult, Mismatch, Report
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.visibility import (
    FULL_ACCESS,
    NO_ACCESS,
    Access,
    access_for,
    can_see_board,
    deadline_passed,
    redact,
    relation,
    sees_more,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ADA, BOB, WILMA, ROOT = (
    User(1, "ada", "competitor"),
    User(2, "bob", "competitor"),
    User(3, "wilma", "worker"),
    User(4, "root", "admin"),
)
PUBLIC = (None, BOB, WILMA)
BEFORE = BoardSettings(deadline=NOW + timedelta(seconds=1), publish_sources=True)
AFTER = BoardSettings(deadline=NOW, publish_sources=True)


def of(caller: User | None, board: BoardSettings | None = None, **more: object) -> Access:
    return access_for(caller, "ada", board or BoardSettings(), NOW, **more)  # type: ignore[arg-type]


def test_relations() -> None:
    assert [relation(who, "ada") for who in (ADA, BOB, WILMA, None, ROOT)] == [
        "owner",
        "public",
        "public",
        "public",
        "admin",
    ]
    assert relation(User(5, "Ada", "competitor"), "ada") == "public"


@pytest.mark.parametrize("board", [BoardSettings(), BEFORE, AFTER, BoardSettings(hidden=True)])
def test_owner_and_admin_see_everything(board: BoardSettings) -> None:
    assert of(ADA, board) == of(ROOT, board) == FULL_ACCESS


@pytest.mark.parametrize("caller", PUBLIC)
@pytest.mark.parametrize(
    ("board", "seen"),
    [
        (BoardSettings(), Access(True, True, False, False)),
        (BoardSettings(publish_sources=True), Access(True, True, False, True)),
        (BEFORE, Access(True, False, False, False)),
        (AFTER, Access(True, True, False, True)),
        (BoardSettings(deadline=NOW), Access(True, True, False, False)),
        (BoardSettings(hidden=True, publish_sources=True), NO_ACCESS),
    ],
)
def test_what_other_users_see(caller: User | None, board: BoardSettings, seen: Access) -> None:
    assert of(caller, board) == seen


@pytest.mark.parametrize("why", ["deleted", "preview"])
def test_withheld_results_are_visible_to_admins_only(why: str) -> None:
    void = frozenset({why, "rejudged"})
    assert of(ADA, void=void) == of(BOB, void=void) == of(None, void=void) == NO_ACCESS
    assert of(ROOT, void=void) == FULL_ACCESS


def test_an_unfinished_rejudge_is_visible_to_admins_only() -> None:
    assert of(ADA, rejudges=True) == of(None, rejudges=True) == NO_ACCESS
    assert of(ROOT, rejudges=True) == FULL_ACCESS


def test_a_banned_users_results_are_hidden_from_others() -> None:
    void = frozenset({"banned"})
    assert of(BOB, void=void) == NO_ACCESS
    assert of(ROOT, void=void) == FULL_ACCESS


def test_a_cancelled_submission_is_hidden_from_others() -> None:
    published = BoardSettings(publish_sources=True)
    for board in (None, published, AFTER):
        assert of(BOB, board, cancelled=True) == of(None, board, cancelled=True) == NO_ACCESS
        assert of(ADA, board, cancelled=True) == of(ROOT, board, cancelled=True) == FULL_ACCESS


def test_a_rejudged_result_stays_visible() -> None:
    assert of(BOB, void=frozenset({"rejudged"})).result


def test_boards() -> None:
    hidden = BoardSettings(hidden=True)
    assert [can_see_board(who, hidden, NOW) for who in (*PUBLIC, ROOT)] == [
        False,
        False,
        False,
        True,
    ]
    assert all(can_see_board(who, BoardSettings(), NOW) for who in (*PUBLIC, ROOT))
    assert deadline_passed(AFTER, NOW)
    assert not deadline_passed(BEFORE, NOW)
    assert not deadline_passed(BoardSettings(), NOW)


def test_a_report_without_its_details(make_report: Callable[..., Report]) -> None:
    wrong = CaseResult(
        name="odd",
        kind="test",
        params={"n": 1},
        status="wrong_answer",
        reason="SECRET",
        mismatch=Mismatch(
            argument="out",
            shape=[1],
            index=[0],
            expected=1.0,
            got=2.0,
            wrong_elements=1,
            total_elements=1,
        ),
    )
    report = make_report(
        verdict="wrong_answer", reason="SECRET", log="SECRET", notes=["SECRET"], cases=[wrong]
    )
    assert redact(report, FULL_ACCESS) == report
    assert redact(report, Access(True, False, False, False)) is None
    part = redact(report, Access(True, True, False, False))
    assert part is not None
    assert "SECRET" not in part.model_dump_json()
    assert part.cases[0].mismatch is None
    assert (part.verdict, part.cases[0].status) == ("wrong_answer", "wrong_answer")


def test_only_admins_see_a_board_before_it_opens() -> None:
    board, second = BoardSettings(opens_at=NOW), timedelta(seconds=1)
    for who in PUBLIC:
        assert not can_see_board(who, board, NOW - second)
        assert can_see_board(who, board, NOW)
        assert access_for(who, "eve", board, NOW - second) == NO_ACCESS
        assert access_for(who, "eve", board, NOW).exists
    assert can_see_board(ROOT, board, NOW - second)


def test_a_board_of_a_group_is_hidden_from_all_but_its_members() -> None:
    course = BoardSettings(group="course")
    member = User(6, "eve", "competitor", groups=frozenset({"other", "course"}))
    outsider = User(7, "dan", "competitor", groups=frozenset({"other"}))
    assert [can_see_board(who, course, NOW) for who in (*PUBLIC, outsider)] == [False] * 4
    assert can_see_board(member, course, NOW)
    assert can_see_board(ROOT, course, NOW)
    hidden = BoardSettings(hidden=True)
    for who in (*PUBLIC, outsider):
        assert access_for(who, "ben", course, NOW) == access_for(who, "ben", hidden, NOW)
    assert access_for(member, "ben", course, NOW) == access_for(member, "ben", BoardSettings(), NOW)
    assert access_for(outsider, "dan", course, NOW) == FULL_ACCESS, "one's own"
    soon = NOW + timedelta(seconds=1)
    for closed in (
        BoardSettings(hidden=True, group="course"),
        BoardSettings(opens_at=soon, group="course"),
    ):
        assert not can_see_board(member, closed, NOW)
        assert access_for(member, "ben", closed, NOW) == NO_ACCESS


def test_members_of_a_team_see_what_counts_for_it() -> None:
    mate = User(6, "eve", "competitor", team="tile")
    for board in (BoardSettings(), BEFORE, AFTER):
        assert of(mate, board, team="tile") == FULL_ACCESS
        assert of(mate, board, team="warp") == of(mate, board) == of(BOB, board)
        assert of(BOB, board, team="tile") == of(BOB, board)
        assert of(mate, board, team="tile", cancelled=True) == NO_ACCESS
        for reason in ("banned", "deleted", "preview"):
            assert of(mate, board, team="tile", void=frozenset({reason})) == NO_ACCESS
    assert of(mate, BoardSettings(hidden=True), team="tile") == NO_ACCESS
    assert of(mate, BoardSettings(group="course"), team="tile") == NO_ACCESS
    frozen = BoardSettings(freeze_at=NOW)
    assert of(mate, frozen, team="tile") == of(ADA, frozen)


def test_nothing_is_cached_for_those_who_see_more() -> None:
    assert [sees_more(who) for who in (*PUBLIC, ROOT)] == [False] * 3 + [True]
    assert sees_more(User(6, "eve", "competitor", groups=frozenset({"course"})))
    assert sees_more(User(6, "eve", "competitor", team="tile"))
