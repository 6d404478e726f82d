"""Two server processes that share one PostgreSQL database.

Both serve all tests of this module, since to start them takes 10 s of CPU time. The last test kills
one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from grader.db.engine import connect, open_engine
from grader.db.tables import results
from grader.fleet import Job, Ledger, State, Worker
from grader.fleet.remote_ledger import RemoteLedger
from grader.problem import Problem
from grader.report import Report
from tests.cli.conftest import write_problem
from tests.db.conftest import postgres_schema
from tests.server.conftest import H100
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

KERNEL = "import time\ntime.sleep({seconds})\ndef doubled(x, out):\n    out.copy_(x * 2)\n"


@dataclass
class Server:
    """One server process."""

    popen: subprocess.Popen[bytes]
    out: Path
    log: Path
    client: httpx.Client

    @property
    def is_up(self) -> bool:
        """Whether it answers. Fails if the process has ended."""
        assert self.popen.poll() is None, self.log.read_text()
        found = re.match(r"grade serves on (http://\S+)\n", self.out.read_text())
        if found is None:
            return False
        self.client.base_url = httpx.URL(found.group(1))
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def port(self) -> int:
        return int(self.client.base_url.port or 0)

    def get(self, path: str) -> Any:
        reply = self.client.get(f"/api/v1{path}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def page(self, path: str) -> str:
        reply = self.client.get(path, headers={"Accept": "text/html"})
        assert reply.status_code == 200, reply.text
        return reply.text

    def submit(self, seconds: float = 0, gpu: str = "") -> int:
        reply = self.client.post(
            "/api/v1/submissions",
            data={"problem": "double", "gpu": gpu},
            files={"file": ("k.py", KERNEL.format(seconds=seconds).encode())},
        )
        assert reply.status_code == 202, reply.text
        return int(reply.json()["id"])

    def last_event(self, number: int) -> str:
        """Follow a submission's events to their end. Returns the last."""
        names = []
        with self.client.stream("GET", f"/api/v1/submissions/{number}/events") as reply:
            for line in reply.iter_lines():
                if line.startswith("event:"):
                    names.append(line.removeprefix("event:").strip())
        return names[-1]


Pair = tuple[Server, Server]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_schema() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def problem(folder: Path) -> Path:
    return write_problem(folder)


@pytest.fixture(scope="module")
def pair(url: str, problem: Path, folder: Path) -> Iterator[Pair]:
    """Two servers with one slot each, started at the same time on an empty database."""
    environ = os.environ | {"GRADE_SERVE_MAX_IN_FLIGHT": "50", "GRADE_DB": url}
    servers = []
    for name in ("left", "right"):
        out, log = folder / f"{name}.out", folder / f"{name}.log"
        with out.open("wb") as stdout, log.open("wb") as stderr:
            popen = subprocess.Popen(
                [
                    *(sys.executable, "-m", "grader.cli", "serve", "--port", "0", "--slots", "1"),
                    *("--sandbox", "process", "--problems", str(problem.parent)),
                ],
                stdout=stdout,
                stderr=stderr,
                env=environ,
            )
        servers.append(Server(popen, out, log, httpx.Client(timeout=PATIENCE_S)))
    left, right = servers
    try:
        until(lambda: left.is_up and right.is_up)
        said = left.out.read_text() + right.out.read_text()
        (token,) = re.findall(r"shown only this once:\n(\S+)\n", said)
        for server in servers:
            server.client.headers["Authorization"] = f"Bearer {token}"
        yield left, right
    finally:
        for server in servers:
            server.popen.kill()
            server.popen.wait()
            server.client.close()


@pytest.fixture
def ledger(url: str, pair: Pair) -> Iterator[Ledger]:
    opened = Ledger.open(url)
    yield opened
    opened.close()


def job(ledger: Ledger, number: int) -> Job:
    found = ledger.job(number)
    assert found is not None
    return found


def count_results(url: str) -> int:
    engine = open_engine(url, create=False)
    with connect(engine) as connection:
        found = connection.scalar(select(func.count()).select_from(results))
    engine.dispose()
    return int(found or 0)


