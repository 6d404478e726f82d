"""Concurrent use of the ledger, and processes killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import pytest
from sqlalchemy import select

from grader.board.store import insert_result
from grader.db.engine import open_engine, transaction
from grader.db.tables import jobs
from grader.fleet import Ledger, State, TooManyInFlight, Worker
from grader.report import Report
from grader.server.services.submission_queries import SubmissionQueries
from tests.fleet.conftest import Clock, enqueue
from tests.waiting import PATIENCE_S

MakeReport = Callable[..., Report]
JOBS = 300


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    return json.loads(out)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that are all started at the same moment."""
    barrier = threading.Barrier(len(calls))

    def go(call: Callable[[], Any]) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(go, call) for call in calls]]


CLAIMER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from grader.fleet import Ledger
ledger = Ledger.open(sys.argv[1])

def take(worker):
    taken = []
    while (lease := ledger.claim(worker, lease_s=60)) is not None:
        assert ledger.begin(lease)
        taken.append(lease.submission_id)
    return taken

with ThreadPoolExecutor(2) as pool:
    print(json.dumps(list(pool.map(take, [sys.argv[2] + "a", sys.argv[2] + "b"]))))
ledger.close()
"""


def test_each_job_is_claimed_once_by_eight_threads(ledger: Ledger) -> None:
    for i in range(JOBS):
        enqueue(ledger, source=f"x = {i % 7}", max_in_flight=JOBS)

    def take(worker: str) -> list[int]:
        taken = []
        while (lease := ledger.claim(worker, lease_s=60)) is not None:
            assert ledger.begin(lease)
            taken.append(lease.submission_id)
        return taken

    taken = at_once(*(partial(take, f"w{i}") for i in range(8)))
    assert all(lot == sorted(lot) for lot in taken), "each worker claims in the order of the queue"
    assert sorted(chain(*taken)) == list(range(1, JOBS + 1))
    owners = Counter(job.leased_by for job in ledger.queue())
    assert owners == {f"w{i}": len(lot) for i, lot in enumerate(taken) if lot}


def test_each_job_is_claimed_once_by_processes(ledger: Ledger, url: str) -> None:
    for _ in range(JOBS):
        enqueue(ledger, max_in_flight=JOBS)
    claimers = [start(CLAIMER, url, f"w{i}") for i in range(4)]
    taken = [lot for claimer in claimers for lot in output(claimer)]
    assert sorted(chain(*taken)) == list(range(1, JOBS + 1))


def test_the_limits_hold_for_concurrent_submits(ledger: Ledger) -> None:
    def try_it() -> int:
        try:
            enqueue(ledger, max_in_flight=5)
        except TooManyInFlight:
            return 0
        return 1

    assert sum(at_once(*[try_it] * 12)) == 5
    assert len(ledger.queue()) == 5


@pytest.mark.parametrize("repeat", range(5))
def test_of_concurrent_finishes_one_wins(
    ledger: Ledger, report_of: MakeReport, repeat: int
) -> None:
    enqueue(ledger)
    lease = ledger.claim("w", lease_s=60)
    assert lease
    assert ledger.begin(lease)
    report = report_of()
    answers = at_once(*[lambda: ledger.finish(lease, report)] * 4)
    (number,) = [answer for answer in answers if answer is not None]
    assert ledger.board.count("softmax") == 1
    done = ledger.job(1)
    assert done
    assert (done.state, done.result_id) == (State.DONE, number)


def test_a_late_commit_changes_the_version(url: str, make_report: MakeReport) -> None:
    """Another process may commit after us, though its transaction began before."""
    ledger = Ledger.open(url)
    engine = open_engine(url, create=False)
    queries = SubmissionQueries(engine)
    with ThreadPoolExecutor(1) as pool:
        with transaction(engine) as connection:
            insert_result(connection, make_report(), "ada", b"")
            other = pool.submit(ledger.board.record, make_report(), "bob", b"")
            time.sleep(0.5)
            before = queries.version()
        after = queries.version()
        other.result()
    assert before != after
    assert ledger.board.count("softmax") == 2
    ledger.close()
    engine.dispose()


@pytest.mark.parametrize("other", ["sweep", "cancel", "fail", "give_back"])
def test_finish_races_with_another_change(
    ledger: Ledger, clock: Clock, report_of: MakeReport, other: str
) -> None:
    changes: dict[str, Callable[[Any], object]] = {
        "sweep": lambda lease: ledger.sweep(),
        "cancel": lambda lease: ledger.cancel(lease.submission_id, "ada"),
        "fail": lambda lease: ledger.fail(lease, "no GPU"),
        "give_back": ledger.give_back,
    }
    for recorded in range(8):
        number = enqueue(ledger, user=f"u{recorded}")
        lease = ledger.claim("w", lease_s=60, problems=["softmax"])
        while lease is not None and lease.submission_id != number:
            assert ledger.cancel(lease.submission_id, "tidy")
            lease = ledger.claim("w", lease_s=60)
        assert lease
        assert ledger.begin(lease)
        clock.move(61)
        before, report = ledger.board.count("softmax"), report_of()
        finished, changed = at_once(
            partial(ledger.finish, lease, report), partial(changes[other], lease)
        )
        assert (finished is not None) != bool(changed), "exactly one happens"
        assert ledger.board.count("softmax") == before + (finished is not None)
        job = ledger.job(number)
        assert job
        assert (job.state is State.DONE) == (finished is not None)
        assert job.result_id == finished


def test_concurrent_sweeps_count_a_death_once(ledger: Ledger, clock: Clock) -> None:
    for _ in range(40):
        enqueue(ledger, max_in_flight=40)
        assert ledger.claim("w", lease_s=60)
    clock.move(61)
    assert sum(at_once(*[ledger.sweep] * 6)) == 40
    assert [job.deaths for job in ledger.queue()] == [1] * 40


@pytest.mark.parametrize(
    "url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_locked_rows_are_skipped(ledger: Ledger, clock: Clock, url: str) -> None:
    """SQLite has one writer at a time; on PostgreSQL no call waits for a locked job."""
    for _ in range(4):
        enqueue(ledger)
    assert ledger.claim("w", lease_s=60)
    assert ledger.claim("w", lease_s=60)
    clock.move(61)
    hasty = Ledger.open(f"{url}%20-clock_timeout%3D2000", clock)
    with ledger._engine.begin() as another:
        another.execute(select(jobs).where(jobs.c.submission_id.in_([1, 3])).with_for_update())
        assert hasty.sweep() == 1
        for number in (2, 4):
            lease = hasty.claim("w2", lease_s=60)
            assert lease
            assert lease.submission_id == number
    assert hasty.sweep() == 1
    hasty.close()


# Forks children that submit. The nth child kills itself before the nth database step.
DYING = """
import json, os, signal, sys
from sqlalchemy import event, func, select
from grader.fleet import Ledger
from grader.db.tables import blobs, jobs, submissions
from grader.submission import Submission

