from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from grader.board import Board, NoSuchVersion, ProblemVersion, choose_version
from grader.board.versions import version_of
from grader.db.engine import transaction
from grader.db.tables import problem_versions, voids
from grader.fleet import Ledger
from grader.report import Report
from tests.db.conftest import url as url
from tests.fleet.conftest import clock as clock
from tests.fleet.conftest import ledger as ledger

START = datetime(2030, 1, 1, tzinfo=UTC)
OLD, NEW, NEXT = ("a1b2c3" + letter * 58 for letter in "0de")

MakeReport = Callable[..., Report]


def record(
    board: Board, make_report: MakeReport, digest: str, hour: int, user: str = "ada", **more: Any
) -> int:
    at = START + timedelta(hours=hour)
    report = make_report(problem_digest=digest, created_at=at, **more)
    return board.record(report, user, b"").id or 0


def shown(versions: list[ProblemVersion]) -> list[tuple[int, str, int, int]]:
    return [(one.number, one.digest, one.results, one.users) for one in versions]


def test_versions_are_numbered_as_they_appear(tmp_path: Path, make_report: MakeReport) -> None:
    with closing(Board.open(f"sqlite:///{tmp_path}/board.sqlite3")) as board:
        assert shown(board.versions("softmax", NEW)) == [(1, NEW, 0, 0)]
        record(board, make_report, NEW, 5)
        record(board, make_report, OLD, 1)
        record(board, make_report, OLD, 3, "bob", verdict="wrong_answer", ranked=False)
        record(board, make_report, OLD, 4, "ada")
        record(board, make_report, NEXT, 0, problem="other")
        old, new = versions = board.versions("softmax", NEW)
        assert shown(versions) == [(1, OLD, 3, 1), (2, NEW, 1, 1)]
        assert old.first_at == START + timedelta(hours=1)
        assert old.last_at == START + timedelta(hours=4)
        assert new.first_at == new.last_at == START + timedelta(hours=5)
        assert shown(board.versions("softmax", NEXT)) == [*shown(versions), (3, NEXT, 0, 0)]
        assert version_of(versions, NEW) is new


def test_versions_of_a_server(ledger: Ledger, make_report: MakeReport) -> None:
    """Those that were served keep their numbers without results, and void results do not count."""
    board = ledger.board
    first = record(board, make_report, OLD, 2)
    record(board, make_report, OLD, 3, "bob")
    for digest, hour in ((OLD, 4), (NEXT, 5), (NEW, 6)):
        at = START + timedelta(hours=hour)
        with transaction(board._engine) as connection:
            connection.execute(
                insert(problem_versions).values(
                    problem="softmax", digest=digest, spec={}, files={}, first_served_at=at,
                    last_served_at=at,
                )
            )  # fmt: skip
    assert shown(board.versions("softmax", NEW)) == [
        (1, OLD, 2, 2),
        (2, NEXT, 0, 0),
        (3, NEW, 0, 0),
    ]
    record(board, make_report, NEW, 7)
    for number in (first, 3):
        with transaction(board._engine) as connection:
            connection.execute(
                insert(voids).values(result_id=number, why="deleted", at=START, by="root")
            )
    old, _, new = versions = board.versions("softmax", NEW)
    assert shown(versions) == [(1, OLD, 1, 1), (2, NEXT, 0, 0), (3, NEW, 0, 0)]
    assert old.first_at == old.last_at == START + timedelta(hours=3)
    assert new.first_at is None


def test_results_that_do_not_rank_of_one_version(tmp_path: Path, make_report: MakeReport) -> None:
    with closing(Board.open(f"sqlite:///{tmp_path}/board.sqlite3")) as board:
        record(board, make_report, OLD, 1)
        wrong = record(board, make_report, OLD, 2, verdict="wrong_answer", ranked=False)
        record(board, make_report, NEW, 3)
        found = board.unranked("softmax", OLD, most=9, of_version=True)
        assert [one.report.id for one in found] == [wrong]


VERSIONS = [
    ProblemVersion(number, digest, 0, 0, None, None)
    for number, digest in enumerate((OLD, NEW, "123456" + "0" * 58), start=1)
]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("02", 2), (OLD[:7], 1), (NEW.upper(), 2), (f" {NEW[:12]} ", 2), ("123456", 3)],
)
def test_a_version_is_named_by_its_number_or_the_begin_of_its_digest(
    text: str, number: int
) -> None:
    assert choose_version(VERSIONS, text).number == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "no such version; name a number from 1 to 3"),
        ("4", "no such version"),
        ("99999", "no such version"),
        ("-1", "no such version"),
        ("²", "no such version"),
        ("", "no such version"),
        ("a1b2c", "6 or more characters"),
        ("a1b2c3", "several versions begin so"),
        ("a1b2c%", "no such version"),
        (OLD + "0", "no such version"),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(NoSuchVersion, match=message):
        choose_version(VERSIONS, text)
