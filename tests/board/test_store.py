from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError

from grader.board import Board, BoardError, MissingBoardError, default_url
from grader.db.engine import translate_errors
from grader.db.tables import voids
from grader.report import Report
from tests.waiting import PATIENCE_S

H100 = "NVIDIA H100 80GB HBM3"
DIGEST = "d" * 64
MakeReport = Callable[..., Report]


@pytest.fixture(params=["memory", "file"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Board]:
    url = "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/new/board.sqlite3"
    opened = Board.open(url)
    yield opened
    opened.close()


def record(board: Board, make: MakeReport, user: str, score_us: float, half_us: float) -> Report:
    interval = (score_us - half_us, score_us + half_us)
    return board.record(make(score_us=score_us, score_ci_us=interval), user, b"def softmax(): ...")


def test_a_stored_result_is_returned_unchanged(board: Board, make_report: MakeReport) -> None:
    report = make_report()
    recorded = board.record(report, "ada", b"\x00source\xff")
    stored = board.result(recorded.id or 0)
    assert (recorded.id, recorded.rank) == (1, 1)
    assert stored.user == "ada"
    assert stored.source == b"\x00source\xff"
    assert stored.report == report.model_copy(update={"id": 1})


def test_attempts_of_a_user(board: Board, make_report: MakeReport) -> None:
    for changes in ({}, {"verdict": "wrong_answer", "ranked": False}, {"problem_digest": "e" * 64}):
        board.record(make_report(score_us=30.0, **changes), "ada", b"")
    board.record(make_report(), "bob", b"")
    found = board.attempts("ada")
    assert [(one.problem, one.verdict, one.gpu) for one in found] == [
        ("softmax", "accepted", H100), ("softmax", "wrong_answer", H100),
        ("softmax", "accepted", H100),
    ]  # fmt: skip
    assert [(one.problem_digest[0], one.score_us) for one in found] == [
        ("d", 30.0), ("d", None), ("e", 30.0),
    ]  # fmt: skip
    assert board.attempts("eve") == []


def test_a_missing_board_is_told_from_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(MissingBoardError, match="there is no board at"):
        Board.open(f"sqlite:///{tmp_path}/board.sqlite3", create=False)
    (tmp_path / "text").write_text("no database\n" * 100)
    with pytest.raises(BoardError) as error:
        Board.open(f"sqlite:///{tmp_path}/text", create=False)
    assert not isinstance(error.value, MissingBoardError)


def test_results_that_do_not_rank(tmp_path: Path, make_report: MakeReport) -> None:
    url = f"sqlite:///{tmp_path}/board.sqlite3"
    with closing(Board.open(url)) as board:
        for changes in ({}, {}, {"verdict": "wrong_answer"}, {"problem_digest": "e" * 64}):
            board.record(make_report(**changes), "ada", b"")
        board.record(make_report(problem="other"), "ada", b"")
        assert [one.report.id for one in board.results(most=3)] == [5, 4, 3]
        assert [one.report.id for one in board.results("softmax", "ada", most=9)] == [4, 3, 2, 1]
        assert board.results("softmax", "bob", most=9) == []
        unranked = board.unranked("softmax", DIGEST, most=9)
        assert [(one.report.id, one.void) for one in unranked] == [(4, False), (3, False)]
        engine = create_engine(url)
        voids.create(engine)
        with engine.begin() as connection:
            row = {"result_id": 2, "why": "withdrawn", "at": datetime.now(UTC), "by": "root"}
            connection.execute(voids.insert().values(row))
        unranked = board.unranked("softmax", DIGEST, "h100", most=2)
        assert [(one.report.id, one.void) for one in unranked] == [(4, False), (3, False)]
        unranked = board.unranked("softmax", DIGEST, most=9)
        assert [(one.report.id, one.void) for one in unranked][2:] == [(2, True)]
        assert board.unranked("softmax", DIGEST, "A100", most=9) == []
        engine.dispose()


def test_each_users_best_result_and_shared_ranks(board: Board, make_report: MakeReport) -> None:
    record(board, make_report, "ada", 80, 1)
    record(board, make_report, "ada", 50, 2)
    record(board, make_report, "bob", 51, 2)
    record(board, make_report, "cy", 60, 1)
    lines = [(e.rank, e.user, e.score_us) for e in board.leaderboard(DIGEST, H100)]
    assert lines == [(1, "ada", 50), (1, "bob", 51), (3, "cy", 60)]
    entry = board.leaderboard(DIGEST, H100)[0]
    assert entry.speedup == {"eager": 1.25}
    assert entry.sol == pytest.approx(0.9)
    assert entry.result_id == 2


def test_the_rank_of_a_result_is_its_own(board: Board, make_report: MakeReport) -> None:
    assert record(board, make_report, "ada", 50, 1).rank == 1
    assert record(board, make_report, "bob", 70, 1).rank == 2
    # Slower than the user's own best, but faster than all others.
    assert record(board, make_report, "ada", 60, 1).rank == 1
    assert record(board, make_report, "bob", 55, 1).rank == 2


def test_equal_scores_keep_the_earlier_first(board: Board, make_report: MakeReport) -> None:
    record(board, make_report, "ada", 50, 0)
    record(board, make_report, "bob", 50, 0)
    assert [e.user for e in board.leaderboard(DIGEST, H100)] == ["ada", "bob"]


@pytest.mark.parametrize(
    "changes",
    [
        {"ranked": False},
        {"verdict": "wrong_answer", "ranked": False, "score_us": None, "score_ci_us": None},
        {"device": "cpu", "gpu": None, "ranked": False, "score_us": None, "score_ci_us": None},
        # Whatever `ranked` is, only an accepted, timed GPU run ranks.
        {"verdict": "rejected"},
        {"gpu": None},
        {"score_us": None, "score_ci_us": None},
    ],
)
def test_recorded_but_not_ranked(
    board: Board, make_report: MakeReport, changes: dict[str, object]
) -> None:
    recorded = board.record(make_report(**changes), "ada", b"x")
    assert recorded.id == 1
    assert recorded.rank is None
    assert board.count("softmax") == 1
    assert board.gpus(DIGEST) == []


@pytest.mark.parametrize("verdict", [None, "judge_error"])
def test_no_verdict_on_the_submission_is_not_recorded(
    board: Board, make_report: MakeReport, verdict: str | None
) -> None:
    with pytest.raises(ValueError, match="verdict"):
        board.record(make_report(verdict=verdict), "ada", b"x")
    assert board.count("softmax") == 0


def test_versions_and_gpus_do_not_share_a_ranking(board: Board, make_report: MakeReport) -> None:
    board.record(make_report(), "ada", b"x")
    board.record(make_report(problem_digest="e" * 64), "ada", b"x")
    board.record(make_report(gpu="NVIDIA H200"), "bob", b"x")
    assert board.gpus(DIGEST) == [H100, "NVIDIA H200"]
    assert [e.user for e in board.leaderboard(DIGEST, H100)] == ["ada"]
    assert [e.user for e in board.leaderboard(DIGEST, "NVIDIA H200")] == ["bob"]


def test_results_cannot_be_changed_or_removed(board: Board, make_report: MakeReport) -> None:
    board.record(make_report(), "ada", b"x")
    for statement in ("UPDATE results SET score_us = 1", "DELETE FROM results"):
        with (
            board._engine.connect() as connection,
            pytest.raises(IntegrityError, match="append-only"),
        ):
            connection.execute(text(statement))


def test_no_such_result(board: Board) -> None:
    with pytest.raises(BoardError, match="no result 17"):
        board.result(17)


RECORDER = """
import sys
from grader.board import Board
from grader.report import Report
report = Report.model_validate_json(sys.stdin.read())
board = Board.open(sys.argv[1])
for _ in range(20):
    board.record(report, sys.argv[2], b"x")
"""


def test_processes_record_concurrently(tmp_path: Path, make_report: MakeReport) -> None:
    url = f"sqlite:///{tmp_path}/board.sqlite3"
    recorders = [
        subprocess.Popen(
            [sys.executable, "-c", RECORDER, url, user],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for user in ("ada", "bob", "cy")
    ]
    report = make_report().model_dump_json()
    for recorder in recorders:
        assert recorder.stdin is not None
        recorder.stdin.write(report)
        recorder.stdin.close()
        recorder.stdin = None
    for recorder in recorders:
        _, errors = recorder.communicate(timeout=PATIENCE_S)
        assert (recorder.returncode, errors) == (0, "")
    board = Board.open(url)
    assert board.count("softmax") == 60
    assert len(board.leaderboard(DIGEST, H100)) == 3
    board.close()


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to do: write a kernel\n" * 100)
    with pytest.raises(BoardError, match=r"not a database.*--db"):
        Board.open(f"sqlite:///{path}")
    assert path.read_text().startswith("to do"), "the file of another program is unchanged"


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite3"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    content = path.read_bytes()
    for create in (True, False):
        with pytest.raises(BoardError, match=r"another program \(it has tables recipes\)"):
            Board.open(f"sqlite:///{path}", create=create)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_opening_without_create_changes_nothing(tmp_path: Path) -> None:
    empty, bare = tmp_path / "empty.sqlite3", tmp_path / "bare.sqlite3"
    empty.touch()
    with closing(sqlite3.connect(bare)) as other:
        other.execute("PRAGMA user_version = 7")
    for path in (empty, bare):
        content = path.read_bytes()
        with pytest.raises(BoardError, match=r"no board at .*; grade submit makes it"):
            Board.open(f"sqlite:///{path}", create=False)
        assert path.read_bytes() == content


def test_a_board_of_another_version(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/board.sqlite3"
    Board.open(url).close()
    with sqlite3.connect(tmp_path / "board.sqlite3") as file:
        file.execute("UPDATE grade_board SET value = '9'")
    file.close()
    with pytest.raises(BoardError, match="version 9, and this grade reads version 1"):
        Board.open(url)


def test_opening_without_create_needs_a_board(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/board.sqlite3"
    with pytest.raises(BoardError, match=r"no board at .*; grade submit makes it"):
        Board.open(url, create=False)
    assert not (tmp_path / "new").exists()
    Board.open(url).close()
    Board.open(url, create=False).close()


@pytest.mark.parametrize("url", ["board.sqlite3", "nonsense://x", "sqlite:////proc/board.sqlite3"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BoardError):
        Board.open(url)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        BoardError, match=r"needs psycopg, .*: pip install '\.\[postgres\]'"
    ) as caught:
        Board.open("postgresql://user:secret@localhost/x")
    assert "secret" not in str(caught.value)


def test_an_unsupported_database_is_refused() -> None:
    with pytest.raises(BoardError, match="an SQLite file or in PostgreSQL, not in 'mysql'"):
        Board.open("mysql+pymysql://user:secret@localhost/x")


def test_a_read_only_board_fails_check_writable(tmp_path: Path) -> None:
    Board.open(f"sqlite:///{tmp_path}/board.sqlite3").close()
    engine = create_engine(f"sqlite:///{tmp_path}/board.sqlite3")
    board = Board(engine)
    board.check_writable()
    assert board.count("softmax") == 0
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA query_only=ON"))
    engine.dispose()
    with pytest.raises(BoardError, match="this user may not write it"):
        board.check_writable()
    board.close()


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("database is locked", "try again"),
        ("attempt to write a readonly database", "--db"),
        ("database or disk is full", "make room"),
        ("unable to open database file", "folder exists"),
    ],
)
def test_a_database_error_says_what_to_do(cause: str, advice: str) -> None:
    with (
        pytest.raises(BoardError, match=f"{cause}.*{advice}"),
        translate_errors(make_url("sqlite://")),
    ):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError(cause))


def test_the_default_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/grade/board.sqlite3"
    Board.open(default_url()).close()
    assert (tmp_path / "grade").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "grade" / "board.sqlite3").stat().st_mode & 0o777 == 0o600
