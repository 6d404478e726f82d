"""Does a hosted board lose anything when its processes are killed? Real gradings under SIGKILL.

    python -m benchmarks.chaos [--submissions 1000] [--db URL] [--sandbox docker|process]
                               [--slots 2] [--pause 2.0] [--seed N]

The script starts `grade serve` with local slots and a `grade worker`, and submits small right,
wrong and broken files as three users. About every `--pause` seconds it kills a random process with
SIGKILL: the server, the worker, one of their slots, or the runner in a sandbox. What dies is
started again. Held jobs are released, as an admin would. At the end all services get SIGTERM.

Meanwhile an organiser acts about every `--pause` seconds: closes and opens the board, hides and
shows it, bans a bystander, replaces tokens, holds the worker's results, starts rejudges and applies
or drops them. Each action is also undone, or of no consequence for what the users submit.

It prints a table row. The exit status is 1 if a submission that was answered with 202 has not
exactly one final result, if a result belongs to no submission, or if a process, container, lease or
temporary folder is left. A killed runner looks like one that killed itself, so its submission is
graded once more. Submissions whose runner is killed twice get another verdict, and are counted.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import docker
import httpx
from sqlalchemy import func, select

from grader.db.engine import connect, open_engine
from grader.db.tables import jobs, results, submissions
from grader.fleet.job import State
from grader.fleet.ledger import Ledger
from grader.sandbox.docker_engine import OWNER_LABEL, RUNNER_LABEL
from grader.server.services.accounts import Accounts

ROOT = Path(__file__).resolve().parent.parent

SPEC = """\
format: 1
title: Doubling
summary: Twice the input.
entry: doubled
args:
  - {name: x, role: in, dtype: fp32, shape: [n]}
  - {name: out, role: out, dtype: fp32, shape: [n]}
tolerances: {fp32: {atol: 1.0e-6, rtol: 1.0e-6, rel_l2: 1.0e-6}}
cost: {bytes: 8 * n, flops: n, unit: fp32}
tests:
  - {name: one, params: {n: 1}}
  - {name: prime, params: {n: 4099}}
benchmarks:
  - {name: some, params: {n: 65536}}
"""
INPUTS = """\
import torch


def generate(generator, call, n):
    return {"x": torch.randn(n, generator=generator, device=generator.device)}
"""
REFERENCE = """\
def reference(x):
    return 2 * x
"""
KINDS = {
    "accepted": "def doubled(x, out):\n    out.copy_(2 * x)\n",
    "wrong_answer": "def doubled(x, out):\n    out.copy_(x)\n",
    "compile_error": "def doubled(x, out:\n",
}
"""Sources, by the verdict that they get if their runner is not killed."""
USERS = ("ann", "bob", "cho")
BYSTANDER = "dan"
"""A user who submits nothing, for what would cancel submissions."""
BOARD = "/boards/doubling"
ACTIONS: dict[str, list[tuple[str, str, Any]]] = {
    "close and open": [
        ("PUT", BOARD, {"deadline": "2020-01-01T00:00:00Z", "publish_sources": True}),
        ("PUT", BOARD, {}),
    ],
    "hide and show": [("PUT", BOARD, {"hidden": True}), ("PUT", BOARD, {"note": "it is back"})],
    "ban and unban": [
        ("POST", f"/users/{BYSTANDER}/ban", {"reason": "chaos"}),
        ("POST", f"/users/{BYSTANDER}/unban", None),
    ],
    "replace tokens": [
        ("DELETE", f"/users/{BYSTANDER}/tokens", None),
        ("POST", f"/users/{BYSTANDER}/tokens", {"label": "another"}),
    ],
    "hold and unhold": [
        ("POST", "/users/worker/hold", None),
        ("POST", "/users/worker/unhold", None),
    ],
}
"""What an organiser does besides rejudging: requests to the API for admins."""
WEIGHTS = {"runner": 4, "slot": 3, "worker": 1, "server": 2}
MOST_UNFINISHED = 8
"""Unfinished submissions of one user at a time."""
STUCK_S = 300.0
"""Seconds without progress after which jobs count as stuck."""


class Targets:
    """The services' processes and containers, those that live and all that ever lived."""

    def __init__(self, services: dict[str, Service]) -> None:
        self._services = services
        self._all_seen: dict[str, set[tuple[int, str]]] = {}
        """Process ids and start times, by kind."""

    def alive(self, kind: str) -> list[int]:
        """The process ids of one kind."""
        if kind in self._services:
            found = [self._services[kind].pid]
        else:
            slots = self._descendants("-m grader.fleet.worker_process")
            found = slots if kind == "slot" else self._runners(slots)
        born = {(pid, started) for pid in found if (started := started_at(pid))}
        self._all_seen.setdefault(kind, set()).update(born)
        return [pid for pid, _ in born]

    def left(self) -> Iterator[str]:
        """Descriptions of processes and containers that are still there."""
        for kind, born in self._all_seen.items():
            if count := sum(started_at(pid) == started for pid, started in born):
                yield f"{count} processes ({kind})"
        owners = {pid for pid, _ in self._all_seen.get("slot", set())}
        if count := len(containers(owners)):
            yield f"{count} containers"

    def _runners(self, slots: list[int]) -> list[int]:
        return self._descendants("-m grader.runner") + [
            container.attrs["State"]["Pid"] for container in containers(set(slots))
        ]

    def _descendants(self, words: str) -> list[int]:
        """Descendants of the services whose command line contains `words`."""
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(stat[1])
        family = {service.pid for service in self._services.values()}
        for _ in range(8):  # deeper than any of ours
            family |= {pid for pid, parent in parents.items() if parent in family}
        return [pid for pid in family if words in command_line(pid)]


