"""How fast is a hosted board with 10,000 results, for readers and for submitters?

    python -m benchmarks.load [--results 10000] [--db URL] [--seconds 10] [--readers 200]
                              [--only read|submit|queue] [--plain]

The script fills a fresh database (default: SQLite), starts `grade serve --slots 0`, and generates
load with wrk (`apt-get install wrk`), which shares the machine's cores with the server:

- Readers request pages: one reader, `--readers` that pause 0.5 to 1.5 s between pages, and as many
  without a pause, which saturate the server. They accept compressed pages, as browsers do, or with
  `--plain` uncompressed ones. Meanwhile one grading a second ends on the board that they read, so
  no cache stays valid for long.
- 32 users submit a file of 4 KB each, continuously. Then the database must hold exactly what was
  answered with 202.
- With `--only queue`: `--readers` request the queue page while 1,000 submissions wait, without an
  account and signed in. Meanwhile one client checks the server's health and another submits. The
  readers are compared with those of a FastAPI application that serves one page and nothing else.

It prints Markdown tables. The exit status is 1 if a reader was refused, if a submission that was
answered with 202 is missing, or if the database has one that was not.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx
from sqlalchemy import func, insert, select

from grader.board.store import insert_result
from grader.db.engine import connect, transaction
from grader.db.tables import blobs, jobs, submissions
from grader.fleet.job import State
from grader.fleet.ledger import Ledger
from grader.problem import Problem
from grader.report import Report
from grader.server.services.accounts import Accounts
from grader.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
PROBLEM = "softmax"
SOURCE = ROOT / "submissions" / PROBLEM / "accepted" / "triton_softmax.py"
RECORDED = ROOT / "benchmarks" / "recorded_report.json"
"""The report of a real grading; all results are copies of it."""
SUBMITTERS = 32
QUEUED = 1000
"""Submissions that wait while the queue page is read."""
SIGNED_IN = 100
"""Users whose sessions the signed-in readers share; each has submissions that wait."""
DRAIN_S = 3
"""Seconds to wait for the last submissions."""
UNLIMITED = 1_000_000_000
LIMITS = ("MAX_IN_FLIGHT", "MAX_QUEUE", "SUBMISSIONS_PER_MINUTE", "REQUESTS_PER_MINUTE")

READ_LUA = """\
function done(summary, latency, requests)
  local errors = summary.errors
  print("figures " .. string.format(
    '{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "most": %f, '
      .. '"refused": %d, "broken": %d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
"""
THINK_LUA = """\
function delay() return math.random(500, 1500) end
"""
SESSION_LUA = """\
local sessions, count = {}, 0

function init(args)
  for line in io.lines(args[1]) do sessions[#sessions + 1] = line end
end

function request()
  count = count + 1
  return wrk.format("GET", nil, {["Cookie"] = sessions[count % #sessions + 1]})
end
"""
SUBMIT_LUA = """\
local tokens, source, until_s = {}, "", 0
local count, boundary = 0, "----a-boundary-of-the-load-test"
accepted = {}

function init(args)
  for line in io.lines(args[1]) do tokens[#tokens + 1] = line end
  source = io.open(args[2]):read("*a")
  until_s = os.time() + tonumber(args[3])
  math.randomseed(os.time())
end

function request()
  count = count + 1
  local part = "--" .. boundary .. '\\r\\nContent-Disposition: form-data; name='
  local body = part .. '"problem"\\r\\n\\r\\n{problem}\\r\\n' .. part
    .. '"file"; filename="kernel.py"\\r\\nContent-Type: text/x-python\\r\\n\\r\\n# '
    .. count .. " " .. math.random(1e9) .. "\\n" .. source .. "\\r\\n--" .. boundary .. "--\\r\\n"
  return wrk.format("POST", "/api/v1/submissions", {
    ["Authorization"] = "Bearer " .. tokens[count % #tokens + 1],
    ["Content-Type"] = "multipart/form-data; boundary=" .. boundary,
  }, body)
end

-- Submit nothing at the end, so that every request is answered before wrk closes.
function delay() return os.time() < until_s and 0 or 3600000 end

function response(status, headers, body)
  if status == 202 then print("accepted " .. body:match('"id":%s*(%d+)')) end
end
"""


@dataclass(frozen=True)
class Figures:
    """wrk's results; times in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    most: float
    refused: int
    broken: int

    @property
    def cells(self) -> str:
        """The columns of a table: requests a second, p50, p99, longest."""
        rate = self.requests / self.seconds
        return f"{rate:,.0f} | {self.p50:.1f} | {self.p99:.1f} | {self.most:.0f}"


class Wrk:
    """The load generator, the folder of its scripts, and the encoding that it accepts."""

    def __init__(self, folder: Path, accepts: str) -> None:
        self._folder = folder
        self.accepts = accepts
        if shutil.which("wrk") is None:
            raise click.UsageError("wrk is not installed; on Debian: apt-get install wrk")

    def run(
        self, url: str, connections: int, seconds: int, lua: str, *arguments: str
    ) -> tuple[Figures, list[int]]:
        """Generate load; its results, and the numbers of accepted submissions."""
        script = self._folder / "load.lua"
        script.write_text(lua + READ_LUA)
        words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
        words += ["-H", f"Accept-Encoding: {self.accepts}"]
        words += ["-s", str(script), url, "--", *arguments]
        output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        figures = re.search(r"^figures (.*)$", output, re.MULTILINE)
        assert figures is not None, output
        accepted = [int(number) for number in re.findall(r"^accepted (\d+)$", output, re.MULTILINE)]
        return Figures(**json.loads(figures[1])), accepted


class Finisher(threading.Thread):
    """Submits once a second, each time as a new user, and ends the grading of the next job."""

    def __init__(self, ledger: Ledger, problem: Problem, report: Report) -> None:
        super().__init__(daemon=True)
        self._ledger = ledger
        self._problem = problem
        self._report = report
        self.over = threading.Event()

    def run(self) -> None:
        count = 0
        while not self.over.wait(1):
            count += 1
            submission = Submission("kernel.py", "python", f"# {random.random()}\n".encode())
            problem = self._problem
            user = f"new{count:05}"
            self._ledger.submit(user, problem.name, problem.digest, submission, max_queue=UNLIMITED)
            lease = self._ledger.claim("load", lease_s=60)
            assert lease is not None
            self._ledger.begin(lease)
            graded = Submission(lease.name, lease.language, lease.source)
            report = some_report(self._report, problem, graded, datetime.now(UTC))
            self._ledger.finish(lease, report)


class Probe(threading.Thread):
    """Sends one request after the other, with a pause between, and notes how long each took."""

    def __init__(self, pause_s: float, send: Callable[[int], httpx.Response]) -> None:
        super().__init__(daemon=True)
        self._pause_s = pause_s
        self._send = send
        self.over = threading.Event()
        self.times_ms: list[float] = []
        self.failed = 0

    def run(self) -> None:
        while not self.over.wait(self._pause_s):
            start = time.perf_counter()
            try:
                self.failed += not self._send(len(self.times_ms)).is_success
            except httpx.HTTPError:
                self.failed += 1
            self.times_ms.append((time.perf_counter() - start) * 1e3)

    def cells(self) -> str:
        """The columns of a table, of what was noted since the last call: p50 and p99."""
        times_ms, self.times_ms = sorted(self.times_ms), []
        if not times_ms:
            return "none answered | "
        p99 = times_ms[min(len(times_ms) - 1, int(len(times_ms) * 0.99))]
        return f"{times_ms[len(times_ms) // 2]:.1f} | {p99:.0f}"


def some_report(model: Report, problem: Problem, submission: Submission, at: datetime) -> Report:
    """A real report with another score."""
    assert model.score_us is not None
    score_us = model.score_us * random.uniform(1, 4)
    return model.model_copy(
        update={
            "problem_digest": problem.digest,
            "submission_sha256": submission.sha256,
            "submission_name": submission.name,
            "language": submission.language,
            "created_at": at,
            "score_us": score_us,
            "score_ci_us": (score_us * 0.999, score_us * 1.001),
        }
    )


def fill(ledger: Ledger, problem: Problem, model: Report, count: int) -> None:
    """Insert `count` ranked results with their jobs, one per user."""
    first = datetime.now(UTC) - timedelta(days=14)
    source = SOURCE.read_bytes()
    with transaction(ledger.board._engine) as connection:
        for number in range(1, count + 1):
            submission = Submission("kernel.py", "python", b"# %d\n%s" % (number, source))
            at = first + timedelta(days=14) * number / (count + 1)
            user = f"racer{number:05}"
            report = some_report(model, problem, submission, at)
            result = insert_result(connection, report, user, submission.source)
            rows: list[tuple[Any, dict[str, Any]]] = [
                (
                    blobs,
                    {
                        "sha256": submission.sha256,
                        "size_bytes": len(submission.source),
                        "content": submission.source,
                    },
                ),
                (
                    submissions,
                    {
                        "id": number,
                        "user": user,
                        "problem": problem.name,
                        "problem_digest": problem.digest,
                        "name": submission.name,
                        "language": submission.language,
                        "sha256": submission.sha256,
                        "created_at": at,
                    },
                ),
                (
                    jobs,
                    {
                        "submission_id": number,
                        "state": State.DONE,
                        "failures": 0,
                        "deaths": 0,
                        "result_id": result,
                        "updated_at": at,
                    },
                ),
            ]
            for table, values in rows:
                connection.execute(insert(table).values(values))
        if connection.dialect.name == "postgresql":
            highest = select(func.max(submissions.c.id)).scalar_subquery()
            connection.execute(select(func.setval("submissions_id_seq", highest)))


@contextmanager
def serving(
    url: str, folder: Path, options: list[str], environment: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Run a server with these options and without rate limits; yields its address."""
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "grader.cli", "serve", "--port", "0", *options),
                *("--db", url, "--problems", str(ROOT / "problems")),
            ],
            env=dict(environment) | {f"GRADE_SERVE_{name}": str(UNLIMITED) for name in LIMITS},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            if found is None:
                sys.exit(f"the server did not start; see {log.name}")
            yield found.group()
        finally:
            server.terminate()
            server.wait(60)


def read(wrk: Wrk, address: str, number: int, readers: int, seconds: int) -> bool:
    """Print the readers' table; whether all requests were answered."""
    paths = (
        "/",
        f"/leaderboards/{PROBLEM}",
        f"/api/v1/leaderboards/{PROBLEM}",
        f"/problems/{PROBLEM}",
        f"/submissions/{number}",
    )
    reader_counts = (
        (1, "1", ""),
        (readers, f"{readers}, 1 s between pages", THINK_LUA),
        (readers, f"{readers}, without a pause", ""),
    )
    print(
        "| page | KB sent | readers | requests/s | p50 ms | p99 ms | longest ms | load before |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    good = True
    for path in paths:
        page = httpx.get(address + path, timeout=60, headers={"Accept-Encoding": wrk.accepts})
        page.raise_for_status()
        kb = int(page.headers["Content-Length"]) / 1000
        for connections, words, lua in reader_counts:
            load = os.getloadavg()[0]
            figures, _ = wrk.run(address + path, connections, seconds, lua)
            good = good and not figures.refused and not figures.broken
            failed = f" ({figures.refused} refused, {figures.broken} broken)"
            print(
                f"| {path} | {kb:,.0f} | {words} | {figures.cells}"
                f"{failed if figures.refused or figures.broken else ''} | {load:.1f} |",
                flush=True,
            )
    return good


def submit_files(wrk: Wrk, address: str, ledger: Ledger, folder: Path, seconds: int) -> bool:
    """Print the submitters' table; whether exactly the accepted submissions are in the database."""
    accounts = Accounts(ledger.board._engine, lambda: datetime.now(UTC))
    names = [f"hand{number:02}" for number in range(SUBMITTERS)]
    tokens = folder / "tokens"
    tokens.write_text("".join(accounts.add_user(name, by="load") + "\n" for name in names))
    load = os.getloadavg()[0]
    figures, accepted = wrk.run(
        address,
        SUBMITTERS,
        seconds + DRAIN_S,
        SUBMIT_LUA.replace("{problem}", PROBLEM),
        str(tokens),
        str(SOURCE),
        str(seconds),
    )
    query = (
        select(submissions.c.id, blobs.c.size_bytes, submissions.c.created_at)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .join(blobs, blobs.c.sha256 == submissions.c.sha256)
        .where(jobs.c.state == State.QUEUED, submissions.c.user.in_(names))
    )
    with connect(ledger.board._engine) as connection:
        kept = {row.id: row for row in connection.execute(query)}
    times = [row.created_at for row in kept.values()]
    span_s = (max(times) - min(times)).total_seconds() if len(times) > 1 else seconds
    size = SOURCE.stat().st_size
    lost = set(accepted) - {n for n, row in kept.items() if row.size_bytes > size}
    unreported = set(kept) - set(accepted)
    print(
        "\n| database | submitters | accepted | a second | p50 ms | p99 ms | longest ms | "
        "refused | lost | unreported | load before |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n"
        f"| {ledger.board._engine.dialect.name} | {SUBMITTERS} | {len(accepted):,} | "
        f"{len(accepted) / span_s:,.0f} | {figures.p50:.1f} | {figures.p99:.1f} | "
        f"{figures.most:.0f} | {figures.refused + figures.broken} | {len(lost)} | "
        f"{len(unreported)} | {load:.1f} |",
        flush=True,
    )
    return not lost and not unreported and len(accepted) == len(set(accepted))


def fill_queue(ledger: Ledger, problem: Problem, users: list[str]) -> None:
    """Queue `QUEUED` submissions of these users, in turn."""
    for number in range(QUEUED):
        submission = Submission("kernel.py", "python", b"# queued %d\n" % number)
        user = users[number % len(users)]
        ledger.submit(user, problem.name, problem.digest, submission, max_in_flight=QUEUED)


def read_queue(
    wrk: Wrk, address: str, plain: str, ledger: Ledger, folder: Path, readers: int, seconds: int
) -> bool:
    """Print the table of the queue's readers; whether every request was answered.

    plain: the address of a page from an application that does nothing else.
    """
    accounts = Accounts(ledger.board._engine, lambda: datetime.now(UTC))
    names = [f"reader{number:03}" for number in range(SIGNED_IN)]
    tokens = [accounts.add_user(name, by="load") for name in names]
    sessions = folder / "sessions"
    logins = [httpx.post(f"{address}/login", data={"token": token}) for token in tokens]
    sessions.write_text("".join(f"{one.headers['set-cookie'].split(';')[0]}\n" for one in logins))
    fill_queue(ledger, Problem.load(ROOT / "problems" / PROBLEM), names)
    source, client = SOURCE.read_bytes(), httpx.Client(base_url=address, timeout=60)

    def submit(number: int) -> httpx.Response:
        return client.post(
            "/api/v1/submissions",
            data={"problem": PROBLEM},
            files={"file": ("kernel.py", b"# %d\n%s" % (number, source))},
            headers={"Authorization": f"Bearer {tokens[number % len(tokens)]}"},
        )

    def check(number: int) -> httpx.Response:
        return httpx.get(f"{address}/healthz", timeout=60)

    probes = Probe(0.05, check), Probe(0.2, submit)
    for probe in probes:
        probe.start()
    good, plain_rate = True, 0.0
    pause = THINK_LUA
    print(
        "\n| page | readers | answers/s | of a plain page | p50 ms | p99 ms | health p50 ms | "
        "p99 ms | hand-in p50 ms | p99 ms | load before |\n" + "|---" * 11 + "|"
    )
    for page, url, who, lua in (
        ("none", None, "", ""),
        ("plain", plain, "without a pause", ""),
        ("/queue", address, "1 s between pages", pause),
        ("/queue", address, "signed in, 1 s between pages", SESSION_LUA + pause),
        ("/queue", address, "without a pause", ""),
        ("/queue", address, "signed in, without a pause", SESSION_LUA),
        ("/users/racer00001", address, "signed in, without a pause", SESSION_LUA),
        (f"/leaderboards/{PROBLEM}", address, "without a pause", ""),
        (f"/leaderboards/{PROBLEM}", address, "signed in, without a pause", SESSION_LUA),
    ):
        load = os.getloadavg()[0]
        for probe in probes:
            probe.cells()
        if url is None:
            time.sleep(seconds)
            cells = " |  |  | "
        else:
            path = "" if page == "plain" else page
            figures, _ = wrk.run(url + path, readers, seconds, lua, str(sessions))
            rate = figures.requests / figures.seconds
            plain_rate = plain_rate or rate
            failed = figures.refused + figures.broken
            good = good and not failed
            share = "" if lua.endswith(pause) else f"{rate / plain_rate:.2f}"
            note = f" ({failed} failed)" if failed else ""
            cells = f"{rate:,.0f}{note} | {share} | {figures.p50:.1f} | {figures.p99:.0f}"
        httpx.get(f"{address}/healthz", timeout=60)  # once the readers' last requests are answered
        beside = " | ".join(probe.cells() for probe in probes)
        words = f"{readers} {who}".strip() if url else "0"
        print(f"| {page} | {words} | {cells} | {beside} | {load:.1f} |", flush=True)
    for probe in probes:
        probe.over.set()
        probe.join()
    print(f"\nhealth checks and hand-ins that failed: {sum(probe.failed for probe in probes)}")
    return good and not any(probe.failed for probe in probes)


@contextmanager
def plain_page(content: bytes) -> Iterator[str]:
    """Serve one page with FastAPI and nothing else; yields its address."""
    code = (
        "import sys, uvicorn, socket\n"
        "from fastapi import FastAPI, Response\n"
        "app, content = FastAPI(), sys.stdin.buffer.read()\n"
        "headers = {'Content-Encoding': 'gzip'}\n"
        "@app.get('/')\n"
        "def page(): return Response(content, media_type='text/html', headers=headers)\n"
        "listener = socket.create_server(('127.0.0.1', 0), backlog=1024)\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "config = uvicorn.Config(app, access_log=False, log_config=None)\n"
        "uvicorn.Server(config).run([listener])\n"
    )
    words = [sys.executable, "-c", code]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(gzip.compress(content))
        server.stdin.close()
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
    finally:
        server.terminate()
        server.wait(60)


@click.command()
@click.option("--results", "count", default=10_000, show_default=True)
@click.option("--db", help="Database URL of an empty database [default: a new SQLite file].")
@click.option("--seconds", default=10, show_default=True, help="Of each measurement.")
@click.option("--readers", default=200, show_default=True)
@click.option("--only", type=click.Choice(["read", "submit", "queue"]))
@click.option("--plain", is_flag=True, help="Readers accept no compression.")
def main(
    count: int, db: str | None, seconds: int, readers: int, only: str | None, *, plain: bool
) -> None:
    """Measure a board with many results under load."""
    problem = Problem.load(ROOT / "problems" / PROBLEM)
    model = Report.model_validate_json(RECORDED.read_bytes())
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        wrk = Wrk(folder, "identity" if plain else "gzip")
        url = db or f"sqlite:///{folder}/board.sqlite3"
        ledger = Ledger.open(url)
        fill(ledger, problem, model, count)
        good = True
        idle = ["--slots", "0", "--sandbox", "process"]
        with serving(url, folder, idle) as address:
            if only == "queue":
                finisher = Finisher(ledger, problem, model)
                with plain_page(
                    httpx.get(f"{address}/leaderboards/{PROBLEM}").content
                ) as plain_url:
                    finisher.start()
                    good = read_queue(wrk, address, plain_url, ledger, folder, readers, seconds)
                finisher.over.set()
                finisher.join()
            if only in (None, "read"):
                finisher = Finisher(ledger, problem, model)
                finisher.start()
                good = read(wrk, address, count // 2, readers, seconds)
                finisher.over.set()
                finisher.join()
            if only in (None, "submit"):
                good = submit_files(wrk, address, ledger, folder, seconds) and good
        ledger.close()
    sys.exit(not good)


if __name__ == "__main__":
    main()
