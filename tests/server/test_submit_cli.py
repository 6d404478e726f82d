"""`grade login` and `grade submit --server` against a server on a real socket."""

from __future__ import annotations

import io
import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from grader.cli import main, remote_submit
from grader.cli.remote import Credentials
from grader.report import Report
from grader.server.services.job_events import Hub
from grader.submission import Submission
from tests.fleet.cluster import free_port
from tests.server.conftest import KERNEL, SEED, Server, World
from tests.waiting import PATIENCE_S, until


@dataclass
class Said:
    status: int
    out: str
    err: str


Grade = Callable[..., Said]


@pytest.fixture
def grade(
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Grade:
    """`grade`, with nothing stored and nothing in the environment, in a folder with a kernel."""
    for name in ("GRADE_SERVER", "GRADE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(remote_submit, "POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_bytes(KERNEL)

    def run(*words: str) -> Said:
        status = main(list(words))
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return run


@pytest.fixture
def as_ada(grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["ada"])


class Grader:
    """Grades whatever is handed in, within a context, as a worker would."""

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


def test_login_stores_server_and_token_for_oneself_alone(grade: Grade, world: World) -> None:
    said = grade("login", "--server", world.url + "/", "--token", world.tokens["ada"])
    assert said.status == 0
    assert "You are ada (competitor)" in said.out
    assert world.tokens["ada"] not in said.out + said.err
    path = Credentials.path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    stored = Credentials.load()
    assert (stored.current, stored.tokens) == (world.url, {world.url: world.tokens["ada"]})


def test_login_asks_for_the_token_and_does_not_show_it(
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
    said = grade("login", "--server", world.url)
    assert (said.status, said.err) == (0, "")
    assert Credentials.load().tokens[world.url] == world.tokens["bob"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = grade("login", "--server", world.url)
    assert said.status == 2
    assert "no token" in said.err


def test_a_token_that_is_none_is_not_stored(grade: Grade, world: World) -> None:
    said = grade("login", "--server", world.url, "--token", "grade_nonsense")
    assert said.status == 2
    assert "not valid" in said.err
    assert not Credentials.path().exists()


@pytest.mark.parametrize("server", ["", "softmax", "ftp://x", "http://", "http://u:p@x"])
def test_a_server_that_is_none(grade: Grade, server: str) -> None:
    said = grade("login", "--server", server, "--token", "x")
    assert said.status == 2
    assert said.err.count("\n") == 1


def test_a_server_that_does_not_answer(grade: Grade) -> None:
    said = grade("login", "--server", "http://127.0.0.1:9", "--token", "x")
    assert said.status == 2
    assert "http://127.0.0.1:9 does not answer" in said.err


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("{", 0o600, "is broken"),
        ("[]", 0o600, "is broken"),
        ('{"current": null, "tokens": 3}', 0o600, "is broken"),
        ('{"current": null, "tokens": {}}', 0o644, "chmod 600"),
    ],
)
def test_a_file_of_credentials_that_is_not_right(
    grade: Grade, world: World, content: str, mode: int, words: str
) -> None:
    path = Credentials.path()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    os.chmod(path, mode)
    said = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert said.status == 2
    assert words in said.err


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
def test_it_ends_as_the_local_command_does(
    grade: Grade, world: World, changes: dict[str, Any], status: int
) -> None:
    with Grader(world, **changes):
        said = grade("submit", "problems/softmax", "kernel.py", "--server", world.url, "--json")
        assert said.status == status, said.err
        shown = json.loads(said.out)
        assert said.out.count("\n") == 1
        assert shown["verdict"] == changes.get("verdict", "accepted")
        assert set(Report.model_fields) - set(shown) == {"seed"}
        assert shown["submission_sha256"] == Submission("k.py", "python", KERNEL).sha256
        assert (shown["user"], shown["problem"]) == ("ada", "softmax")
        said = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert said.status == status
    assert str(SEED) not in said.out + said.err + json.dumps(shown)
    assert f"{world.url}/submissions/2" in said.err
    assert shown["verdict"].replace("_", " ") in said.out


@pytest.mark.usefixtures("as_ada")
def test_the_environment_says_where(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADE_SERVER", world.url)
    with Grader(world):
        assert grade("submit", "softmax", "kernel.py", "--json").status == 0


def test_the_stored_token_serves(grade: Grade, world: World) -> None:
    grade("login", "--server", world.url, "--token", world.tokens["bob"])
    with Grader(world):
        said = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    assert json.loads(said.out)["user"] == "bob"


@pytest.mark.usefixtures("as_ada")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("softmaks", "kernel.py"), "softmax"),
        (("softmax", "nowhere.py"), "nowhere.py"),
        (("softmax", "kernel.py", "--gpu", "B200"), "B200"),
    ],
)
def test_a_call_that_is_wrong(
    grade: Grade, world: World, words: tuple[str, ...], text: str
) -> None:
    said = grade("submit", *words, "--server", world.url)
    assert said.status == 2
    assert text in said.err
    assert said.err.count("\n") == 1
    as_json = grade("submit", *words, "--server", world.url, "--json")
    assert as_json.status == 2
    assert text in json.loads(as_json.out)["error"]
    assert world.services.ledger.queue() == []


