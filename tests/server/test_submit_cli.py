"""`grade login` and `grade submit --server` against a server on a real socket."""

from __future__ import annotations

import io
import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grader.cli import remote_submit
from grader.cli.remote import Client, Credentials, Unreachable
from grader.report import Report
from grader.server.services.job_events import JobEvents
from grader.submission import Submission
from tests.fleet.cluster import free_port
from tests.server.command_line import Grade, runner
from tests.server.conftest import KERNEL, SEED, Server, World
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade` without stored credentials or environment, in a folder with a kernel."""
    for name in ("GRADE_SERVER", "GRADE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(remote_submit, "POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_bytes(KERNEL)

    return runner(capsys)


@pytest.fixture
def as_ada(grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])


class FakeWorker:
    """Grades all submissions within its context."""

    def __init__(self, world: World, **changes: Any) -> None:
        self._world = world
        self._changes = changes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        ledger = self._world.services.ledger
        while not self._over.wait(0.02):
            lease = ledger.claim("w", lease_s=60)
            if lease is not None:
                ledger.begin(lease)
                ledger.finish(lease, self._world.report(lease, **self._changes))


# Login -------------------------------------------------------------------------------------------


def test_login_stores_server_and_token_with_private_permissions(grade: Grade, world: World) -> None:
    result = grade("login", "--server", world.url + "/", "--token", world.tokens["ada"])
    assert result.status == 0
    assert "You are ada (competitor)" in result.out
    assert world.tokens["ada"] not in result.out + result.err
    path = Credentials.path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    stored = Credentials.load()
    assert (stored.current, stored.tokens) == (world.url, {world.url: world.tokens["ada"]})


def test_login_prompts_for_the_token_without_showing_it(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def prompt(text: str, **options: Any) -> str:
        asked.append(options)
        return world.tokens["bob"] + "\n"

    monkeypatch.setattr("click.prompt", prompt)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert grade("login", "--server", world.url).status == 0
    assert asked == [{"hide_input": True}]
    assert Credentials.load().tokens[world.url] == world.tokens["bob"]


def test_login_reads_the_token_from_a_pipe(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(world.tokens["bob"] + "\n"))
    result = grade("login", "--server", world.url)
    assert (result.status, result.err) == (0, "")
    assert Credentials.load().tokens[world.url] == world.tokens["bob"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    result = grade("login", "--server", world.url)
    assert result.status == 2
    assert "no token" in result.err


def test_an_invalid_token_is_not_stored(grade: Grade, world: World) -> None:
    result = grade("login", "--server", world.url, "--token", "grade_nonsense")
    assert result.status == 2
    assert "not valid" in result.err
    assert not Credentials.path().exists()


@pytest.mark.parametrize("server", ["", "softmax", "ftp://x", "http://", "http://u:p@x"])
def test_an_invalid_server(grade: Grade, server: str) -> None:
    result = grade("login", "--server", server, "--token", "x")
    assert result.status == 2
    assert result.err.count("\n") == 1


def test_a_server_that_does_not_answer(grade: Grade) -> None:
    result = grade("login", "--server", "http://127.0.0.1:9", "--token", "x")
    assert result.status == 2
    assert "http://127.0.0.1:9 does not answer" in result.err


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("{", 0o600, "is broken"),
        ("[]", 0o600, "is broken"),
        ('{"current": null, "tokens": 3}', 0o600, "is broken"),
        ('{"current": null, "tokens": {}}', 0o644, "chmod 600"),
    ],
)
def test_invalid_credentials_files(
    grade: Grade, world: World, content: str, mode: int, words: str
) -> None:
    path = Credentials.path()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    os.chmod(path, mode)
    result = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert result.status == 2
    assert words in result.err


# Submit ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_ada")
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"verdict": "wrong_answer", "ranked": False, "score_us": None, "reason": "no"}, 1),
        ({"verdict": "compile_error", "ranked": False, "score_us": None, "reason": "no"}, 1),
    ],
)
def test_exit_status_as_of_a_local_grading(
    grade: Grade, world: World, changes: dict[str, Any], status: int
) -> None:
    with FakeWorker(world, **changes):
        result = grade("submit", "problems/softmax", "kernel.py", "--server", world.url, "--json")
        assert result.status == status, result.err
        shown = result.json
        assert result.out.count("\n") == 1
        assert shown["verdict"] == changes.get("verdict", "accepted")
        assert set(Report.model_fields) - set(shown) == {"seed"}
        assert shown["submission_sha256"] == Submission("k.py", "python", KERNEL).sha256
        assert (shown["user"], shown["problem"]) == ("ada", "softmax")
        result = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert result.status == status
    assert str(SEED) not in result.out + result.err + json.dumps(shown)
    assert f"{world.url}/submissions/2" in result.err
    assert shown["verdict"].replace("_", " ") in result.out


@pytest.mark.usefixtures("as_ada")
def test_the_server_from_the_environment(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADE_SERVER", world.url)
    with FakeWorker(world):
        assert grade("submit", "softmax", "kernel.py", "--json").status == 0


def test_the_stored_token_is_used(grade: Grade, world: World) -> None:
    grade("login", "--server", world.url, "--token", world.tokens["bob"])
    with FakeWorker(world):
        result = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    assert result.json["user"] == "bob"


@pytest.mark.usefixtures("as_ada")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("softmaks", "kernel.py"), "softmax"),
        (("softmax", "nowhere.py"), "nowhere.py"),
        (("softmax", "kernel.py", "--gpu", "B200"), "B200"),
    ],
)
def test_wrong_usage(grade: Grade, world: World, words: tuple[str, ...], text: str) -> None:
    result = grade("submit", *words, "--server", world.url)
    assert result.status == 2
    assert text in result.err
    assert result.err.count("\n") == 1
    as_json = grade("submit", *words, "--server", world.url, "--json")
    assert as_json.status == 2
    assert text in json.loads(as_json.out)["error"]
    assert world.services.ledger.queue() == []


def test_submit_without_a_token(grade: Grade, world: World) -> None:
    result = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert result.status == 2
    assert "grade login" in result.err


@pytest.mark.usefixtures("as_ada")
def test_a_cancelled_submission(grade: Grade, world: World) -> None:
    def cancel() -> None:
        until(lambda: world.services.events.listeners)
        assert world.services.ledger.cancel(1, "root")

    thread = threading.Thread(target=cancel)
    thread.start()
    result = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    thread.join()
    assert result.status == 2
    assert "submission 1 was cancelled" in result.json["error"]


@pytest.mark.usefixtures("as_ada")
def test_a_held_submission_is_a_judge_error(grade: Grade, world: World) -> None:
    def fail() -> None:
        while world.services.ledger.held() == []:
            world.clock.move(1000)
            lease = world.services.ledger.claim("w", lease_s=60)
            if lease is not None:
                world.services.ledger.fail(lease, "no sandbox")

    thread = threading.Thread(target=fail)
    thread.start()
    result = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    thread.join()
    assert result.status == 3
    shown = result.json
    assert shown["verdict"] == "judge_error"
    assert "operator" in shown["reason"]
    assert "no sandbox" not in result.out


@pytest.mark.usefixtures("as_ada")
def test_a_server_that_stops_answering(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_submit, "OUTAGE_S", 0.2)

    def stop() -> None:
        until(lambda: world.services.events.listeners)
        world.server.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    result = grade("submit", "softmax", "kernel.py", "--server", world.url)
    thread.join()
    assert result.status == 3
    assert "submission 1 is not lost" in result.out.replace("\n", " ")


@pytest.mark.usefixtures("as_ada")
def test_a_server_with_a_bug_does_not_lose_a_submission(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(remote_submit, "OUTAGE_S", 0.2)
    monkeypatch.setattr(type(world.services.submissions), "summary", broken)
    result = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert result.status == 3
    assert "submission 1 is not lost" in result.out.replace("\n", " ")


@pytest.mark.usefixtures("as_ada")
@pytest.mark.parametrize(
    "option", ["--device=cpu", "--sandbox=process", "--user=bob", "--db=sqlite:///x"]
)
def test_options_for_local_grading_are_refused(grade: Grade, world: World, option: str) -> None:
    result = grade("submit", "softmax", "kernel.py", "--server", world.url, option)
    assert result.status == 2
    assert f"{option.split('=')[0]} is for grading on this machine" in result.err
    assert world.services.ledger.queue() == []


@pytest.mark.usefixtures("as_ada")
def test_a_server_that_restarts(grade: Grade, world: World) -> None:
    port = free_port()  # no other process gets it in between

    def server() -> Server:
        job_events = JobEvents(world.services.ledger, 0.02, 10, 10)
        return Server(replace(world.services, events=job_events), port)

    def restart() -> None:
        until(lambda: world.services.ledger.queue())
        first.stop()
        with server(), FakeWorker(world):
            done.wait(PATIENCE_S)

    first = server()
    done = threading.Event()
    thread = threading.Thread(target=restart)
    with first as url:
        thread.start()
        result = grade("submit", "softmax", "kernel.py", "--server", url, "--json")
        done.set()
        thread.join()
    assert result.status == 0, result.err


@pytest.mark.usefixtures("as_ada")
def test_polling_when_events_are_refused(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(world.services.events), "is_full_for", lambda *_: True)
    with FakeWorker(world):
        assert grade("submit", "softmax", "kernel.py", "--server", world.url).status == 0


@pytest.mark.usefixtures("as_ada")
def test_an_interrupt_prints_where_to_look(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote_submit, "wait", interrupted)
    result = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert result.status == 130
    assert f"submission 1 is still being graded: {world.url}/submissions/1" in result.err
    assert world.services.ledger.job(1) is not None


@pytest.mark.usefixtures("as_ada")
def test_an_upload_whose_answer_is_lost_is_repeated_once(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = Client.request

    def unlucky(self: Client, method: str, path: str, **more: Any) -> Any:
        answer = send(self, method, path, **more)
        if method == "POST":
            sent.append(path)
            if len(sent) == 1:
                raise Unreachable("the connection was lost")
        return answer

    monkeypatch.setattr(Client, "request", unlucky)
    with FakeWorker(world):
        result = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    assert (result.status, result.json["id"], len(sent)) == (0, 1, 2)
    assert world.services.ledger.job(2) is None