def command_line(pid: int) -> str:
    """A process's command line; empty if it has ended."""
    with suppress(OSError):
        return " ".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0"))
    return ""


def started_at(pid: int) -> str:
    """A process's start time in clock ticks; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def containers(owners: set[int]) -> list[Any]:
    """All containers, ended ones included, of these slots."""
    try:
        api = docker.from_env()
    except docker.errors.DockerException:
        return []
    with closing(api), suppress(docker.errors.NotFound):
        every = api.containers.list(all=True, filters={"label": RUNNER_LABEL})
        return [c for c in every if int(c.labels.get(OWNER_LABEL, "//0").split("/")[2]) in owners]
    return []


class Service:
    """A command that is restarted when it dies."""

    def __init__(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        self._words = [sys.executable, "-m", "grader.cli", *words]
        self._environment = os.environ | environment
        self._log = log.open("ab")
        self._ending = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The current process id."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._words, env=self._environment, cwd=ROOT, stdout=self._log, stderr=self._log
        )

    def _keep(self) -> None:
        while not self._ending.is_set():
            self._process.wait()
            if not self._ending.wait(0.2):
                self._process = self._start()

    def end(self) -> int:
        """Send SIGTERM, wait, and return the exit status."""
        self._ending.set()
        self._process.terminate()
        status = self._process.wait(120)
        self._thread.join()
        self._log.close()
        return status


@dataclass
class Users:
    """The users. They submit files and record those that were answered with 202."""

    url: str
    tokens: dict[str, str]
    total: int
    accepted: dict[int, str] = field(default_factory=dict)
    """Submission number → expected verdict."""
    refused: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, user: str, open_jobs: Callable[[str], int]) -> None:
        """Submit until all users together have submitted `total` files."""
        with httpx.Client(base_url=self.url, timeout=20) as client:
            while len(self.accepted) < self.total:
                if open_jobs(user) >= MOST_UNFINISHED or not self._submit(client, user):
                    time.sleep(0.3)

    def _submit(self, client: httpx.Client, user: str) -> bool:
        kind = random.choice(list(KINDS))
        source = f"# {random.getrandbits(64):x}\n{KINDS[kind]}"
        try:
            answer = client.post(
                "/api/v1/submissions",
                headers={"Authorization": f"Bearer {self.tokens[user]}"},
                data={"problem": "doubling"},
                files={"file": ("kernel.py", source.encode())},
            )
        except httpx.HTTPError as error:
            self.refused[type(error).__name__] += 1
            return False
        if answer.status_code != 202:
            self.refused[str(answer.status_code)] += 1
            return False
        with self.lock:
            self.accepted[int(answer.json()["id"])] = kind
        return True


class Killer(threading.Thread):
    """Kills random processes."""

    def __init__(
        self, targets: Targets, pause_s: float, states: Callable[[], Counter[str]]
    ) -> None:
        super().__init__(daemon=True)
        self._targets = targets
        self._pause_s = pause_s
        self._states = states
        self.over = threading.Event()
        self.kills: Counter[str] = Counter()
        self.during: Counter[str] = Counter()
        """Jobs by state, summed over all kills."""

    def run(self) -> None:
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        while not self.over.wait(random.uniform(0.2, 1.8) * self._pause_s):
            kind = random.choices(kinds, weights)[0]
            if found := self._targets.alive(kind):
                self.during += self._states()
                with suppress(ProcessLookupError):
                    os.kill(random.choice(found), signal.SIGKILL)
                    self.kills[kind] += 1


@dataclass
class Organiser:
    """Acts on the server at random, as an organiser of a contest would."""

    url: str
    token: str
    pause_s: float
    graded: Callable[[], list[int]]
    """The users' submissions that have a verdict."""
    over: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    """Actions that the server has taken, by name."""

    def run(self) -> None:
        """Act until it is over. The board is then open; rejudges may be undecided."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=f"{self.url}/api/v1/admin", headers=headers, timeout=20) as api:
            while not self.over.wait(random.uniform(0.2, 1.8) * self.pause_s):
                name = random.choice([*ACTIONS, "rejudge"])
                for method, path, body in ACTIONS.get(name, []):
                    self._call(api, name, method, path, body)
                if name == "rejudge" and (graded := self.graded()):
                    chosen = random.sample(graded, min(3, len(graded)))
                    body = {"problem": "doubling", "submissions": chosen}
                    self._call(api, name, "POST", "/rejudges", body)
                self._decide_rejudges(api)

    def _call(self, api: httpx.Client, name: str, method: str, path: str, body: Any) -> Any:
        """One request, repeated while the server is away. Counts those that it takes."""
        while True:
            try:
                answer = api.request(method, path, json=body)
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        if method != "GET":
            self.done[name] += answer.is_success
        return answer.json() if answer.is_success and answer.content else None

    def _decide_rejudges(self, api: httpx.Client) -> None:
        listed = self._call(api, "", "GET", "/rejudges", None) or {"rejudges": []}
        for one in listed["rejudges"]:
            if one["state"] == "preview" and random.random() < 0.5:
                verb = random.choice(["apply", "drop"])
                self._call(api, f"{verb} a rejudge", "POST", f"/rejudges/{one['id']}/{verb}", None)


class Database:
    """The database, as the final check reads it."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger.open(url)
        self.engine = open_engine(url, create=False)

    def open_jobs(self, user: str) -> int:
        """Unfinished jobs of a user."""
        return sum(job.user == user for job in self.ledger.queue())

    def states(self) -> Counter[str]:
        """Jobs by state."""
        with connect(self.engine) as connection:
            query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
            return Counter(dict(map(tuple, connection.execute(query))))

    def verdicts(self) -> dict[int, str]:
        """Verdict of each finished job, by submission."""
        query = select(jobs.c.submission_id, results.c.verdict).join(
            results, results.c.id == jobs.c.result_id
        )
        with connect(self.engine) as connection:
            rows = connection.execute(query.where(jobs.c.state == State.DONE))
            return dict(map(tuple, rows))

    def strays(self) -> dict[str, int]:
        """Counts of rows that should not exist, by kind."""
        owned = select(jobs.c.result_id).where(jobs.c.result_id.is_not(None))
        doubled = (
            select(results.c.source_sha256)
            .join(jobs, jobs.c.result_id == results.c.id)
            .join(submissions, submissions.c.id == jobs.c.submission_id)
            .where(submissions.c.rejudge_id.is_(None))
            .group_by(results.c.source_sha256)
            .having(func.count() > 1)
            .subquery()
        )
        counts = {
            "results of no job": select(func.count()).where(results.c.id.not_in(owned)),
            "doubled results": select(func.count()).select_from(doubled),
            "leases": select(func.count()).where(jobs.c.lease_token.is_not(None)),
            "submissions without a job": select(func.count()).where(
                submissions.c.id.not_in(select(jobs.c.submission_id))
            ),
        }
        with connect(self.engine) as connection:
            return {what: int(connection.scalar(query) or 0) for what, query in counts.items()}


