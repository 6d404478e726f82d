"""`grade serve` as a process, from start to shutdown."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from grader.board import Board
from grader.fleet import Lease, Ledger, State, job
from grader.fleet.remote_ledger import RemoteLedger
from grader.judge import Progress
from grader.problem import Problem
from grader.report import Report
from grader.server.run import CannotListen, listen, serve
from grader.server.services.container import Services
from grader.server.settings import Settings, SettingsError, providers_from_environment
from tests.fleet.conftest import a_submission
from tests.server.conftest import every_problem
from tests.waiting import PATIENCE_S, until

MakeReport = Callable[..., Report]
ROOT = Path(__file__).parents[2]
SOFTMAX = ROOT / "submissions" / "softmax" / "accepted" / "triton_softmax.py"


@dataclass
class Process:
    """A running server."""

    popen: subprocess.Popen[str]
    url: str
    token: str | None
    """The admin's token, if it was printed."""
    log: Path

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout_s)

    def post_submission(self) -> httpx.Response:
        return httpx.post(
            f"{self.url}/api/v1/submissions",
            data={"problem": "softmax"},
            files={"file": ("k.py", SOFTMAX.read_bytes())},
            headers={"Authorization": f"Bearer {self.token}"},
        )

    def submit(self) -> int:
        reply = self.post_submission()
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
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                health = httpx.get(f"{url}/healthz", timeout=PATIENCE_S)
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


def test_only_the_first_start_prints_an_admin_token_and_a_lost_one_is_replaced(
    tmp_path: Path,
) -> None:
    def me(server: Process, token: str | None) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{server.url}/api/v1/me", headers=headers, timeout=PATIENCE_S).json()

    admin = {"name": "admin", "role": "admin", "team": None}
    with serving(tmp_path, "--slots", "0") as first:
        token = first.token
        assert me(first, token) == admin
        assert first.end() == 0
        assert "new ranking" not in first.log.read_text()
    with serving(tmp_path, "--slots", "0") as again:
        assert me(again, token) == admin
        assert again.end() == 0
        assert again.popen.stdout is not None
        assert again.popen.stdout.read() == ""
    with serving(tmp_path, "--slots", "0", "--new-admin-token") as again:
        assert again.popen.stdout is not None
        assert "once" in again.popen.stdout.readline()
        new = again.popen.stdout.readline().strip()
        assert new != token
        assert me(again, new) == admin
        assert again.end() == 0
        assert new not in again.log.read_text()


def test_a_start_says_which_rankings_are_new(tmp_path: Path, make_report: MakeReport) -> None:
    url = f"sqlite:///{tmp_path}/board.sqlite3"
    Services.open(url, every_problem()).close()
    folder = tmp_path / "problems"
    shutil.copytree(ROOT / "problems", folder)
    problem = Problem.load(folder / "softmax")
    with closing(Board.open(url)) as board:
        board.record(make_report(problem_digest=problem.digest), "ada", b"")
    with (folder / "softmax" / "statement.md").open("a") as statement:
        statement.write(", and a comma\n")
    for name in ("softmax", "int4_matmul"):
        with (folder / name / "reference.py").open("a") as reference:
            reference.write("# changed\n")
    with serving(tmp_path, "--slots", "0", "--problems", str(folder)) as again:
        assert again.end() == 0
        said = [line for line in again.log.read_text().splitlines() if "new ranking" in line]
    assert said == [
        f"softmax: version 2 ({Problem.load(folder / 'softmax').digest[:12]}) opens a new ranking "
        "(reference.py: changed); the ranking of version 1, with 1 result, stays at "
        "/leaderboards/softmax?version=1"
    ]


