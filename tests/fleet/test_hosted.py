"""The ledger features of a hosted board: progress, rejudges, workers, versions, GPU types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import insert, update

from grader.db.engine import transaction
from grader.db.tables import rejudges, submissions
from grader.fleet import Ledger, QueueFull, State, TooManyInFlight, Worker, WorkerStatus
from grader.fleet.job import gpu_matches, unschedulable_reason
from grader.judge import Progress
from grader.report import Report
from grader.server.services.admin_service import AdminService
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue
from tests.fleet.test_ledger import begun, claim, job
from tests.fleet.test_races import at_once

MakeReport = Callable[..., Report]
HERE = Worker("host", "local", "cuda", "NVIDIA H100 80GB HBM3", 8)


def rejudged(ledger: Ledger, number: int) -> None:
    """Turn a submission into a copy of a rejudge."""
    with transaction(ledger._engine) as connection:
        connection.execute(
            insert(rejudges).values(
                problem="softmax", created_at=ledger._now(), by="root", reason="", state="preview"
            )
        )
        connection.execute(
            update(submissions).where(submissions.c.id == number).values(rejudge_id=1)
        )


def test_progress_belongs_to_a_lease(ledger: Ledger, clock: Clock, report_of: MakeReport) -> None:
    enqueue(ledger)

    def after_expiry(ledger: Ledger) -> Ledger:
        clock.move(100)
        return ledger

    step = Progress("test", "tiny \0", 3, 17, "passed")
    endings: list[Callable[..., object]] = [
        ledger.give_back,
        partial(ledger.fail, reason="no GPU"),
        lambda _: after_expiry(ledger).sweep(),
        lambda lease: ledger.finish(lease, report_of()),
    ]
    for end in endings:
        clock.move(10)
        lease = begun(ledger)
        assert ledger.heartbeat(lease, 60, step)
        assert job(ledger, 1).progress == step
        clock.move(1)
        assert ledger.heartbeat(lease, 60), "without progress"
        assert (job(ledger, 1).progress, job(ledger, 1).updated_at) == (step, clock())
        assert not ledger.heartbeat(dataclasses.replace(lease, token="0" * 32), 60, Progress("x"))
        assert job(ledger, 1).progress == step
        assert end(lease)
        assert job(ledger, 1).progress is None
    assert job(ledger, 1).state is State.DONE


def test_users_submissions_go_before_rejudges(ledger: Ledger) -> None:
    for user in ("ada", "bob", "cy", "dan"):
        enqueue(ledger, user)
    rejudged(ledger, 1)
    rejudged(ledger, 3)
    order = [2, 4, 1, 3]
    assert [one.submission_id for one in ledger.queue()] == order
    assert [job(ledger, number).position for number in order] == [1, 2, 3, 4]
    assert [one.position for one in ledger.queue()] == [1, 2, 3, 4]
    assert [claim(ledger).submission_id for _ in order] == order
    assert job(ledger, 1).position is None


def test_rejudges_do_not_count_toward_limits(ledger: Ledger) -> None:
    enqueue(ledger)
    rejudged(ledger, 1)
    assert enqueue(ledger, max_in_flight=1, max_queue=1) == 2
    with pytest.raises(TooManyInFlight):
        enqueue(ledger, max_in_flight=1)
    with pytest.raises(QueueFull):
        enqueue(ledger, max_queue=1)


def test_a_rejudges_result_does_not_count_yet(ledger: Ledger, report_of: MakeReport) -> None:
    enqueue(ledger)
    rejudged(ledger, 1)
    report = report_of()
    assert ledger.finish(begun(ledger), report) == 1
    assert job(ledger, 1).rejudge_id == 1
    assert ledger.board.leaderboard(DIGEST, str(report.gpu)) == []
    enqueue(ledger, "bob")
    ledger.finish(begun(ledger), report)
    assert [entry.user for entry in ledger.board.leaderboard(DIGEST, str(report.gpu))] == ["bob"]


def test_announcements_replace_the_worker_of_a_name(ledger: Ledger, clock: Clock) -> None:
    ledger.announce(HERE)
    clock.move(5)
    ledger.announce(Worker("other", "ray", "cpu", None, 1))
    ledger.announce(dataclasses.replace(HERE, slots=4))
    assert ledger.workers(60) == [
        WorkerStatus("host", "local", "cuda", "NVIDIA H100 80GB HBM3", 4, clock()),
        WorkerStatus("other", "ray", "cpu", None, 1, clock()),
    ]
    clock.move(60)
    ledger.announce(HERE)
    assert [worker.name for worker in ledger.workers(30)] == ["host"]


def test_concurrent_announcements_of_a_worker(ledger: Ledger) -> None:
    at_once(*[lambda: ledger.announce(HERE)] * 8)
    assert len(ledger.workers(60)) == 1


def drain(ledger: Ledger, name: str, *, undrain: bool = False) -> None:
    admin = AdminService(ledger._engine, ledger._now)
    (admin.undrain_worker if undrain else admin.drain_worker)(name, "root")


def test_a_drained_worker_gets_no_job(ledger: Ledger, clock: Clock, report_of: MakeReport) -> None:
    for user in ("ada", "bob", "cy"):
        enqueue(ledger, user)
    ledger.announce(HERE)
    lease = ledger.claim("host", lease_s=60, gpu=HERE.gpu)
    assert lease is not None
    drain(ledger, "host")
    for within_slots in (False, True):
        assert not ledger.claim("host", lease_s=60, gpu=HERE.gpu, within_slots=within_slots)
    assert ledger.claim("other", lease_s=60) is not None
    assert ledger.begin(lease), "it finishes what it has"
    assert ledger.heartbeat(lease, 60)
    assert ledger.finish(lease, report_of()) is not None
    clock.move(10 * 24 * 3600)
    ledger.announce(Worker("new", "http", "cpu", None, 1))  # which removes old workers
    assert not ledger.claim("host", lease_s=60, gpu=HERE.gpu), "it stays drained while it is gone"
    assert [one.name for one in ledger.workers(60, or_drained=True)] == ["host", "new"]
    ledger.announce(HERE)
    assert not ledger.claim("host", lease_s=60, gpu=HERE.gpu), "and when it is back"
    (waiting,) = (one for one in ledger.queue() if one.state is State.QUEUED)
    alive = ledger.workers(60)
    assert [one.is_drained for one in alive] == [True, False]
    assert unschedulable_reason(waiting, alive[:1]) == "every connected worker is drained"
    assert unschedulable_reason(waiting, alive) is None
    drain(ledger, "host", undrain=True)
    assert ledger.claim("host", lease_s=60, gpu=HERE.gpu) is not None


def test_one_kind_of_slots_is_drained(ledger: Ledger) -> None:
    gpu = str(HERE.gpu)
    for user in ("ada", "bob"):
        enqueue(ledger, user)
    ledger.announce(dataclasses.replace(HERE, name=f"host {gpu}"))
    ledger.announce(Worker("host cpu", "local", "cpu", None, 1))
    drain(ledger, f"host {gpu}")
    assert ledger.claim("host", lease_s=60, gpu=gpu) is None
    assert ledger.claim("host", lease_s=60, gpu=None) is not None
    (job,) = (one for one in ledger.queue() if one.state is State.QUEUED)
    needs_gpu = dataclasses.replace(job, gpu="H100")
    reason = "no worker has a GPU of the type H100"
    assert unschedulable_reason(needs_gpu, ledger.workers(60)) == reason
    assert ledger.leases() == {"host": 1}


def test_a_claim_by_version(ledger: Ledger) -> None:
    enqueue(ledger)
    versions: list[dict[str, str]] = [{}, {"softmax": "0" * 64}, {"int4_matmul": DIGEST}]
    for problems in versions:
        assert ledger.claim("w", lease_s=60, problems=problems) is None
    problems = {"softmax": DIGEST, "int4_matmul": "0" * 64}
    assert ledger.claim("w", lease_s=60, problems=problems) is not None


def test_a_claim_by_language(ledger: Ledger) -> None:
    cuda = dataclasses.replace(a_submission(), language="cuda", name="kernel.cu")
    ledger.submit("ada", "softmax", DIGEST, cuda)
    assert ledger.claim("w", lease_s=60, languages=["python"]) is None
    enqueue(ledger)
    python = ledger.claim("w", lease_s=60, languages=("python",))
    assert python
    assert python.language == "python"
    assert claim(ledger).language == "cuda"


@pytest.mark.parametrize(
    ("gpu", "wanted", "fits"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA H100 80GB HBM3", "H100 80GB", True),
        ("NVIDIA H100 80GB HBM3", "H200", False),
        ("NVIDIA L40S", "L4", False),
        (None, "H100", False),
        # Ray names its GPUs by one word.
        ("H100", "H100", True),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("H100", "H100 80GB", False),
        ("L4", "NVIDIA L40S", False),
        ("GPU", "NVIDIA H100 80GB HBM3", False),
        ("-", "H100", False),
        ("", "H100", False),
    ],
)
def test_a_claim_by_type_of_gpu(ledger: Ledger, gpu: str | None, wanted: str, fits: bool) -> None:
    ledger.submit("ada", "softmax", DIGEST, a_submission(), wanted)
    assert gpu_matches(gpu, wanted) is fits
    assert (ledger.claim("w", lease_s=60, gpu=gpu) is not None) is fits


def test_a_job_for_another_version_is_held(ledger: Ledger, clock: Clock) -> None:
    enqueue(ledger)
    ledger.submit("ada", "softmax", "0" * 64, a_submission())
    ledger.submit("ada", "unknown", "0" * 64, a_submission())
    begun(ledger)
    assert ledger.hold_outdated({}) == 0
    assert ledger.hold_outdated({"softmax": "1" * 64, "int4_matmul": DIGEST}) == 1
    (held,) = ledger.held()
    assert (held.submission_id, held.updated_at) == (2, clock())
    assert [job(ledger, number).state for number in (1, 3)] == [State.RUNNING, State.QUEUED]
    assert ledger.release(2)
    assert ledger.hold_outdated({"softmax": "0" * 64}) == 0


def test_every_change_sets_updated_at(ledger: Ledger, clock: Clock) -> None:
    enqueue(ledger)
    lease = claim(ledger)
    for change in (
        partial(ledger.begin, lease),
        partial(ledger.heartbeat, lease, 60),
        partial(ledger.give_back, lease),
        partial(ledger.claim, "w", lease_s=60),
        partial(ledger.cancel, 1, "ada"),
    ):
        clock.move(1)
        assert change()
        assert job(ledger, 1).updated_at == clock()
