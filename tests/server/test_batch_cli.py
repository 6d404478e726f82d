"""`grade batch --server` against a server on a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.cli import remote_batch
from grader.cli.remote import Client, RefusedByServer, Unreachable
from tests.server.command_line import Grade, Result, runner
from tests.server.conftest import KERNEL, SEED, World


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade batch softmax --server …` as ada, in a folder with a kernel."""
    monkeypatch.delenv("GRADE_SERVER", raising=False)
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])
    monkeypatch.setattr(remote_batch, "POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_bytes(KERNEL)
    return runner(capsys, "batch", "softmax", "--server", world.url)


@pytest.fixture
def graded(world: World) -> Iterator[list[str]]:
    """The sources that a worker grades meanwhile. One that says so cannot be graded."""
    sources: list[str] = []
    over = threading.Event()

    def work() -> None:
        ledger = world.services.ledger
        while not over.wait(0.01):
            lease = ledger.claim("w", lease_s=60)
            if lease is None:
                continue
            sources.append(lease.source.decode())
            ledger.begin(lease)
            if "cannot be graded" in sources[-1]:
                ledger.fail(lease, "no sandbox starts")
                world.clock.move(100)
            else:
                ledger.finish(lease, world.report(lease))

    thread = threading.Thread(target=work)
    thread.start()
    yield sources
    over.set()
    thread.join()


def lines_of(result: Result) -> dict[str, Any]:
    found = [json.loads(line) for line in result.out.splitlines()]
    by_key = {one["key"]: one for one in found}
    assert len(by_key) == len(found)
    return by_key


def write_lines(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def states(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.client("ada").get("/api/v1/batches").json()["batches"]
    return found


def test_files_and_lines_have_a_line_each(
    grade: Grade, world: World, graded: list[str], tmp_path: Path
) -> None:
    result = grade("kernel.py")
    assert result.status == 0
    line = lines_of(result)["kernel.py"]
    assert set(line) == {"key", "report"}
    assert line["report"]["problem"] == "softmax"
    assert str(SEED) not in result.out
    assert f"batch 1 on {world.url}: 1 items" in result.err
    assert "1 of 1, " in result.err

    todo = write_lines(
        tmp_path / "todo.jsonl",
        {"key": "a", "source": "x = 1"},
        {"key": "b", "source": "x = 2", "problem": "gelu", "benchmarks": False},
        {"key": "c", "source": "# cannot be graded"},
    )
    result = grade("--jsonl", todo)
    assert result.status == 3
    found = lines_of(result)
    assert found["c"] == {"key": "c", "error": "no sandbox starts"}
    assert found["b"]["report"]["problem"] == "gelu"
    assert [one["state"] for one in states(world)] == ["done"] * 4


def test_a_batch_is_continued(
    grade: Grade, world: World, graded: list[str], tmp_path: Path
) -> None:
    todo = write_lines(tmp_path / "t", *({"key": k, "source": f"x = {k!r}"} for k in "abc"))
    (tmp_path / "out").write_text('{"key": "a", "report": {}}\n')
    assert grade("--jsonl", todo, "--out", "out").status == 0
    assert sorted(graded) == ["x = 'b'", "x = 'c'"]
    assert len((tmp_path / "out").read_text().splitlines()) == 3


def test_large_batches_are_handed_in_by_parts(
    grade: Grade, world: World, graded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_batch, "MAX_ITEMS", 2)
    todo = write_lines(tmp_path / "t", *({"key": k, "source": f"x = {k!r}"} for k in "abcde"))
    assert len(lines_of(grade("--jsonl", todo))) == 5
    assert [one["items"] for one in states(world)] == [1, 2, 2]
    monkeypatch.setattr(remote_batch, "MAX_BYTES", 15)
    monkeypatch.setattr(remote_batch, "MAX_ITEMS", 1000)
    assert len(lines_of(grade("--jsonl", todo))) == 5
    assert [one["items"] for one in states(world)[:3]] == [1, 2, 2]


def test_a_file_that_cannot_be_sent_has_an_error(
    grade: Grade, world: World, graded: list[str], tmp_path: Path
) -> None:
    (tmp_path / "latin.py").write_bytes(b"\xe9")
    (tmp_path / "notes.txt").write_text("")
    result = grade("kernel.py", "latin.py", "notes.txt", "gone.py")
    assert result.status == 3
    found = lines_of(result)
    assert "report" in found["kernel.py"]
    assert "it is not UTF-8" in found["latin.py"]["error"]
    assert "one .py or .cu file" in found["notes.txt"]["error"]
    assert "No such file" in found["gone.py"]["error"]


def test_an_item_of_a_set_that_cannot_be_read_has_an_error(
    grade: Grade, world: World, graded: list[str], tmp_path: Path
) -> None:
    """Its problem is named, as the server names it, by the user's checkout."""
    source = "def softmax(x, out): ..."
    lines = [
        {"key": "a", "source": source, "problem": f"kernelbot:{tmp_path}/no/board"},
        {"key": "b", "source": source, "problem": "softmax"},
    ]
    result = grade("--jsonl", write_lines(tmp_path / "t", *lines))
    assert result.status == 3
    found = lines_of(result)
    assert f"{tmp_path}/no/board" in found["a"]["error"]
    assert "report" in found["b"]


def test_what_a_server_would_refuse_has_an_error_of_its_own(
    grade: Grade, world: World, graded: list[str], tmp_path: Path
) -> None:
    (tmp_path / "k\udcff.py").write_bytes(KERNEL)
    todo = write_lines(
        tmp_path / "todo.jsonl",
        {"key": "right", "source": "x = 1"},
        {"key": "big", "source": "#" * (1 << 21)},
        {"key": "", "source": "x = 1"},
        {"key": "k" * 200, "source": "x = 1"},
        {"key": "k" * 201, "source": "x = 1"},
        {"key": "away", "source": "x = 1", "problem": "nowhere"},
    )
    result = grade("--jsonl", todo)
    assert result.status == 3
    found = lines_of(result)
    assert "report" in found.pop("right")
    assert "report" in found.pop("k" * 200)
    assert "files of up to 1,048,576 bytes" in found["big"]["error"]
    assert "keys of 1 to 200 printable characters" in found[""]["error"]
    assert "keys of 1 to 200 printable characters" in found["k" * 201]["error"]
    assert "no such problem here" in found["away"]["error"]
    assert len(found) == 4
    result = grade("k\udcff.py")
    assert result.status == 3
    assert "printable characters" in json.loads(result.out)["error"]


def test_a_refused_batch(grade: Grade, world: World, tmp_path: Path) -> None:
    result = grade("kernel.py", "--gpu", "H100")
    assert result.status == 2
    assert "no worker has the GPU type 'H100'" in result.err
    twice = write_lines(tmp_path / "t", *({"key": "a", "source": str(n)} for n in range(2)))
    result = grade("--jsonl", twice)
    assert result.status == 2
    assert "t:2: its key 'a' is that of " in result.err
    assert states(world) == []


def test_options_of_this_machine_are_refused(grade: Grade) -> None:
    for option in (["--device", "cpu"], ["--sandbox", "process"], ["--tests-at-once", "2"]):
        result = grade("kernel.py", *option)
        assert result.status == 2
        assert f"{option[0]} is for grading on this machine" in result.err


def test_a_batch_that_is_not_read_to_its_end_is_cancelled(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grader.cli.remote_batch.time.sleep", interrupt)
    assert grade("kernel.py").status == 130
    assert [one["state"] for one in states(world)] == ["cancelled"]


def test_a_batch_that_somebody_cancels(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(_seconds: float) -> None:
        world.services.ledger.cancel_batch(1, "root")

    monkeypatch.setattr("grader.cli.remote_batch.time.sleep", cancel)
    result = grade("kernel.py")
    assert result.status == 2
    assert "batch 1 was cancelled on the server" in result.err


@pytest.mark.parametrize("fault", [Unreachable("gone"), RefusedByServer("full", 503)])
def test_a_lost_answer_submits_once(
    grade: Grade,
    world: World,
    graded: list[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
) -> None:
    request: Callable[..., Any] = Client.request
    failed: set[str] = set()

    def lossy(self: Client, method: str, path: str, **more: Any) -> Any:
        answer = request(self, method, path, **more)
        if method not in failed:
            failed.add(method)
            raise fault
        return answer

    monkeypatch.setattr(Client, "request", lossy)
    assert grade("kernel.py").status == 0
    assert failed == {"POST", "GET"}
    assert len(states(world)) == 1


def test_a_server_that_stays_away(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise Unreachable("gone")

    monkeypatch.setattr(remote_batch, "OUTAGE_S", 0.05)
    monkeypatch.setattr(Client, "request", gone)
    result = grade("kernel.py")
    assert result.status == 2
    assert "gone" in result.err