SERVER_EXTRA = ("fastapi", "starlette", "uvicorn", "jinja2", "prometheus_client", "markdown_it")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("serve --port 0", r"(starlette|uvicorn) is not installed; pip install '\.\[server\]'"),
        ("login --server http://127.0.0.1:9 --token t", "does not answer"),
        ("admin held --server http://127.0.0.1:9", "does not answer"),
    ],
)
def test_only_serve_needs_the_server_extra(command: str, message: str) -> None:
    run = subprocess.run(
        without_the_server_extra(command), capture_output=True, text=True, cwd=ROOT, timeout=60,
        env=os.environ | {"GRADE_TOKEN": "t"},
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert re.search(message, run.stderr)
    assert len(run.stderr.splitlines()) == 1 or command.startswith("login")


def test_a_worker_needs_no_server_extra_and_waits_for_its_server() -> None:
    command = "worker --server http://127.0.0.1:9 --token t --sandbox process"
    with subprocess.Popen(
        without_the_server_extra(command), stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as waiting:
        assert waiting.stderr is not None
        try:
            line = waiting.stderr.readline()
            assert re.search(r"cannot be reached: .*; waiting for it$", line.rstrip()), line
            assert waiting.poll() is None
        finally:
            waiting.kill()


def without_the_server_extra(command: str) -> list[str]:
    """The command line of `grade` where the packages of the extra `server` are missing."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({SERVER_EXTRA}))"
    program = f"{blocked}; from grader.cli.app import main; sys.exit(main())"
    return [sys.executable, "-c", program, *command.split()]


def test_shutdown_ends_event_streams_and_the_log_is_json_without_a_secret(tmp_path: Path) -> None:
    with serving(tmp_path, "--slots", "0") as server:
        number = server.submit()
        httpx.get(f"{server.url}/api/v1/submissions?user=SECRET", timeout=PATIENCE_S)
        httpx.post(f"{server.url}/login", data={"token": server.token or ""})
        address = f"{server.url}/api/v1/submissions/{number}/events"
        with httpx.stream("GET", address, timeout=PATIENCE_S) as reply:
            stream = reply.iter_lines()
            assert next(stream).startswith("event: state")
            started = time.monotonic()
            server.popen.send_signal(signal.SIGTERM)
            list(stream)
        assert server.popen.wait(PATIENCE_S) == 0
        assert time.monotonic() - started < 10
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
        "using the process sandbox; it is for your own code only, and its results are not ranked"
    ]


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


def await_running(ledger: Ledger, number: int) -> None:
    until(lambda: (job := ledger.job(number)) and job.state is State.RUNNING)


@pytest.mark.slow
def test_running_gradings_are_finished_or_given_back_at_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with enough time to finish, then without."""
    for drain_s, state in (("500", State.DONE), ("0.01", State.QUEUED)):
        monkeypatch.setenv("GRADE_SERVE_DRAIN_S", drain_s)
        with serving(tmp_path) as server:
            number = server.submit()
            waiting = server.submit()
            ledger = Ledger.open(f"sqlite:///{tmp_path}/board.sqlite3")
            await_running(ledger, number)
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


@dataclass
class Worker:
    """A pulling worker that the test controls."""

    source: RemoteLedger
    lease: Lease
    number: int

    def report(self, make_report: MakeReport) -> Report:
        return make_report(
            problem_digest=self.lease.problem_digest,
            submission_sha256=hashlib.sha256(self.lease.source).hexdigest(),
        )


@contextmanager
def working(server: Process) -> Iterator[Worker]:
    """A worker that grades a new submission."""
    number = server.submit()
    reply = httpx.post(
        f"{server.url}/api/v1/admin/users",
        json={"name": "farm", "role": "worker"},
        headers={"Authorization": f"Bearer {server.token}"},
    )
    with closing(RemoteLedger(server.url, reply.json()["token"])) as source:
        source.announce(job.Worker("host", "http", "cpu", None, 2))
        lease = claim(source)
        assert lease is not None
        assert source.begin(lease)
        yield Worker(source, lease, number)


def claim(source: RemoteLedger) -> Lease | None:
    digests = {"softmax": Problem.load(ROOT / "problems/softmax").digest}
    return source.claim("host", lease_s=600, problems=digests, gpu=None, languages=None)


def answer(server: Process, path: str = "/healthz") -> httpx.Response:
    return httpx.get(f"{server.url}{path}", timeout=PATIENCE_S)


def begin_shutdown(server: Process) -> None:
    server.popen.send_signal(signal.SIGTERM)
    until(lambda: answer(server).status_code == 503)


def test_shutdown_waits_for_pulling_workers(
    tmp_path: Path, make_report: MakeReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADE_SERVE_DRAIN_S", "600")  # long enough that it does not end the wait
    with serving(tmp_path, "--slots", "0") as server, working(server) as worker:
        server.submit()
        begin_shutdown(server)
        assert answer(server).json()["error"]["code"] == "draining"
        refused = server.post_submission()
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
        assert "takes no new work" in refused.json()["error"]["message"]
        assert claim(worker.source) is None, "although another submission waits"
        assert worker.source.heartbeat(worker.lease, 30, Progress("test", "tiny", 0, 7))
        shown = answer(server, f"/api/v1/submissions/{worker.number}").json()
        assert (shown["state"], shown["progress"]["case"]) == ("running", "tiny")
        assert answer(server, "/queue").status_code == 200
        time.sleep(2)
        assert server.popen.poll() is None
        assert worker.source.finish(worker.lease, worker.report(make_report)) == 1
        assert server.popen.wait(PATIENCE_S) == 0


class Idle:
    """A fake dispatcher and engine. `drain` waits until `finish` or a drain of 0 s."""

    swept = 0

    def __init__(self) -> None:
        self.drains: list[float] = []
        self._ended = threading.Event()

    def start(self) -> None: ...

    def set_problems(self, problems: object) -> None: ...

    def close(self, drain_s: float) -> None: ...

    def drain(self, drain_s: float) -> None:
        self.drains.append(drain_s)
        if not drain_s:
            self._ended.set()
        self._ended.wait(drain_s)

    def finish(self) -> None:
        """End the running gradings."""
        self._ended.set()


@pytest.mark.parametrize("how", ["what runs ends", "a second signal"])
def test_shutdown_waits_for_local_slots(services: Services, how: str) -> None:
    idle: Any = Idle()
    listener = listen("127.0.0.1", 0)
    url = "http://127.0.0.1:{1}/healthz".format(*listener.getsockname())
    statuses: list[int] = []

    def send_signals() -> None:
        statuses.append(httpx.get(url, timeout=PATIENCE_S).status_code)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: idle.drains)
        time.sleep(0.5)
        statuses.append(httpx.get(url, timeout=PATIENCE_S).status_code)
        if how == "what runs ends":
            idle.finish()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send_signals)
    thread.start()
    serve(services, idle, idle, listener)
    thread.join()
    assert statuses == [200, 503]
    assert idle.drains == [60, 0]


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ("a job given back", Settings(drain_s=600)),
        ("a second signal", Settings(drain_s=600)),
        ("time is over", Settings(drain_s=3)),
    ],
)
def test_the_wait_for_pulling_workers_ends(
    services: Services, how: str, settings: Settings
) -> None:
    idle: Any = Idle()
    idle.finish()
    listener = listen("127.0.0.1", 0)
    url = "http://127.0.0.1:{1}".format(*listener.getsockname())
    token = services.accounts.add_user("farm", "worker")
    digest = services.problems["softmax"].digest
    services.ledger.submit("ada", "softmax", digest, a_submission())
    signalled: list[float] = []

    def shut_down() -> None:
        with closing(RemoteLedger(url, token)) as source:
            lease = claim(source)
            assert lease is not None
            assert source.begin(lease)
            signalled.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code == 503)
            if how == "a job given back":
                assert source.give_back(lease)
            elif how == "a second signal":
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=shut_down)
    thread.start()
    serve(services, idle, idle, listener)
    took_s = time.monotonic() - signalled[0]
    thread.join()
    assert took_s >= 3 if how == "time is over" else took_s < 100


