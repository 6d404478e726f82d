"""What a competitor does with a server besides submitting, against one on a real socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.command_line import Grade, runner
from tests.server.conftest import H100, KERNEL, World
from tests.server.examples import A100, accepted, finish, queue_submission


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade` as ada, in an empty folder."""
    monkeypatch.delenv("GRADE_SERVER", raising=False)
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])
    monkeypatch.setenv("GRADE_DB", f"sqlite:///{tmp_path}/local.sqlite3")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return runner(capsys)


def _rank(world: World, user: str, score_us: float, gpu: str = H100) -> int:
    """A ranked result. Returns its submission."""
    number = queue_submission(world.services.ledger, world.problem, user)
    interval = {"score_us": score_us, "score_ci_us": (score_us - 0.1, score_us + 0.1)}
    finish(world.services.ledger, world.clock, accepted(world.problem, 0.5, gpu) | interval)
    return number


# Leaderboard -------------------------------------------------------------------------------------


def test_leaderboard_of_a_server_has_the_local_fields(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _rank(world, "ada", 20.0), _rank(world, "bob", 10.0)
    _rank(world, "ada", 30.0, A100)
    shown = grade("leaderboard", "softmax", "--server", world.url, "--json").json
    assert (shown["problem"], shown["version"]) == ("softmax", 1)
    assert shown["problem_digest"] == world.problem.digest
    assert shown["other_versions"] == shown["unranked"] == []
    assert sorted(board["gpu"] for board in shown["leaderboards"]) == sorted([H100, A100])
    (board,) = (board for board in shown["leaderboards"] if board["gpu"] == H100)
    assert [(one["rank"], one["user"], one["submission_id"]) for one in board["entries"]] == [
        (1, "bob", second), (2, "ada", first),
    ]  # fmt: skip
    local = {"rank", "user", "result_id", "score_us", "ci_us", "language", "created_at", "speedup",
             "sol"}  # fmt: skip
    assert board["entries"][0].keys() == local | {"submission_id"}
    monkeypatch.setenv("GRADE_SERVER", world.url)
    result = grade("leaderboard", "softmax", "--gpu", "a100")
    assert result.status == 0
    assert A100 in result.out
    assert H100 not in result.out
    assert "30.00 µs" in result.out.replace("\N{NO-BREAK SPACE}", " ")


def test_leaderboard_is_read_in_parts_and_without_a_token(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.cli.remote_board.PAGE_ENTRIES", 2)
    monkeypatch.delenv("GRADE_TOKEN")
    for number in range(5):
        _rank(world, f"user{number}", 10.0 + number)
    shown = grade("leaderboard", "softmax", "--server", world.url, "--json").json
    users = [one["user"] for one in shown["leaderboards"][0]["entries"]]
    assert users == [f"user{number}" for number in range(5)]


def test_leaderboard_without_results_and_of_no_problem(grade: Grade, world: World) -> None:
    result = grade("leaderboard", "softmax", "--server", world.url)
    assert result.status == 0
    assert "No ranked result" in result.out
    assert grade("leaderboard", "nothing", "--server", world.url).status == 2
    result = grade("leaderboard", "softmax", "--server", world.url, "--version", "7", "--json")
    assert result.status == 2
    assert "error" in result.json
    result = grade("leaderboard", "softmax", "--server", world.url, "--db", "sqlite://")
    assert result.status == 2
    assert "--db is for reading the board of this machine" in result.err


# Results and reports -----------------------------------------------------------------------------


def test_results_of_a_server_are_ones_own(grade: Grade, world: World) -> None:
    first, _, waiting = world.graded("ada"), world.graded("bob"), world.submitted("ada")
    shown = grade("results", "--server", world.url, "--json").json
    assert [one["id"] for one in shown["results"]] == [waiting, first]
    assert shown["more"] is False
    assert shown["results"][1]["verdict"] == "accepted"
    assert shown["results"][0]["verdict"] is None
    assert {"problem", "score_us", "gpu", "created_at", "user"} <= shown["results"][0].keys()
    shown = grade("results", "softmax", "--server", world.url, "--last", "1", "--json").json
    assert ([one["id"] for one in shown["results"]], shown["more"]) == ([waiting], True)
    result = grade("results", "--server", world.url, "--user", "bob")
    assert "accepted" in result.out
    assert f"#{first} " not in result.out
    assert "No submission" in grade("results", "--server", world.url, "--user", "nobody").out


def test_show_prints_a_report_as_submit_does(grade: Grade, world: World) -> None:
    number = world.graded("ada")
    shown = grade("show", f"#{number}", "--server", world.url, "--json")
    assert shown.status == 0
    assert (shown.json["id"], shown.json["verdict"]) == (number, "accepted")
    text = grade("show", str(number), "--server", world.url).out
    assert "accepted" in text
    assert f"submission {number} by ada to softmax; {world.url}/submissions/{number}" in text


def test_show_prints_of_anothers_what_is_public(grade: Grade, world: World) -> None:
    number = world.graded("bob", verdict="wrong_answer", reason="secret", ranked=False)
    result = grade("show", str(number), "--server", world.url)
    assert result.status == 0
    assert "wrong answer" in result.out
    assert "secret" not in result.out


def test_show_says_how_far_an_unfinished_submission_is(grade: Grade, world: World) -> None:
    number = world.submitted("ada")
    out = grade("show", str(number), "--server", world.url).out
    assert f"submission {number} by ada to softmax: waiting, position 1" in out
    world.lease()
    assert "running" in grade("show", str(number), "--server", world.url).out


def test_show_of_a_problem_is_of_this_machine(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = grade("show", "softmax", "--server", world.url)
    assert result.status == 2
    assert "--server is for a submission" in result.err
    monkeypatch.setenv("GRADE_SERVER", world.url)
    assert grade("show", str(world.problem.folder)).status == 0


# Queue, cancel, download -------------------------------------------------------------------------


def test_queue_lists_what_runs_and_waits(grade: Grade, world: World) -> None:
    running, waiting = world.submitted("ada"), world.submitted("bob")
    world.lease()
    shown = grade("queue", "--server", world.url, "--json").json["jobs"]
    assert [(one["id"], one["position"]) for one in shown] == [(running, None), (waiting, 1)]
    shown = grade("queue", "--user", "bob", "--server", world.url, "--json").json["jobs"]
    assert [one["id"] for one in shown] == [waiting]
    out = grade("queue", "--server", world.url).out
    assert [line.split()[:3] for line in out.splitlines() if "#" in line] == [
        ["now", f"#{running}", "ada"], ["1", f"#{waiting}", "bob"],
    ]  # fmt: skip
    out = grade("queue", "--problem", "int4_matmul", "--server", world.url).out
    assert out == "nothing is graded, and nothing waits\n"


def test_cancel_ends_what_waits_and_nothing_else(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, number, other = world.graded("ada"), world.submitted("ada"), world.submitted("bob")
    assert grade("cancel", f"#{number}", "--server", world.url, "--json").json == {
        "id": number, "state": "cancelled",
    }  # fmt: skip
    for wrong in (number, done, other, "x", 999):
        result = grade("cancel", str(wrong), "--server", world.url)
        assert result.status == 2, result
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["root"])
    result = grade("cancel", str(done), "--server", world.url)
    assert (result.status, result.err) == (2, f"grade: submission {done} is done already\n")
    assert world.client().get(f"/api/v1/submissions/{done}").json()["counts"] is True
    assert grade("cancel", str(other), "--server", world.url).status == 0


def test_withdraw_takes_ones_own_result_off_the_board(grade: Grade, world: World) -> None:
    slow, fast, other = _rank(world, "ada", 30), _rank(world, "ada", 20), _rank(world, "bob", 10)

    def scores() -> list[tuple[str, float]]:
        entries = world.client().get("/api/v1/leaderboards/softmax").json()["entries"]
        return [(one["user"], one["score_us"]) for one in entries]

    result = grade("withdraw", f"#{fast}", "--server", world.url)
    assert (result.status, result.out) == (0, "")
    assert f"submission {fast} is withdrawn" in result.err
    assert scores() == [("bob", 10), ("ada", 30)]
    shown = grade("show", f"#{fast}", "--server", world.url)
    assert "withdrawn by its author" in shown.out
    assert "withdrawn" in grade("results", "--server", world.url).out
    as_json = grade("show", f"#{fast}", "--server", world.url, "--json").json
    assert (as_json["withdrawn"], as_json["counts"]) == (True, False)
    listed = grade("results", "--server", world.url, "--json").json["results"]
    assert {one["id"]: one["withdrawn"] for one in listed} == {slow: False, fast: True}
    undone = grade("withdraw", str(fast), "--undo", "--server", world.url, "--json")
    assert undone.json == {"id": fast, "withdrawn": False}
    assert scores() == [("bob", 10), ("ada", 20)]
    waiting = world.submitted("ada")
    for wrong, message in (
        (other, "only its author can withdraw a result"),
        (waiting, "is queued and has no result"),
        (999, "there is no submission 999"),
        ("x", "is not a submission's number"),
    ):
        result = grade("withdraw", str(wrong), "--server", world.url)
        assert result.status == 2
        assert message in result.err


def test_download_writes_ones_own_source(grade: Grade, world: World, tmp_path: Path) -> None:
    number = world.submitted("ada")
    result = grade("download", str(number), "--server", world.url, "--json")
    assert result.json["file"] == f"submission-{number}.py"
    assert (tmp_path / f"submission-{number}.py").read_bytes() == KERNEL
    result = grade("download", str(number), "--server", world.url)
    assert result.status == 2
    assert "already exists" in result.err
    assert grade("download", str(number), "-o", "mine.py", "--server", world.url).status == 0
    assert (tmp_path / "mine.py").read_bytes() == KERNEL
    result = grade("download", str(number), "-o", "no/mine.py", "--server", world.url)
    assert result.status == 2
    other = world.submitted("bob")
    result = grade("download", str(other), "--server", world.url, "--json")
    assert result.status == 2
    assert "its author's" in json.loads(result.out)["error"]
    assert not list(tmp_path.glob(f"submission-{other}*"))


def test_a_name_from_the_server_chooses_no_path(
    grade: Grade, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.cli.remote.Client.content", lambda *_: (b"text", "../../.bashrc"))
    assert grade("download", "7", "--server", world.url).status == 0
    assert (tmp_path / "submission-7.txt").read_bytes() == b"text"
