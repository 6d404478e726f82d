"""The states of jobs against a small model without a database.

A job of the model is a few plain fields. Its rules are the diagram in `grader.fleet.job`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from grader.fleet import Lease, Ledger, QueueFull, State, TooManyInFlight
from grader.report import Report, Verdict
from tests.db.conftest import engine_in_memory
from tests.fleet.conftest import DIGEST, Clock, a_submission

LEASE_S = 30.0
MAX_IN_FLIGHT, MAX_QUEUE = 3, 5
LONG_AGO = datetime.min.replace(tzinfo=UTC)
IN_HAND = {State.LEASED, State.RUNNING}


def a_report() -> Report:
    return Report(
        problem="softmax",
        problem_digest=DIGEST,
        submission_sha256=a_submission().sha256,
        submission_name="kernel.py",
        language="python",
        verdict=Verdict.WRONG_ANSWER,
        reason="not a softmax",
        device="cpu",
        sandbox="docker",
        seed=7,
    )


@dataclass
class Model:
    user: str
    gpu: str | None
    created_at: datetime
    state: State = State.QUEUED
    token: str | None = None
    until: datetime | None = None
    not_before: datetime | None = None
    failures: int = 0
    deaths: int = 0
    result: int | None = None

    def leave(self, state: State) -> None:
        self.state, self.token, self.until = state, None, None


class Life(RuleBasedStateMachine):
    leases: Bundle[Lease] = Bundle("leases")
    numbers: Bundle[int] = Bundle("numbers")

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.ledger = Ledger(engine_in_memory(), self.clock)
        self.jobs: dict[int, Model] = {}
        self.taken_at: dict[str, datetime] = {}
        self.results = 0

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()

    def mine(self, lease: Lease, *states: State) -> Model | None:
        """The job of a valid lease, if it is in one of these states."""
        job = self.jobs[lease.submission_id]
        return job if job.token == lease.token and job.state in states else None

    def waiting(self, among: Callable[[Model], bool] = lambda job: True) -> list[int]:
        """What waits, in the order of the queue."""
        own: dict[str, list[int]] = {}
        for number, job in self.jobs.items():
            if job.state is State.QUEUED and among(job):
                own.setdefault(job.user, []).append(number)
        places = [
            (turn, max(self.jobs[numbers[0]].created_at, self.taken_at.get(user, LONG_AGO)), number)
            for user, numbers in own.items()
            for turn, number in enumerate(numbers)
        ]
        return [number for *_, number in sorted(places)]

    @rule(
        target=numbers,
        user=st.sampled_from(["ada", "bob"]),
        gpu=st.sampled_from([None, None, "H100"]),
    )
    def submit(self, user: str, gpu: str | None) -> MultipleResults[int] | int:
        flying = [j for j in self.jobs.values() if j.state in {State.QUEUED} | IN_HAND]
        waiting = [j for j in flying if j.state is State.QUEUED]
        expected: type | None = QueueFull if len(waiting) >= MAX_QUEUE else None
        if sum(j.user == user for j in flying) >= MAX_IN_FLIGHT:
            expected = TooManyInFlight
        refused: type | None
        try:
            number = self.ledger.submit(
                user,
                "softmax",
                DIGEST,
                a_submission(),
                gpu,
                max_in_flight=MAX_IN_FLIGHT,
                max_queue=MAX_QUEUE,
            )
        except (QueueFull, TooManyInFlight) as error:
            refused = type(error)
        else:
            refused = None
        assert refused is expected
        if refused:
            return multiple()
        assert number == len(self.jobs) + 1
        self.jobs[number] = Model(user, gpu, self.clock())
        return number

    @rule(target=leases, gpu=st.sampled_from([None, "H100"]))
    def claim(self, gpu: str | None) -> MultipleResults[Lease] | Lease:
        ready = self.waiting(
            lambda job: (
                job.gpu in (None, gpu)
                and (job.not_before is None or job.not_before <= self.clock())
            )
        )
        lease = self.ledger.claim("w", lease_s=LEASE_S, gpu=gpu)
        if lease is None:
            assert ready == []
            return multiple()
        assert lease.submission_id == ready[0]
        job = self.jobs[ready[0]]
        self.taken_at[job.user] = self.clock()
        job.state, job.token, job.until, job.not_before = (
            State.LEASED,
            lease.token,
            lease.until,
            None,
        )
        return lease

    @rule(lease=leases)
    def begin(self, lease: Lease) -> None:
        job = self.mine(lease, State.LEASED)
        assert self.ledger.begin(lease) == (job is not None)
        if job:
            job.state = State.RUNNING

    @rule(lease=leases, lease_s=st.sampled_from([5.0, LEASE_S]))
    def heartbeat(self, lease: Lease, lease_s: float) -> None:
        job = self.mine(lease, *IN_HAND)
        assert self.ledger.heartbeat(lease, lease_s) == (job is not None)
        if job:
            job.until = self.clock() + timedelta(seconds=lease_s)

    @rule(lease=leases)
    def finish(self, lease: Lease) -> None:
        job = self.mine(lease, State.RUNNING)
        number = self.ledger.finish(lease, a_report())
        assert (number is None) == (job is None)
        if job:
            self.results += 1
            assert number == self.results
            job.leave(State.DONE)
            job.result = number

    @rule(lease=leases)
    def fail(self, lease: Lease) -> None:
        job = self.mine(lease, *IN_HAND)
        assert self.ledger.fail(lease, "no GPU") == (job is not None)
        if job:
            job.failures += 1
            pause_s = {1: 10, 2: 60}.get(job.failures)
            job.not_before = self.clock() + timedelta(seconds=pause_s) if pause_s else None
            job.leave(State.QUEUED if pause_s else State.HELD)

    @rule(lease=leases)
    def give_back(self, lease: Lease) -> None:
        job = self.mine(lease, *IN_HAND)
        assert self.ledger.give_back(lease) == (job is not None)
        if job:
            job.leave(State.QUEUED)

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        job = self.jobs[number]
        open_still = job.state not in (State.DONE, State.CANCELLED)
        assert self.ledger.cancel(number, "ada") == open_still
        if open_still:
            job.leave(State.CANCELLED)
            job.not_before = None

    @rule(number=numbers)
    def release(self, number: int) -> None:
        job = self.jobs[number]
        held = job.state is State.HELD
        assert self.ledger.release(number) == held
        if held:
            job.leave(State.QUEUED)
            job.failures = job.deaths = 0

    @rule(seconds=st.sampled_from([1, 10, 31, 60]))
    def wait(self, seconds: float) -> None:
        self.clock.move(seconds)

    @rule()
    def sweep(self) -> None:
        late = [j for j in self.jobs.values() if j.until and j.until < self.clock()]
        assert self.ledger.sweep() == len(late)
        for job in late:
            job.deaths += 1
            job.leave(State.HELD if job.deaths == 3 else State.QUEUED)

    @rule(lease=leases, how=st.sampled_from(["fail", "die"]))
    def doom(self, lease: Lease, how: str) -> None:
        """Fail or expire until the job is held, which single steps seldom reach."""
        number = lease.submission_id
        while self.jobs[number].state in {State.QUEUED} | IN_HAND:
            if self.jobs[number].state is not State.QUEUED:
                token = self.jobs[number].token
                assert token
                now = dataclasses.replace(lease, token=token)
                self.fail(now) if how == "fail" else self.heartbeat(now, 5.0)
            self.clock.move(61)
            self.sweep()
            if self.jobs[number].state is State.QUEUED:
                self.claim("H100")

    @invariant()
    def the_ledger_is_as_the_model(self) -> None:
        assert self.ledger.board.count("softmax") == self.results
        waiting = self.waiting()
        for number, job in self.jobs.items():
            found = self.ledger.job(number)
            assert found
            assert found.state is job.state
            assert (found.failures, found.deaths) == (job.failures, job.deaths)
            assert (found.lease_until, found.not_before) == (job.until, job.not_before)
            assert found.result_id == job.result
            assert (found.held_reason is not None) == (job.state is State.HELD)
            place = waiting.index(number) + 1 if number in waiting else None
            assert found.position == place
        assert [j.submission_id for j in self.ledger.queue() if j.position] == waiting
        held = [n for n, j in self.jobs.items() if j.state is State.HELD]
        assert [j.submission_id for j in self.ledger.held()] == sorted(held)


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLife = Life.TestCase