@pytest.mark.parametrize(("signals", "least_s"), [(2, 4.0), (3, 0.0)])
def test_open_requests_are_answered_unless_a_third_signal_comes(
    services: Services, signals: int, least_s: float
) -> None:
    idle: Any = Idle()
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    signalled: list[float] = []

    def send_signals() -> None:
        with socket.create_connection(address) as unfinished:
            unfinished.sendall(
                b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            )
            # This is answered after the unfinished request has arrived.
            httpx.get(f"http://127.0.0.1:{address[1]}/healthz", timeout=PATIENCE_S)
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
                signalled.append(time.monotonic())
                time.sleep(0.5)
            ended.wait(PATIENCE_S)

    ended = threading.Event()
    thread = threading.Thread(target=send_signals)
    thread.start()
    serve(services, idle, idle, listener)
    took_s = time.monotonic() - signalled[1]
    ended.set()
    thread.join()
    assert least_s <= took_s < least_s + 3


def test_a_port_in_use() -> None:
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
    assert Settings.from_environment({"GRADE_SERVE_SIGN_UP": "open"}).sign_up == "open"
    with pytest.raises(SettingsError, match="GRADE_SERVE_SIGN_UP must be one of closed, "):
        Settings.from_environment({"GRADE_SERVE_SIGN_UP": "yes"})
    assert Settings.unknown(given | {"GRADE_SERVE_MAX_QEUE": "5"}) == ["GRADE_SERVE_MAX_QEUE"]


GIVEN = {
    "GRADE_OAUTH_GITHUB_CLIENT_ID": "a",
    "GRADE_OAUTH_GITHUB_CLIENT_SECRET": "the secret",
    "GRADE_OAUTH_UNI2_CLIENT_ID": "b",
    "GRADE_OAUTH_UNI2_CLIENT_SECRET": "another",
    "GRADE_OAUTH_UNI2_ISSUER": "https://login.example.org/realm/",
}


def test_providers_come_from_the_environment() -> None:
    assert providers_from_environment({"OTHER": "x"}) == {}
    found = providers_from_environment(GIVEN)
    assert list(found) == ["github", "uni2"]
    assert (found["github"].issuer, found["github"].title) == ("https://github.com", "GitHub")
    assert found["uni2"].issuer == "https://login.example.org/realm"
    assert found["github"].client_secret == "the secret"
    assert "secret" not in repr(found).replace("client_secret", "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"GRADE_OAUTH_GITHUB_CLIENT_SECRET": ""}, "GITHUB_CLIENT_SECRET is not set"),
        ({"GRADE_OAUTH_UNI2_ISSUER": " "}, "UNI2_ISSUER is not set"),
        ({"GRADE_OAUTH_UNI2_ISSUER": "http://login.example.org"}, "begins with https://"),
        ({"GRADE_OAUTH_UNI2_ISSUER": "login.example.org"}, "begins with https://"),
        ({"GRADE_OAUTH_UNI2_ISSUER": "https://x.org/?a=b"}, "begins with https://"),
        ({"GRADE_OAUTH_UNI2_ISSUER": "ftp://localhost"}, "begins with https://"),
        ({"GRADE_OAUTH_UNI2_CLIENTID": "x"}, "UNI2_CLIENTID is no setting"),
        ({"GRADE_OAUTH_A_B_CLIENT_ID": "x"}, "A_B_CLIENT_ID is no setting"),
    ],
)
def test_a_wrong_provider_ends_the_start(change: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        providers_from_environment(GIVEN | change)
    assert "the secret" not in str(caught.value)
