"""A server on a real socket, over a SQLite ledger with the repository's problems, and users of
every role. There are no workers: `World.grade` finishes a job.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import event

from grader.fleet import Lease
from grader.problem import Problem
from grader.report import Report
from grader.server.app import create_app
from grader.server.services.container import Services, load_problems
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.db.conftest import url as url
from tests.fleet.conftest import Clock
from tests.fleet.conftest import clock as clock
from tests.fleet.conftest import ledger as ledger
from tests.fleet.conftest import report_of as report_of
from tests.waiting import PATIENCE_S

PROBLEMS = Path(__file__).parents[2] / "problems"
H100 = "NVIDIA H100 80GB HBM3"
KERNEL = b"def softmax(x, out):\n    out.copy_(x.softmax(-1))\n"

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of servers without TLS: reading the certificates of a default one takes 25 ms."""

PEOPLE = {"ada": "competitor", "bob": "competitor", "wilma": "worker", "root": "admin"}


class Server:
    """Serves the application in a thread of this process, within a context."""

    def __init__(self, services: Services, port: int = 0) -> None:
        self.app = create_app(services)
        config = uvicorn.Config(
            self.app,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._hub = services.events
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> str:
        """Start the server. Returns its address."""
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server. May be called again."""
        self._hub.close()
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)


@dataclass
class World:
    """A running server, its services, and clients."""

    services: Services
    server: Server
    url: str
    clock: Clock
    make_report: Callable[..., Report]
    tokens: dict[str, str] = field(default_factory=dict)
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def app(self) -> FastAPI:
        """The application."""
        return self.server.app

    @property
    def problem(self) -> Problem:
        """The softmax problem."""
        return self.services.problems["softmax"]

    def client(self, name: str | None = None, token: str | None = None) -> httpx.Client:
        """A client with the token of a user, with another token, or without one."""
        token = token or (self.tokens[name] if name else None)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE_S, verify=NO_AUTHORITIES
        )
        self.clients.append(client)
        return client

    def submit(
        self,
        name: str = "ada",
        problem: str = "softmax",
        content: bytes = KERNEL,
        file: str = "kernel.py",
        **form: str,
    ) -> httpx.Response:
        """Submit a file over HTTP."""
        return self.client(name).post(
            "/api/v1/submissions",
            data={"problem": problem, **form},
            files={"file": (file, content)},
        )

    def submitted(self, name: str = "ada", **more: Any) -> int:
        """The number of a new submission."""
        reply = self.submit(name, **more)
        assert reply.status_code == 202, reply.text
        return int(reply.json()["id"])

    def batch(self, name: str = "ada", *keys: str, **more: Any) -> int:
        """The number of a new batch of kernels with these keys."""
        items = [{"key": key, "source": f"x = {key!r}"} for key in keys or ("a",)]
        body = {"problem": "softmax", "items": items} | more
        reply = self.client(name).post("/api/v1/batches", json=body)
        assert reply.status_code == 202, reply.text
        return int(reply.json()["id"])

    def lease(self) -> Lease:
        """The next job, begun."""
        lease = self.services.ledger.claim("w", lease_s=60, gpu=H100)
        assert lease is not None
        assert self.services.ledger.begin(lease)
        return lease

    def grade(self, **changes: Any) -> int:
        """Finish the next job with such a report. Returns the result's number."""
        lease = self.lease()
        number = self.services.ledger.finish(lease, self.report(lease, **changes))
        assert number is not None
        return number

    def report(self, lease: Lease, **changes: Any) -> Report:
        """A report for a lease."""
        fields = {
            "problem": lease.problem,
            "problem_digest": lease.problem_digest,
            "submission_sha256": hashlib.sha256(lease.source).hexdigest(),
            "submission_name": lease.name,
            "language": lease.language,
            "gpu": H100,
            "seed": SEED,
        }
        return self.make_report(**fields | changes)

    def graded(self, name: str = "ada", **changes: Any) -> int:
        """The number of a new submission that is done."""
        number = self.submitted(name)
        self.grade(**changes)
        return number


@contextmanager
def statements(world: World) -> Iterator[list[str]]:
    """The SQL statements that the server executes meanwhile."""
    seen: list[str] = []
    engine = world.services.ledger.board._engine

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


SEED = 987654321987
"""A seed that is easy to find in an answer."""


@pytest.fixture
def settings() -> Settings:
    """Limits that tests do not reach by accident, and a fast poller."""
    return Settings(requests_per_minute=10_000, submissions_per_minute=1000, poll_s=0.02)


@pytest.fixture
def database(tmp_path: Path) -> str:
    """URL of an empty database. Modules that test both kinds of databases import `url` of the
    fleet's tests under this name."""
    return f"sqlite:///{tmp_path}/server.sqlite3"


@cache
def every_problem() -> dict[str, Problem]:
    """The repository's problems, loaded once."""
    return load_problems(PROBLEMS)


@pytest.fixture
def services(settings: Settings, database: str) -> Iterator[Services]:
    migrate_by_copy(database)
    opened = Services.open(database, dict(every_problem()), settings, Clock())
    yield opened
    opened.close()


@contextmanager
def running_world(
    services: Services, make_report: Callable[..., Report], people: Mapping[str, str] = PEOPLE
) -> Iterator[World]:
    """A running server with a token for each of these people."""
    clock = services.now
    assert isinstance(clock, Clock)
    server = Server(services)
    with server as url:
        made = World(services, server, url, clock, make_report)
        for name, role in people.items():
            made.tokens[name] = services.accounts.add_user(name, role)  # type: ignore[arg-type]
        yield made
        for client in made.clients:
            client.close()


@pytest.fixture
def world(services: Services, make_report: Callable[..., Report]) -> Iterator[World]:
    """A running server with a token for each of `PEOPLE`."""
    with running_world(services, make_report) as made:
        yield made
