"""The dispatcher between a real ledger, on both databases, and a fake engine."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from grader.fleet import Job, Ledger, State
from grader.fleet.dispatch import NOT_RANKED, Dispatcher, JobSource
from grader.fleet.ledger import RETRY_DELAYS_S
from grader.fleet.local_engine import LocalEngine
from grader.judge import Progress
from grader.problem import Problem
from grader.report import Report, Verdict
from tests.fleet.conftest import Clock, a_submission
from tests.fleet.fake import PROBLEM, ROOT, FakeEngine, UnreachableSource
from tests.waiting import until

MakeReport = Callable[..., Report]
LEASE_S = 1800.0
"""Longer than any test, so that no lease expires by itself."""
GPU = "NVIDIA H100 80GB HBM3"


@contextmanager
def dispatching(source: Any, engine: Any, lease_s: float = LEASE_S) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(
        cast(JobSource, source),
        engine,
        {"softmax": PROBLEM.folder},
        "dispatcher",
        lease_s=lease_s,
        tick_s=0.01,
    )
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.drain(0)


def enqueue(
    ledger: Ledger, source: str = "x = 1", digest: str = PROBLEM.digest, **more: Any
) -> int:
    return ledger.submit("ada", "softmax", digest, a_submission(source), **more)


def job(ledger: Ledger, number: int = 1) -> Job:
    found = ledger.job(number)
    assert found is not None
    return found


def state(ledger: Ledger, number: int = 1) -> State:
    return job(ledger, number).state


@pytest.fixture
def graded(report_of: MakeReport) -> MakeReport:
    """A factory of reports for `enqueue(ledger, source)`."""

    def make(source: str = "x = 1", **changes: Any) -> Report:
        return report_of(source, **({"problem_digest": PROBLEM.digest} | changes))

    return make


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_from_the_queue_to_the_board(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport
) -> None:
    enqueue(ledger)
    enqueue(ledger, "x = 2")
    with dispatching(ledger, engine):
        task = engine.task()
        assert (task.folder.name, task.digest) == ("softmax", PROBLEM.digest)
        assert Problem.load(task.folder).files == PROBLEM.files
        assert (task.name, task.language, task.source) == ("kernel.py", "python", b"x = 1")
        until(lambda: state(ledger) is State.RUNNING)
        assert state(ledger, 2) is State.QUEUED, "there is one slot"
        engine.end(graded())
        until(lambda: state(ledger) is State.DONE)
        assert engine.task().source == b"x = 2"
        engine.end(graded("x = 2", verdict="wrong_answer", ranked=False))
        until(lambda: state(ledger, 2) is State.DONE)
    board = ledger.board
    assert [board.result(job(ledger, i).result_id or 0).source for i in (1, 2)] == [
        b"x = 1",
        b"x = 2",
    ]
    assert job(ledger).leased_by == "dispatcher"


def test_a_result_of_the_process_sandbox_is_not_ranked(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport
) -> None:
    enqueue(ledger)
    with dispatching(ledger, engine):
        engine.end(graded(sandbox="process (namespaces)"))
        until(lambda: state(ledger) is State.DONE)
    report = ledger.board.result(1).report
    assert (report.verdict, report.ranked, report.notes) == (Verdict.ACCEPTED, False, [NOT_RANKED])
    assert ledger.board.leaderboard(PROBLEM.digest, str(report.gpu)) == []


def test_progress_reaches_the_ledger_at_a_bounded_rate(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport
) -> None:
    enqueue(ledger)
    source = CountingSource(ledger)
    with dispatching(source, engine):
        engine.report_progress("load")
        until(lambda: job(ledger).progress == Progress("load"))
        before = source.heartbeats
        start = time.monotonic()
        for _ in range(500):
            engine.report_progress("test")
        engine.report_progress("benchmark")
        until(lambda: job(ledger).progress == Progress("benchmark"))
        assert source.heartbeats - before <= (time.monotonic() - start) / 0.01 + 1
        engine.end(graded())
        until(lambda: state(ledger) is State.DONE)
        assert job(ledger).progress is None


class CountingSource(UnreachableSource):
    """A source that counts heartbeats."""

    heartbeats = 0

    def heartbeat(self, *args: Any) -> bool:
        found = bool(self._source.heartbeat(*args))
        self.heartbeats += 1
        return found


def test_heartbeats_without_progress_keep_the_lease(
    ledger: Ledger, clock: Clock, engine: FakeEngine
) -> None:
    enqueue(ledger)
    with dispatching(ledger, engine, lease_s=0.3):
        engine.task()
        for _ in range(3):
            clock.move(0.25)
            until(lambda: (job(ledger).lease_until or clock()) > clock())
        assert state(ledger) is State.RUNNING


@pytest.mark.parametrize("how", ["cancelled", "swept and given to another"])
def test_a_lost_lease_ends_the_task(
    ledger: Ledger, clock: Clock, engine: FakeEngine, how: str
) -> None:
    enqueue(ledger)
    source = UnreachableSource(ledger)
    with dispatching(source, engine, lease_s=0.3):
        task = engine.task()
        until(lambda: state(ledger) is State.RUNNING)
        if how == "cancelled":
            assert ledger.cancel(1, "ada")
        else:
            source.away.set()
            until(lambda: source.failed)  # so no running heartbeat keeps the lease
            clock.move(10)
            assert ledger.sweep() == 1
            assert ledger.claim("other", lease_s=1000) is not None
            source.away.clear()
        until(lambda: engine.cancelled == [task])
        assert engine.tasks == {}
    assert job(ledger).leased_by == ("dispatcher" if how == "cancelled" else "other")


def test_a_late_result_is_dropped(
    ledger: Ledger, clock: Clock, engine: FakeEngine, graded: MakeReport
) -> None:
    enqueue(ledger)
    source = CountingSource(ledger)
    with dispatching(source, engine):
        # After the first heartbeat, right after the job's begin, the dispatcher sends no other for
        # long, and does not learn that its lease is lost.
        until(lambda: source.heartbeats == 1)
        assert state(ledger) is State.RUNNING
        clock.move(2 * LEASE_S)
        assert ledger.sweep() == 1
        other = ledger.claim("other", lease_s=1000)
        assert other
        assert ledger.begin(other)
        engine.end(graded())
        time.sleep(0.1)
        assert ledger.board.count("softmax") == 0
        assert job(ledger).leased_by == "other"
    assert ledger.finish(other, graded()) == 1


@pytest.mark.parametrize("how", ["judge error", "failure", "no verdict", "another submission's"])
def test_a_system_failure_is_retried_then_held(
    ledger: Ledger, clock: Clock, engine: FakeEngine, graded: MakeReport, how: str
) -> None:
    endings: dict[str, dict[str, Any]] = {
        "judge error": {"report": graded(verdict="judge_error", reason="no GPU", ranked=False)},
        "failure": {"failure": "the slot died"},
        "no verdict": {"report": graded(verdict=None, reason="compiled, not run", ranked=False)},
        "another submission's": {"report": graded("x = 7")},
    }
    enqueue(ledger)
    with dispatching(ledger, engine):
        for failures, pause_s in enumerate([*RETRY_DELAYS_S, 0], start=1):
            engine.end(**endings[how])
            until(lambda failures=failures: job(ledger).failures == failures)  # type: ignore[misc]
            clock.move(pause_s)
        until(lambda: state(ledger) is State.HELD)
    assert job(ledger).held_reason
    assert ledger.board.count("softmax") == 0


def test_drain_waits_and_claims_no_more(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport
) -> None:
    engine.count = 2
    for i in range(3):
        enqueue(ledger, f"x = {i}")
    with dispatching(ledger, engine) as dispatcher:
        until(lambda: len(engine.tasks) == 2)

        def end() -> None:
            until(lambda: dispatcher._drain_until)
            time.sleep(0.2)  # long enough for a dispatcher that does not wait to give it back
            engine.end(graded("x = 0"), None, b"x = 0")

        ender = threading.Thread(target=end)
        ender.start()
        dispatcher.drain(5)
        ender.join()
    assert [state(ledger, i) for i in (1, 2, 3)] == [State.DONE, State.QUEUED, State.QUEUED]
    assert [task.source for task in engine.cancelled] == [b"x = 1"]


def test_drain_ends_early_and_gives_back_the_rest(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport
) -> None:
    enqueue(ledger)
    with dispatching(ledger, engine) as dispatcher:
        engine.task()
        engine.end(graded())
        start = time.monotonic()
        dispatcher.drain(30)
        assert time.monotonic() - start < 25
    assert state(ledger) is State.DONE
    enqueue(ledger, "x = 2")
    with dispatching(ledger, engine) as dispatcher:
        task = engine.task()
        dispatcher.drain(0.1)
        assert engine.cancelled == [task]
    after = job(ledger, 2)
    assert (after.state, after.failures, after.deaths) == (State.QUEUED, 0, 0)
    assert after.leased_by is None


def test_a_result_during_the_final_give_back_is_kept(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport
) -> None:
    class Racing(FakeEngine):
        def cancel(self, task_id: int) -> bool:
            self.end(graded())
            return False

    racing = Racing()
    enqueue(ledger)
    with dispatching(ledger, racing) as dispatcher:
        racing.task()
        dispatcher.drain(0)
    assert state(ledger) is State.DONE


def test_a_job_without_a_free_slot_is_given_back(ledger: Ledger, engine: FakeEngine) -> None:
    engine.refuses = True
    enqueue(ledger)
    with dispatching(ledger, engine):
        time.sleep(0.1)
        engine.refuses = False
        engine.task()
    assert job(ledger).failures == job(ledger).deaths == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_lost_while_the_database_is_unreachable(
    ledger: Ledger,
    engine: FakeEngine,
    graded: MakeReport,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    source = UnreachableSource(ledger, when)
    with dispatching(source, engine):
        source.away.set()
        enqueue(ledger)
        if when == "before":
            until(lambda: "claim" in source.failed)
            assert state(ledger) is State.QUEUED
            source.away.clear()
        engine.task()
        until(lambda: state(ledger) is State.RUNNING)
        source.away.clear()
        engine.report_progress("load")
        until(lambda: job(ledger).progress == Progress("load"))
        source.away.set()
        engine.report_progress("test")
        until(lambda: "heartbeat" in source.failed)
        engine.end(graded())
        until(lambda: "finish" in source.failed)
        source.away.clear()
        until(lambda: state(ledger) is State.DONE)
        enqueue(ledger, "x = 2")
        engine.task()
        until(lambda: state(ledger, 2) is State.RUNNING)
        source.away.set()
        engine.end(failure="the slot died")
        until(lambda: "fail" in source.failed)
        source.away.clear()
        until(lambda: job(ledger, 2).failures == 1)
    assert job(ledger).deaths == job(ledger).failures == 0
    assert ledger.board.count("softmax") == 1
    assert not [r for r in caplog.records if r.exc_info], (
        "an unreachable source is not logged as a bug"
    )
    assert "could not" in caplog.text


def test_a_bug_costs_one_round(
    ledger: Ledger, engine: FakeEngine, graded: MakeReport, caplog: pytest.LogCaptureFixture
) -> None:
    class Buggy(FakeEngine):
        bugs = 1

        def poll(self, timeout_s: float) -> Any:
            if self.bugs:
                self.bugs = 0
                raise RuntimeError("a bug")
            return super().poll(timeout_s)

    buggy = Buggy()
    enqueue(ledger)
    with caplog.at_level(logging.ERROR), dispatching(ledger, buggy):
        buggy.end(graded())
        until(lambda: state(ledger) is State.DONE)
    assert "a bug" in caplog.text


def test_expired_leases_are_swept_without_slots(ledger: Ledger, clock: Clock) -> None:
    enqueue(ledger)
    assert ledger.claim("dead", lease_s=1)
    clock.move(2)
    with dispatching(ledger, FakeEngine(0)) as dispatcher:
        until(lambda: dispatcher.swept == 1)
    assert (state(ledger), job(ledger).deaths) == (State.QUEUED, 1)


def test_a_submission_to_another_version_is_held(ledger: Ledger, engine: FakeEngine) -> None:
    enqueue(ledger, digest="0" * 64)
    with dispatching(ledger, engine):
        until(lambda: state(ledger) is State.HELD)
        assert engine.tasks == {}
    assert job(ledger).held_reason == "the problem has changed since this was submitted"


def test_dispatchers_claim_jobs_that_their_slots_serve(ledger: Ledger, graded: MakeReport) -> None:
    cuda = dataclasses.replace(a_submission("x = 1"), language="cuda", name="kernel.cu")
    ledger.submit("ada", "softmax", PROBLEM.digest, cuda)
    enqueue(ledger, "x = 2", gpu="H200")
    enqueue(ledger, "x = 3", gpu="h100 80gb")
    cpu, gpu = FakeEngine(3), FakeEngine(3, "cuda", GPU)
    with dispatching(ledger, cpu):
        until(lambda: [w.name for w in ledger.workers(60)] == ["dispatcher"])
        time.sleep(0.1)
        assert cpu.tasks == {}
    with dispatching(ledger, gpu):
        until(lambda: len(gpu.tasks) == 2)
        assert {task.source for task in gpu.tasks.values()} == {b"x = 1", b"x = 3"}
        assert {task.device for task in gpu.tasks.values()} == {"cuda"}
        until(lambda: ledger.workers(60)[0].gpu == GPU)
        time.sleep(0.05)
    assert state(ledger, 2) is State.QUEUED


def test_workers_are_announced(ledger: Ledger, clock: Clock) -> None:
    with dispatching(ledger, FakeEngine(2, "cuda", GPU)):
        until(lambda: ledger.workers(60))
    (worker,) = ledger.workers(60)
    assert (worker.name, worker.via, worker.device) == ("dispatcher", "local", "cuda")
    assert (worker.gpu, worker.slots, worker.last_seen) == (GPU, 2, clock())
    clock.move(61)
    assert ledger.workers(60) == []
    starting = FakeEngine(2, "cuda", None)
    with dispatching(ledger, starting):
        until(lambda: starting.polls >= 2)
    assert ledger.workers(60) == [], "its GPU slots are still starting"


KILLED = """
import sys, time
from pathlib import Path
from grader.fleet import Ledger
from grader.fleet.dispatch import Dispatcher
from tests.fleet.fake import FakeEngine, PROBLEM