def test_servers_share_the_work_and_show_everything(url: str, pair: Pair, ledger: Ledger) -> None:
    left, right = pair
    numbers = [server.submit() for _ in range(3) for server in pair]
    others = [server for _ in range(3) for server in (right, left)]
    with ThreadPoolExecutor(6) as pool:
        ends = pool.map(lambda other, number: other.last_event(number), others, numbers)
        assert list(ends) == ["done"] * 6
    jobs = [job(ledger, number) for number in numbers]
    assert [one.state for one in jobs] == [State.DONE] * 6
    assert [(one.failures, one.deaths) for one in jobs] == [(0, 0)] * 6
    assert len({one.result_id for one in jobs}) == count_results(url) == 6
    graders = {str(one.leased_by).rpartition(":")[2] for one in jobs}
    assert graders == {str(left.port), str(right.port)}
    for server in pair:
        found = server.get("/submissions?limit=50")["submissions"]
        assert {one["id"]: one["verdict"] for one in found} == dict.fromkeys(numbers, "accepted")
        for number in numbers:
            assert "accepted" in server.page(f"/submissions/{number}").lower()
        board = server.page("/leaderboards/double")
        assert f"/submissions/{numbers[-1]}" in board, "the newest, since none is ranked"
    assert left.get("/queue") == right.get("/queue") == {"jobs": []}


def test_a_record_of_one_server_is_shown_by_the_other(
    pair: Pair, problem: Path, make_report: Callable[..., Report]
) -> None:
    user = pair[0].client.post("/api/v1/admin/users", json={"name": "workers", "role": "worker"})
    digest = Problem.load(problem).digest
    left, right = pair
    for server, other, score_us in ((left, right, 50.0), (right, left, 40.0)):
        shown = [one.get("/leaderboards/double")["entries"] for one in pair]
        pages = [one.page("/leaderboards/double") for one in pair]
        assert shown[0] == shown[1]
        with closing(RemoteLedger(str(server.client.base_url), user.json()["token"])) as source:
            source.announce(Worker("host", "http", "cuda", H100, 1))
            number = other.submit(gpu="H100")
            lease = source.claim(
                "host", lease_s=30, problems={"double": digest}, gpu=H100, languages=None
            )
            assert lease is not None
            assert lease.submission_id == number
            assert source.begin(lease)
            report = make_report(
                problem="double",
                problem_digest=digest,
                submission_sha256=hashlib.sha256(lease.source).hexdigest(),
                score_us=score_us,
                score_ci_us=(score_us - 0.5, score_us + 0.5),
                cases=[],
            )
            assert source.finish(lease, report) is not None
        for one, before in zip(pair, pages, strict=True):
            (entry,) = one.get("/leaderboards/double")["entries"]
            assert (entry["submission_id"], entry["score_us"]) == (number, score_us)
            page = one.page("/leaderboards/double")
            assert page != before
            assert f"{score_us:.1f}" in page.split('class="chart"')[1].split("</svg>")[0]


@pytest.mark.timeout(600)
def test_a_killed_servers_work_is_finished_by_the_other(
    url: str, pair: Pair, ledger: Ledger
) -> None:
    left, right = pair
    before = count_results(url)
    numbers = [left.submit(seconds=2) for _ in range(4)]

    def lost() -> list[int]:
        return [
            one.submission_id
            for one in ledger.queue()
            if one.state is State.RUNNING and str(one.leased_by).endswith(f":{left.port}")
        ]

    until(lost)
    (number,) = lost()
    left.popen.send_signal(signal.SIGKILL)
    left.popen.wait()
    started = time.monotonic()
    assert json.loads(right.client.get("/healthz").text) == {"status": "ok"}
    until(lambda: all(job(ledger, one).state is State.DONE for one in numbers))
    assert time.monotonic() - started > 20, "its lease must expire first"
    after = job(ledger, number)
    assert (after.deaths, after.failures) == (1, 0)
    assert str(after.leased_by).endswith(f":{right.port}")
    assert count_results(url) == before + 4
    assert right.get(f"/submissions/{number}")["verdict"] == "accepted"
