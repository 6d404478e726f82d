"""`grade serve` as a process of its own, from its first line to its last."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from grader.fleet import Ledger, State
from grader.server.run import CannotListen, listen, serve
from grader.server.services import Services
from grader.server.settings import Settings, SettingsError

ROOT = Path(__file__).parents[2]
SOFTMAX = ROOT / "submissions" / "softmax" / "accepted" / "triton_softmax.py"


@dataclass
class Process:
    """A server that serves."""

    popen: subprocess.Popen[str]
    url: str
    token: str | None
    """The admin's, if it was printed."""
    log: Path

    def end(self, timeout_s: float = 60) -> int:
        """SIGTERM, and the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout_s)

    def submit(self) -> int:
        reply = httpx.post(
            f"{self.url}/api/v1/submissions",
            data={"problem": "softmax"},
            files={"file": ("k.py", SOFTMAX.read_bytes())},
            headers={"Authorization": f"Bearer {self.token}"},
        )
        assert reply.status_code == 202, reply.text
        return int(reply.json()["id"])


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Process]:
    log = folder / "log"
    with log.open("a") as stderr:
        popen = subprocess.Popen(
            [
                *(sys.executable, "-m", "grader.cli", "serve", "--port", "0"),
                *("--db", f"sqlite:///{folder}/board.sqlite3", "--sandbox", "process"),
                *("--problems", str(ROOT / "problems"), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
        )
    assert popen.stdout is not None
    try:
        first = popen.stdout.readline()
        found = re.fullmatch(r"grade serves on (http://\S+)\n", first)
        assert found is not None, log.read_text()
        url = found.group(1)
        deadline = time.monotonic() + 30
        while True:
            try:
                health = httpx.get(f"{url}/healthz", timeout=5)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
        assert health.json() == {"status": "ok"}
        new = (folder / "token").exists()
        if not new:
            assert "once" in popen.stdout.readline()
            (folder / "token").write_text(popen.stdout.readline().strip())
        yield Process(popen, url, (folder / "token").read_text(), log)
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()


def test_the_first_start_prints_a_token_of_an_admin_and_the_next_does_not(tmp_path: Path) -> None:
    with serving(tmp_path, "--slots", "0") as first:
        token = first.token
        reply = httpx.get(f"{first.url}/api/v1/me", headers={"Authorization": f"Bearer {token}"})
        assert reply.json() == {"name": "admin", "role": "admin"}
        assert first.end() == 0
    with serving(tmp_path, "--slots", "0") as again:
        reply = httpx.get(f"{again.url}/api/v1/me", headers={"Authorization": f"Bearer {token}"})
        assert reply.status_code == 200
        assert again.end() == 0
        assert again.popen.stdout is not None
        assert again.popen.stdout.read() == ""


def test_a_lost_admin_token_is_replaced(tmp_path: Path) -> None:
    def me(server: Process, token: str) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{server.url}/api/v1/me", headers=headers).json()

    with serving(tmp_path, "--slots", "0") as first:
        assert first.end() == 0
    with serving(tmp_path, "--slots", "0", "--new-admin-token") as again:
        assert again.popen.stdout is not None
        assert "once" in again.popen.stdout.readline()
        token = again.popen.stdout.readline().strip()
        assert token != again.token
        assert me(again, token) == {"name": "admin", "role": "admin"}
        assert again.end() == 0
        assert token not in again.log.read_text()


SERVER_EXTRA = ("fastapi", "starlette", "uvicorn", "jinja2", "prometheus_client", "markdown_it")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("serve --port 0", r"(fastapi|starlette) is not installed; pip install 'grade\[server\]'"),
        ("worker --server http://127.0.0.1:9 --token t --sandbox process", "cannot be reached"),
        ("login --server http://127.0.0.1:9 --token t", "does not answer"),
        ("admin held --server http://127.0.0.1:9", "does not answer"),
    ],
)
def test_without_the_extra_only_the_server_is_missing(command: str, says: str) -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({SERVER_EXTRA}))"
    run = subprocess.run(
        [sys.executable, "-c", f"{blocked}; from grader.cli.app import main; sys.exit(main())",
         *command.split()],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | {"GRADE_TOKEN": "t"},
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert re.search(says, run.stderr)
    assert len(run.stderr.splitlines()) == 1 or command.startswith("login")


def test_the_log_is_json_and_holds_no_secret(tmp_path: Path) -> None:
    with serving(tmp_path, "--slots", "0") as server:
        server.submit()
        httpx.get(f"{server.url}/api/v1/submissions?user=SECRET")
        httpx.post(f"{server.url}/login", data={"token": server.token or ""})
        assert server.end() == 0
        text = server.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["message"] == "request"]
    assert ("POST", "/api/v1/submissions", 202, "admin") in [
        (line["method"], line["path"], line["status"], line["user"]) for line in requests
    ]
    assert "SECRET" not in text
    assert server.token is not None
    assert server.token not in text
    assert "softmax(x, out)" not in text
    assert [line for line in text.splitlines() if not line.startswith("{")] == [
        "using the process sandbox; it suits your own code only, and nothing that is graded in "
        "it is ranked"
    ]


def test_listeners_are_let_go_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path, "--slots", "0") as server:
        number = server.submit()
        address = f"{server.url}/api/v1/submissions/{number}/events"
        with httpx.stream("GET", address, timeout=30) as reply:
            lines = reply.iter_lines()
            assert next(lines).startswith("event: state")
            started = time.monotonic()
            server.popen.send_signal(signal.SIGTERM)
            list(lines)
        assert server.popen.wait(30) == 0
        assert time.monotonic() - started < 10


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


@pytest.mark.slow
def test_what_runs_at_the_end_is_finished_or_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with time enough to finish, then with none."""
    for drain_s, state in (("60", State.DONE), ("0.01", State.QUEUED)):
        monkeypatch.setenv("GRADE_SERVE_DRAIN_S", drain_s)
        with serving(tmp_path) as server:
            number = server.submit()
            waiting = server.submit()
            ledger = Ledger.open(f"sqlite:///{tmp_path}/board.sqlite3")
            deadline = time.monotonic() + 60
            while (job := ledger.job(number)) is None or job.state is not State.RUNNING:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            slots = children(server.popen.pid)
            assert slots
            assert server.end() == 0
            assert [slot for slot in slots if Path(f"/proc/{slot}").exists()] == []
            found = {n: job.state for n in (number, waiting) if (job := ledger.job(n))}
            assert found == {number: state, waiting: State.QUEUED}
            job = ledger.job(number)
            assert job is not None
            assert (job.failures, job.deaths) == (0, 0)
            ledger.cancel(waiting, "admin")
            ledger.close()