def release_held(database: Database, over: threading.Event, released: list[int]) -> None:
    """Release held jobs, as an admin would."""
    while not over.wait(2):
        for job in database.ledger.held():
            if database.ledger.release(job.submission_id):
                released.append(job.submission_id)


def settled(database: Database) -> None:
    """Wait until all jobs have ended. Raises TimeoutError if they stop progressing."""
    last, since = -1, time.monotonic()
    while unfinished := len(database.ledger.queue()) + len(database.ledger.held()):
        if unfinished != last:
            last, since = unfinished, time.monotonic()
        if time.monotonic() - since > STUCK_S:
            raise TimeoutError(f"{unfinished} jobs are stuck: {database.states()}")
        time.sleep(0.5)


def answers(url: str) -> bool:
    """Whether the server answers."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    return False


def until(holds: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.2)


def problem_folder(parent: Path) -> Path:
    """Write a problem that a CPU grades in about a second; its parent folder."""
    folder = parent / "problems" / "doubling"
    folder.mkdir(parents=True)
    texts = {"problem.yaml": SPEC, "inputs.py": INPUTS, "reference.py": REFERENCE}
    for name, text in (texts | {"statement.md": "# Doubling\n"}).items():
        (folder / name).write_text(text)
    return folder.parent


@click.command()
@click.option("--submissions", "total", default=1000, show_default=True)
@click.option("--db", help="Database URL of an empty database [default: a new SQLite file].")
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--slots", default=2, show_default=True)
@click.option("--pause", "pause_s", default=2.0, show_default=True, help="Seconds between kills.")
@click.option("--seed", default=None, type=int)
def main(
    total: int, db: str | None, sandbox: str, slots: int, pause_s: float, seed: int | None
) -> None:
    """Submit files while processes are killed at random, and count what is lost."""
    random.seed(seed)
    start = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    own = place / "tmp"
    own.mkdir(mode=0o1777)
    own.chmod(0o1777)
    url = db or f"sqlite:///{place}/board.sqlite3"
    database = Database(url)
    accounts = Accounts(database.engine, lambda: datetime.now(UTC))
    tokens = {name: accounts.add_user(name, "competitor", by="chaos") for name in USERS}
    accounts.add_user(BYSTANDER, "competitor", by="chaos")
    boss_token = accounts.add_user("boss", "admin", by="chaos")
    worker_token = accounts.add_user("worker", "worker", by="chaos")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    problems = problem_folder(place)
    shared = ["--problems", str(problems), "--sandbox", sandbox]
    server = Service(
        ["serve", "--port", str(port), "--db", url, "--slots", str(slots), *shared],
        {"TMPDIR": str(own)},
        place / "server.log",
    )
    worker = Service(
        ["worker", "--server", address, "--slots", "1", *shared],
        {"TMPDIR": str(own), "GRADE_TOKEN": worker_token},
        place / "worker.log",
    )
    until(lambda: answers(address), 60, f"the server does not answer; see {place}/server.log")
    users = Users(address, tokens, total)
    targets = Targets({"server": server, "worker": worker})
    killer = Killer(targets, pause_s, database.states)
    over, released = threading.Event(), list[int]()
    admin = threading.Thread(target=release_held, args=(database, over, released), daemon=True)
    organiser = Organiser(
        address,
        boss_token,
        pause_s,
        lambda: [number for number in database.verdicts() if number in users.accepted],
    )
    acting = threading.Thread(target=organiser.run, daemon=True)
    submitters = [threading.Thread(target=users.run, args=(u, database.open_jobs)) for u in USERS]
    for thread in (*submitters, killer, admin, acting):
        thread.start()
    for thread in submitters:
        thread.join()
    settled(database)
    killer.over.set()
    organiser.over.set()
    killer.join()
    acting.join()
    settled(database)
    over.set()
    statuses = (worker.end(), server.end())
    took_s = time.monotonic() - start
    verdicts = database.verdicts()
    lost = [n for n in users.accepted if n not in verdicts]
    other = sum(verdicts.get(n) not in (None, kind) for n, kind in users.accepted.items())
    wrong = {what: n for what, n in database.strays().items() if n}
    left = list(targets.left())
    left += [f"temporary {path.name}" for path in own.iterdir()]
    kills = ", ".join(f"{n} {kind}" for kind, n in killer.kills.items())
    print(
        "| database | accepted | lost | doubled | killed | released | another verdict | "
        "left behind | minutes |\n|---|---|---|---|---|---|---|---|---|\n"
        f"| {database.engine.dialect.name} | {len(users.accepted)} | {len(lost)} | "
        f"{wrong.get('doubled results', 0)} | {killer.kills.total()}: {kills} | {len(released)} | "
        f"{other} | {', '.join(left) or 'nothing'} | {took_s / 60:.1f} |"
    )
    print(f"jobs by state, summed over all kills: {dict(killer.during)}")
    print(f"the organiser: {dict(organiser.done)}")
    print(f"refused: {dict(users.refused)}; exit statuses at the end: {statuses}")
    if lost or wrong or left:
        print(f"lost {lost[:10]}; strays {wrong}; left {left}; logs in {place}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