def test_nobody_submits_without_a_token(grade: Grade, world: World) -> None:
    said = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert said.status == 2
    assert "grade login" in said.err


@pytest.mark.usefixtures("as_ada")
def test_one_that_was_cancelled(grade: Grade, world: World) -> None:
    def cancel() -> None:
        until(lambda: world.services.hub.listeners)
        assert world.services.ledger.cancel(1, "root")

    thread = threading.Thread(target=cancel)
    thread.start()
    said = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    thread.join()
    assert said.status == 2
    assert "submission 1 was cancelled" in json.loads(said.out)["error"]


@pytest.mark.usefixtures("as_ada")
def test_one_that_is_held_is_the_servers_fault(grade: Grade, world: World) -> None:
    def fail() -> None:
        while world.services.ledger.held() == []:
            world.clock.move(1000)
            lease = world.services.ledger.claim("w", lease_s=60)
            if lease is not None:
                world.services.ledger.fail(lease, "no sandbox")

    thread = threading.Thread(target=fail)
    thread.start()
    said = grade("submit", "softmax", "kernel.py", "--server", world.url, "--json")
    thread.join()
    assert said.status == 3
    shown = json.loads(said.out)
    assert shown["verdict"] == "judge_error"
    assert "operator" in shown["reason"]
    assert "no sandbox" not in said.out


@pytest.mark.usefixtures("as_ada")
def test_a_server_that_goes_away_for_good(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_submit, "AWAY_S", 0.2)

    def stop() -> None:
        until(lambda: world.services.hub.listeners)
        world.server.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    said = grade("submit", "softmax", "kernel.py", "--server", world.url)
    thread.join()
    assert said.status == 3
    assert "submission 1 is not lost" in said.out.replace("\n", " ")


@pytest.mark.usefixtures("as_ada")
def test_a_server_with_a_bug_does_not_lose_a_submission(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(remote_submit, "AWAY_S", 0.2)
    monkeypatch.setattr(type(world.services.shelf), "line", broken)
    said = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert said.status == 3
    assert "submission 1 is not lost" in said.out.replace("\n", " ")


@pytest.mark.usefixtures("as_ada")
@pytest.mark.parametrize(
    "option", ["--device=cpu", "--sandbox=process", "--user=bob", "--db=sqlite:///x"]
)
def test_options_of_this_machine_are_refused(grade: Grade, world: World, option: str) -> None:
    said = grade("submit", "softmax", "kernel.py", "--server", world.url, option)
    assert said.status == 2
    assert f"{option.split('=')[0]} is for grading on this machine" in said.err
    assert world.services.ledger.queue() == []


@pytest.mark.usefixtures("as_ada")
def test_a_server_that_is_started_anew(grade: Grade, world: World) -> None:
    port = free_port()  # the kernel gives it to nobody between the two

    def server() -> Server:
        hub = Hub(world.services.ledger, 0.02, 10, 10)
        return Server(replace(world.services, hub=hub), port)

    def restart() -> None:
        until(lambda: world.services.ledger.queue())
        first.stop()
        with server(), Grader(world):
            done.wait(PATIENCE_S)

    first = server()
    done = threading.Event()
    thread = threading.Thread(target=restart)
    with first as url:
        thread.start()
        said = grade("submit", "softmax", "kernel.py", "--server", url, "--json")
        done.set()
        thread.join()
    assert said.status == 0, said.err


@pytest.mark.usefixtures("as_ada")
def test_where_events_are_refused_it_polls(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(world.services.hub), "is_full_for", lambda *_: True)
    with Grader(world):
        assert grade("submit", "softmax", "kernel.py", "--server", world.url).status == 0


@pytest.mark.usefixtures("as_ada")
def test_who_interrupts_is_told_where_to_look(
    grade: Grade, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote_submit, "wait", interrupted)
    said = grade("submit", "softmax", "kernel.py", "--server", world.url)
    assert said.status == 130
    assert f"submission 1 goes on without you: {world.url}/submissions/1" in said.err
    assert world.services.ledger.job(1) is not None
