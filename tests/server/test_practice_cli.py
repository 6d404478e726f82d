"""`grade practice --server` against a server on a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from grader.cli import remote_batch
from grader.fleet import State
from grader.server.services.admin_service import BoardSettings
from tests.server.command_line import Grade, runner
from tests.server.conftest import H100, KERNEL, SEED, World
from tests.server.test_submit_cli import FakeWorker


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade practice softmax kernel.py --server …` as ada."""
    monkeypatch.delenv("GRADE_SERVER", raising=False)
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(remote_batch, "POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_bytes(KERNEL)
    return runner(capsys, "practice")


def practise(grade: Grade, world: World, *more: str) -> Any:
    return grade("softmax", "kernel.py", "--server", world.url, *more)


def batch_states(world: World) -> list[str]:
    found = world.client("ada").get("/api/v1/batches").json()["batches"]
    return [one["state"] for one in found]


def test_the_report_is_shown_and_nothing_is_on_the_board(grade: Grade, world: World) -> None:
    world.services.admin.set_board("softmax", BoardSettings(daily_limit=1), "root")
    with FakeWorker(world):
        result = practise(grade, world)
        as_json = practise(grade, world, "--json")
    assert result.status == as_json.status == 0
    assert "accepted" in result.out
    assert f"practice on {world.url}, as batch 1: nothing is put on the board" in result.err
    assert str(SEED) not in result.out + as_json.out
    report = as_json.json
    assert (report["verdict"], report["ranked"], report["gpu"]) == ("accepted", False, H100)
    assert report["submission_name"] == "kernel.py"
    assert report["cases"]
    assert world.services.ledger.board.count("softmax") == 0
    assert world.services.ledger.submitted_in_a_day("ada") == {}
    assert world.submit("ada").status_code == 202, "it does not count toward the daily limit"


def test_another_verdict_is_status_1(grade: Grade, world: World) -> None:
    with FakeWorker(world, verdict="wrong_answer", reason="row 3 is off", score_us=None):
        result = practise(grade, world)
    assert result.status == 1
    assert "row 3 is off" in result.out


@pytest.fixture
def broken_worker(world: World) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.01):
            if (lease := world.services.ledger.claim("w", lease_s=60)) is not None:
                world.services.ledger.fail(lease, "no sandbox starts")
                world.clock.move(100)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.usefixtures("broken_worker")
def test_a_fault_of_the_server_is_status_3(grade: Grade, world: World) -> None:
    result = practise(grade, world)
    assert result.status == 3
    assert "no sandbox starts" in result.out
    as_json = practise(grade, world, "--json")
    assert as_json.status == 3
    assert (as_json.json["verdict"], as_json.json["ranked"]) == ("judge_error", False)


def test_submissions_go_first(grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that arrives later, too."""
    order: list[bool] = []

    def grade_both(_seconds: float) -> None:
        ledger = world.services.ledger
        number = world.submitted("bob")
        for _ in range(2):
            lease = world.lease()
            order.append(lease.submission_id == number)
            ledger.finish(lease, world.report(lease))

    monkeypatch.setattr("grader.cli.remote_batch.time.sleep", grade_both)
    assert practise(grade, world).status == 0
    assert order == [True, False]


def test_ctrl_c_cancels_it(grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grader.cli.remote_batch.time.sleep", interrupt)
    assert practise(grade, world).status == 130
    assert batch_states(world) == ["cancelled"]


def test_an_item_that_an_admin_cancels(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(_seconds: float) -> None:
        assert world.services.ledger.cancel(1, "root")

    monkeypatch.setattr("grader.cli.remote_batch.time.sleep", cancel)
    result = practise(grade, world)
    assert result.status == 2
    assert "batch 1 was cancelled on the server" in result.err
    job = world.services.ledger.job(1)
    assert job is not None
    assert job.state is State.CANCELLED


def test_a_board_that_only_admins_see_takes_no_practice(grade: Grade, world: World) -> None:
    for settings in ({"hidden": True}, {"opens_at": world.clock() + timedelta(days=1)}):
        world.services.admin.set_board("softmax", BoardSettings(**settings), "root")
        result = practise(grade, world)
        assert result.status == 2
        assert "there is no such problem here" in result.err
    assert batch_states(world) == []


def test_what_is_refused(grade: Grade, world: World, tmp_path: Path) -> None:
    past = BoardSettings(deadline=world.clock() - timedelta(seconds=1))
    for options, message in (
        (("--gpu", "H100"), "no worker has the GPU type 'H100'"),
        (("--full",), "--full is for grading on this machine"),
        (("--case", "primes"), "--case is for grading on this machine"),
        (("--seed", "7"), "--seed is for grading on this machine"),
        (("--device", "cpu"), "--device is for grading on this machine"),
    ):
        result = practise(grade, world, *options)
        assert result.status == 2
        assert message in result.err
    (tmp_path / "kernel.py").write_bytes(b"\xe9")
    assert "it is not UTF-8" in practise(grade, world).err
    (tmp_path / "kernel.py").write_bytes(KERNEL)
    world.services.admin.set_board("softmax", past, "root")
    result = practise(grade, world)
    assert result.status == 2
    assert "the deadline of softmax was" in result.err
    assert batch_states(world) == []


def test_the_environment_does_not_send_a_practice_away(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADE_SERVER", world.url)
    result = grade("no_such_problem_here", "kernel.py")
    assert result.status == 2
    assert "no problem 'no_such_problem_here' here" in result.err
    assert "--gpu chooses" in grade("softmax", "kernel.py", "--gpu", "H100").err