def submit(source, steps):
    ledger = Ledger.open(sys.argv[1])
    left = [steps]
    def step(*_, **__):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    event.listen(ledger._engine, "before_cursor_execute", step)
    event.listen(ledger._engine, "commit", step)
    event.listen(ledger._engine, "checkin", step)
    submission = Submission("k.py", "python", source)
    ledger.submit("ada", "softmax", "d" * 64, submission, max_in_flight=99)

def counts():
    ledger = Ledger.open(sys.argv[1])
    with ledger._engine.connect() as c:
        found = [c.scalar(select(func.count()).select_from(t)) for t in (blobs, submissions, jobs)]
    ledger.close()
    return found

rows, steps, status = [], 0, None
while status != 0:
    child = os.fork()
    if child == 0:
        submit(str(steps).encode(), steps)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    rows.append([status, *counts()])
    steps += 1
print(json.dumps(rows))
"""


def test_a_process_killed_in_submit_leaves_all_or_nothing(url: str) -> None:
    Ledger.open(url).close()
    rows = output(start(DYING, url))
    *died, survived = rows
    assert {status for status, *_ in died} == {-signal.SIGKILL}
    assert len(died) >= 8, (
        "two counts, a select of the blob, three inserts, the commit, and after it"
    )
    # Those killed up to the commit leave nothing; the one killed after it leaves everything.
    assert [counts for _, *counts in died] == [[0, 0, 0]] * (len(died) - 1) + [[1, 1, 1]]
    assert survived == [0, 2, 2, 2]


def test_claims_at_once_do_not_exceed_a_workers_slots(ledger: Ledger) -> None:
    for _ in range(8):
        enqueue(ledger)
    ledger.announce(Worker("farm/host", "http", "cpu", None, 2))
    leases = at_once(
        *[partial(ledger.claim, "farm/host", lease_s=60, within_slots=True) for _ in range(8)]
    )
    assert sum(lease is not None for lease in leases) == 2