engine = FakeEngine()
Dispatcher(Ledger.open(sys.argv[1]), engine, {"softmax": PROBLEM.folder}, "killed",
           lease_s=1.0, tick_s=0.01).start()
engine.task()
print("has it", flush=True)
time.sleep(1000)
"""


def test_another_dispatcher_takes_over_from_a_killed_one(url: str, graded: MakeReport) -> None:
    ledger = Ledger.open(url)
    enqueue(ledger)
    killed = subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, cwd=ROOT)
    assert killed.stdout
    assert killed.stdout.readline() == b"has it\n"
    until(lambda: state(ledger) is State.RUNNING)
    killed.kill()
    killed.communicate()
    engine = FakeEngine()
    with dispatching(ledger, engine) as dispatcher:
        engine.end(graded())
        until(lambda: state(ledger) is State.DONE)
        assert dispatcher.swept == 1
    after = job(ledger)
    assert (after.deaths, after.leased_by) == (1, "dispatcher")
    ledger.close()


def test_a_real_grading(url: str) -> None:
    ledger = Ledger.open(url)
    source = (ROOT / "submissions/softmax/accepted/torch_softmax.py").read_text()
    enqueue(ledger, source)
    stages = set()
    with LocalEngine(1, "cpu", "process") as engine, dispatching(ledger, engine):

        def done() -> bool:
            now = job(ledger)
            stages.add(now.progress and now.progress.stage)
            return now.state is State.DONE

        until(done, 120)
    report = ledger.board.result(1).report
    assert (report.verdict, report.ranked) == (Verdict.ACCEPTED, False)
    assert stages - {None}, "its progress was stored"
    ledger.close()
