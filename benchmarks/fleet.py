"""Are a hosted board's verdicts right on this machine's GPUs, and how long do users wait?

    python -m benchmarks.fleet [--engine local] [--engine ray] [--sandbox docker|process] [--each 3]
                               [--out FILE]

For each engine the script starts `grade serve` over a fresh database in a temporary folder, and for
`ray` also a cluster of this machine alone. One user per slot submits a few files of `submissions/`,
each file `--each` times, and the next file when the last one is graded. All requests go over HTTP,
with the client of `grade submit --server`. Without a GPU the slots are on the CPU.

It prints Markdown. The exit status is 1 if a verdict is not that of the file's folder, if a
submission has no result, or if a ranked score is missing on the leaderboard.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import click
import httpx

from benchmarks.chaos import ROOT, until
from benchmarks.load import serving
from grader.cli.examples import Example, examples
from grader.cli.remote import Client
from grader.cli.remote_submit import as_report, wait
from grader.fleet.ledger import Ledger
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox.gpu_info import driver
from grader.server.services.accounts import Accounts
from grader.stats import median

FILES = (
    "softmax/accepted/triton_softmax.py",
    "softmax/accepted/cuda_softmax.cu",
    "softmax/wrong_answer/skipped_tail.py",
    "softmax/rejected/forged_claim.py",
    "int4_matmul/accepted/triton_int4_matmul.py",
)
"""Submitted in this order. Without a GPU, files that need one are left out."""
CPU_SLOTS = 2
"""Slots without a GPU."""
UP_S = 240.0
"""Seconds that all slots may take to start."""


@dataclass(frozen=True)
class Graded:
    """One submission, from its request to its verdict."""

    name: str
    example: Example
    number: int
    user: str
    first: bool
    """Whether this is the file's first submission."""
    began: float
    """When its state was first `running`."""
    ended: float
    took_s: float
    """From the request to the verdict, as its user sees it."""
    report: Report

    @property
    def is_right(self) -> bool:
        """Whether it has the verdict that its folder names."""
        return self.example.fits(self.report)

    def __str__(self) -> str:
        return f"{self.name} (submission {self.number}): {self.report.reason}"


@dataclass
class Users:
    """The users, and the results of their submissions."""

    address: str
    submitted: int = 0
    took_s: float = 0.0
    graded: list[Graded] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Submissions without a result, each with the reason."""
    missing_scores: list[str] = field(default_factory=list)
    """Ranked scores that are missing on the leaderboard."""

    def submit_all(self, tokens: dict[str, str], chosen: dict[str, Example], each: int) -> bool:
        """Submit every file `each` times; whether all results are right."""
        work: SimpleQueue[tuple[str, Example, bool]] = SimpleQueue()
        for turn in range(each):
            for name, example in chosen.items():
                work.put((name, example, turn == 0))
        total = work.qsize()
        users = [
            threading.Thread(target=self._user, args=(*user, work), daemon=True)
            for user in tokens.items()
        ]
        start = time.monotonic()
        for thread in users:
            thread.start()
        for thread in users:
            thread.join()
        self.took_s = time.monotonic() - start
        self.missing_scores = missing(self.address, self.graded)
        return len(self.graded) == total and not list(self.faults())

    def faults(self) -> Iterator[str]:
        """Everything that went wrong."""
        yield from self.lost
        yield from (str(one) for one in self.graded if not one.is_right)
        yield from self.missing_scores

    def __str__(self) -> str:
        count, took_s = len(self.graded), self.took_s
        rate = f"in {took_s:.0f} s, {3600 * count / took_s:.0f} an hour" if took_s else "and no end"
        ranked = sum(one.report.ranked for one in self.graded)
        return (
            f"{busy(self.graded)} busy at once; {count} of {self.submitted} graded {rate}; "
            f"{len(self.lost)} lost; {ranked} may be ranked, and {len(self.missing_scores)} of "
            "these users' best scores are missing on the leaderboard"
        )

    def _user(self, user: str, token: str, work: SimpleQueue[tuple[str, Example, bool]]) -> None:
        """Submit one file after the other until none is left."""
        with Client(self.address, token) as client:
            while True:
                try:
                    name, example, first = work.get_nowait()
                except Empty:
                    return
                self.submitted += 1
                try:
                    self.graded.append(graded(client, user, name, example, first))
                except click.ClickException as error:
                    self.lost.append(f"{name}: {error.message}")


def graded(client: Client, user: str, name: str, example: Example, first: bool) -> Graded:
    """Submit a file and wait for its verdict. Raises click.ClickException without one."""
    ran: list[float] = []

    def note(state: dict[str, Any]) -> None:
        if state["state"] == "running":
            ran.append(time.monotonic())

    start = time.monotonic()
    taken = client.request(
        "POST",
        "/submissions",
        data={"problem": name.split("/")[0]},
        files={"file": (example.path.name, example.path.read_bytes())},
    )
    found = wait(client, taken["id"], note)
    end = time.monotonic()
    if found["state"] != "done":
        raise click.ClickException(f"submission {taken['id']} is {found['state']}")
    began = ran[0] if ran else end
    report = as_report(found)
    return Graded(name, example, taken["id"], user, first, began, end, end - start, report)


@contextmanager
def ray_head(folder: Path, slots: int, gpus: int) -> Iterator[str]:
    """Run a Ray cluster on this machine; yields its address. Ray finds the GPUs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    words += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder}/ray"]
    words += ["--include-dashboard=false", "--dashboard-agent-listen-port=0"]
    words += ["--object-store-memory=80000000"]
    words += ["--disable-usage-stats"] if gpus else ["--disable-usage-stats", f"--num-cpus={slots}"]
    with (folder / "ray.log").open("w") as log:
        head = subprocess.Popen(words, env=environment(), stdout=log, stderr=log)
        try:
            until(lambda: accepts(port), 60, f"Ray does not start; see {log.name}")
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()
            head.wait(60)