class Idle:
    """Stands for a dispatcher and for an engine, and notes how long it may take to end."""

    swept = 0

    def __init__(self) -> None:
        self.drains: list[float] = []

    def start(self) -> None: ...

    def close(self, drain_s: float) -> None: ...

    def drain(self, drain_s: float) -> None:
        self.drains.append(drain_s)


@pytest.mark.parametrize(("signals", "drains"), [(1, [60, 60, 0]), (2, [60, 0, 0])])
def test_a_second_signal_ends_the_wait(
    services: Services, signals: int, drains: list[float]
) -> None:
    idle: Any = Idle()
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()

    def tell() -> None:
        with socket.create_connection(address) as unfinished:
            unfinished.sendall(
                b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            )
            # Answered while the other one waits for its body, so that one has come, too.
            httpx.get(f"http://127.0.0.1:{address[1]}/healthz", timeout=20)
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)

    thread = threading.Thread(target=tell)
    thread.start()
    serve(services, idle, idle, listener)
    thread.join()
    assert idle.drains == drains


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"port {port}.*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(CannotListen, match=r"no\.such\.host"):
        listen("no.such.host.invalid", 0)


def test_settings_come_from_the_environment() -> None:
    given = {"GRADE_SERVE_MAX_QUEUE": "5", "GRADE_SERVE_DRAIN_S": "0.5", "OTHER": "x"}
    settings = Settings.from_environment(given)
    assert (settings.max_queue, settings.drain_s) == (5, 0.5)
    assert settings.max_in_flight == Settings().max_in_flight
    for odd in ("0", "-1", "x", "1.5", "nan", "inf"):
        with pytest.raises(SettingsError, match="GRADE_SERVE_MAX_QUEUE"):
            Settings.from_environment({"GRADE_SERVE_MAX_QUEUE": odd})
    assert Settings.unknown(given | {"GRADE_SERVE_MAX_QEUE": "5"}) == ["GRADE_SERVE_MAX_QEUE"]