def environment(**more: str) -> dict[str, str]:
    """This environment with the checkout on PYTHONPATH: Ray's workers start in other folders."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | more


def accepts(port: int) -> bool:
    """Whether the port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def slots_up(address: str) -> int:
    """The number of slots in the server's metrics."""
    text = httpx.get(f"{address}/metrics", timeout=30).text
    found = re.findall(r"^grade_worker_slots\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


def files(gpus: int) -> dict[str, Example]:
    """The files that this machine can grade, by name below `submissions`."""
    there = {
        example.path.relative_to(ROOT / "submissions").as_posix(): example
        for problem in dict.fromkeys(name.split("/")[0] for name in FILES)
        for example in examples(Problem.load(ROOT / "problems" / problem))
    }
    return {name: there[name] for name in FILES if gpus or not there[name].needs_gpu}


def missing(address: str, found: list[Graded]) -> list[str]:
    """Best ranked scores of each user that are missing on the leaderboard."""
    best: dict[tuple[str, str, str], float] = {}
    for one in found:
        report = one.report
        if report.ranked and report.score_us is not None and report.gpu is not None:
            key = (report.problem, report.gpu, one.user)
            best[key] = min(report.score_us, best.get(key, report.score_us))
    missing_scores = []
    with Client(address, None) as client:
        for (problem, gpu, user), score_us in best.items():
            board = client.request("GET", f"/leaderboards/{problem}", params={"gpu": gpu})
            if (user, score_us) not in [(e["user"], e["score_us"]) for e in board["entries"]]:
                missing_scores.append(f"{user}'s {score_us:.2f} µs for {problem} on {gpu}")
    return missing_scores


def run(engine: str, sandbox: str, each: int, say: Callable[[str], None]) -> bool:
    """Run one engine and print its table; whether all results are right."""
    gpus = len(driver().gpus)
    slots = gpus or CPU_SLOTS
    chosen = files(gpus)
    with ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(place))
        url = f"sqlite:///{folder}/board.sqlite3"
        ledger = Ledger.open(url)
        stack.callback(ledger.close)
        accounts = Accounts(ledger.board._engine, lambda: datetime.now(UTC))
        tokens = {f"user{i}": accounts.add_user(f"user{i}", by="fleet") for i in range(slots)}
        options, more = ["--slots", str(slots)], {}
        if engine == "ray":
            options, more = [], {"RAY_ADDRESS": stack.enter_context(ray_head(folder, slots, gpus))}
        options += ["--engine", engine, "--sandbox", sandbox]
        address = stack.enter_context(serving(url, folder, options, environment(**more)))
        users = Users(address)
        is_right = False
        try:
            until(lambda: slots_up(address) >= slots, UP_S, "not all slots are up")
            is_right = users.submit_all(tokens, chosen, each)
        finally:  # also when interrupted
            for name in chosen:
                say(row(engine, name, [one for one in users.graded if one.name == name], each))
            say(f"\n{engine}: {slots} slots; {users}\n")
            for what in users.faults():
                say(f"- {what}")
            if not is_right:
                lines = (folder / "server.log").read_text().splitlines()
                say("\n".join([line for line in lines if '"level": "info"' not in line][-20:]))
        return is_right


HEAD = (
    "| engine | file | verdict | its folder's | GPU | score µs | s to the first verdict | "
    "s to later ones, median |\n|---|---|---|---|---|---|---|---|"
)


def row(engine: str, name: str, found: list[Graded], each: int) -> str:
    """The table row of one file."""
    reports = [one.report for one in found]
    verdicts = sorted({report.verdict or "none" for report in reports})
    scores = [
        report.score_us
        for report in reports
        if report.score_us is not None and report.verdict is Verdict.ACCEPTED
    ]
    first = [one.took_s for one in found if one.first]
    later = [one.took_s for one in found if not one.first]
    cells = [
        engine,
        name,
        ", ".join(verdicts),
        f"{sum(one.is_right for one in found)} of {each}",
        ", ".join(sorted({report.gpu or "–" for report in reports})),
        f"{min(scores):.2f}–{max(scores):.2f}" if scores else "",
        f"{median(first):.1f}" if first else "",
        f"{median(later):.1f}" if later else "",
    ]
    return "| " + " | ".join(cells) + " |"


def busy(found: list[Graded]) -> int:
    """The largest number that ran at the same time."""
    return max(
        (sum(b.began <= a.began < b.ended for b in found) for a in found),
        default=0,
    )


@click.command()
@click.option(
    "--engine", "engines", multiple=True, type=click.Choice(["local", "ray"]), default=["local"]
)
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--each", default=3, show_default=True, help="Submissions of each file.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the output to this file too.")
def main(engines: tuple[str, ...], sandbox: str, each: int, out: Path | None) -> None:
    """Submit files to a hosted board on this machine and compare verdicts with their folders."""

    def say(text: str) -> None:
        print(text, flush=True)
        if out is not None:
            with out.open("a") as file:
                file.write(text + "\n")

    say(HEAD)
    is_right = [run(engine, sandbox, each, say) for engine in engines]
    sys.exit(not all(is_right))


if __name__ == "__main__":
    main()
