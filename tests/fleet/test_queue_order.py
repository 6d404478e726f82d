from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import event

from grader.fleet import BatchItem, Lease, Ledger
from tests.db.conftest import engine_in_memory
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue
from tests.fleet.test_ledger import claim, job

USERS = ("ada", "bob", "cy")


def waiting(ledger: Ledger) -> list[tuple[str, int]]:
    """User and number of what waits, in the displayed order."""
    return [(one.user, one.submission_id) for one in ledger.queue() if one.position is not None]


def take(ledger: Ledger, clock: Clock) -> str:
    """The user of the next submission that a worker takes."""
    clock.move(1)
    return job(ledger, claim(ledger).submission_id).user


def hand_in(ledger: Ledger, clock: Clock, *users: str) -> None:
    for user in users:
        clock.move(1)
        enqueue(ledger, user)


def test_a_users_first_goes_before_another_users_second(ledger: Ledger, clock: Clock) -> None:
    hand_in(ledger, clock, "ada", "ada", "ada", "bob", "cy", "bob")
    shown = [user for user, _ in waiting(ledger)]
    assert shown == ["ada", "bob", "cy", "ada", "bob", "ada"]
    assert [take(ledger, clock) for _ in shown] == shown


def test_a_newcomer_waits_for_one_of_each_user(ledger: Ledger, clock: Clock) -> None:
    hand_in(ledger, clock, *5 * ["ada"], *5 * ["bob"])
    assert [take(ledger, clock) for _ in range(3)] == ["ada", "bob", "ada"]
    hand_in(ledger, clock, "cy")
    assert [take(ledger, clock) for _ in range(5)] == ["bob", "ada", "cy", "bob", "ada"]


def test_who_was_served_earlier_does_not_overtake(ledger: Ledger, clock: Clock) -> None:
    """A turn of long ago gives no right to be before who waits longer."""
    hand_in(ledger, clock, "ada")
    take(ledger, clock)
    hand_in(ledger, clock, "bob", "cy", "ada")
    assert [take(ledger, clock) for _ in USERS] == ["bob", "cy", "ada"]


def test_the_end_of_a_grading_does_not_change_the_order(ledger: Ledger, clock: Clock) -> None:
    hand_in(ledger, clock, "ada", "ada", "ada", "bob", "bob")
    taken = claim(ledger)
    before = waiting(ledger)
    assert [user for user, _ in before] == ["bob", "ada", "bob", "ada"]
    assert ledger.begin(taken)
    assert ledger.cancel(taken.submission_id, "ada")
    assert waiting(ledger) == before


def test_a_worker_takes_the_first_that_it_can_grade(ledger: Ledger, clock: Clock) -> None:
    clock.move(1)
    for user, gpu in (("ada", "H100"), ("ada", None), ("bob", "H100"), ("bob", None)):
        enqueue(ledger, user, gpu=gpu)
    assert [claim(ledger).submission_id for _ in range(2)] == [2, 4]
    leases = [ledger.claim("w", lease_s=60, gpu="NVIDIA H100") for _ in range(2)]
    assert [lease and lease.submission_id for lease in leases] == [1, 3]


def test_what_a_worker_cannot_grade_uses_up_no_turn(ledger: Ledger, clock: Clock) -> None:
    """Else a user whose first submission waits for another GPU would be behind all others."""
    enqueue(ledger, "ada", gpu="A100")
    hand_in(ledger, clock, "ada", "bob", "bob")
    assert [take(ledger, clock) for _ in range(3)] == ["ada", "bob", "bob"]


def test_an_item_of_a_batch_has_no_position_and_no_turn(ledger: Ledger, clock: Clock) -> None:
    item = BatchItem("a", a_submission())
    ledger.submit_batch("ada", "softmax", DIGEST, [item])
    assert job(ledger, 1).position is None
    claim(ledger)
    hand_in(ledger, clock, "ada", "bob")
    assert [user for user, _ in waiting(ledger)] == ["ada", "bob"]


def test_the_number_of_statements_does_not_grow_with_the_queue(
    ledger: Ledger, clock: Clock
) -> None:
    def statements() -> list[int]:
        seen: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            seen.append(statement)

        counts = []
        event.listen(ledger._engine, "before_cursor_execute", note)
        last = ledger.queue()[-1].submission_id
        for call in (ledger.queue, lambda: job(ledger, last), lambda: claim(ledger)):
            seen.clear()
            call()
            counts.append(len(seen))
        event.remove(ledger._engine, "before_cursor_execute", note)
        return counts

    hand_in(ledger, clock, *USERS)
    for _ in USERS:  # a user's first turn is stored by other statements
        take(ledger, clock)
    hand_in(ledger, clock, *USERS)
    short = statements()
    for number in range(40):
        enqueue(ledger, USERS[number % 3], max_in_flight=99)
    assert statements() == short


class Turns(RuleBasedStateMachine):
    """Users hand in and workers take at random moments. What is shown is what happens."""

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.ledger = Ledger(engine_in_memory(), self.clock)
        self.leases: list[Lease] = []
        self.since: dict[str, Counter[str]] = {}
        """User → whose submissions were taken since the user waits for their next."""

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            shown = [number for _, number in waiting(self.ledger)]
            found = [job(self.ledger, number).position for number in shown]
            assert found == list(range(1, len(shown) + 1))
            self.ledger.close()

    @rule(user=st.sampled_from(USERS), count=st.integers(1, 4))
    def hand_in(self, user: str, count: int) -> None:
        for _ in range(count):
            self.clock.move(1)
            enqueue(self.ledger, user, max_in_flight=999)
        self.since.setdefault(user, Counter())

    @precondition(lambda self: self.since)
    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        shown = waiting(self.ledger)
        for user, number in shown[:count]:
            self.clock.move(1)
            lease = claim(self.ledger)
            assert lease.submission_id == number
            self.leases.append(lease)
            for other in self.since.values():
                other[user] += 1
            del self.since[user]
            if user in (one for one, _ in waiting(self.ledger)):
                self.since[user] = Counter()

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0, 99), how=st.sampled_from(["cancel", "give back"]))
    def end(self, at: int, how: str) -> None:
        self.clock.move(1)
        lease = self.leases.pop(at % len(self.leases))
        if how == "cancel":
            assert self.ledger.cancel(lease.submission_id, "ada")
        else:
            user = job(self.ledger, lease.submission_id).user
            assert self.ledger.give_back(lease)
            self.since.setdefault(user, Counter())

    @invariant()
    def nobody_waits_for_two_of_another_user(self) -> None:
        for taken in getattr(self, "since", {}).values():
            assert max(taken.values(), default=0) <= 1

    @invariant()
    def positions_agree(self) -> None:
        if not hasattr(self, "ledger"):
            return
        shown = [number for _, number in waiting(self.ledger)]
        places = self.ledger.queue_head(["softmax"], 3)
        of_head = [one.submission_id for one in places.places if one.position is not None]
        assert of_head == shown
        # To look up each takes half of the test's time, and `teardown` does it.
        ends = {1: shown[0], len(shown): shown[-1]} if shown else {}
        assert {job(self.ledger, number).position for number in ends.values()} == ends.keys()


Turns.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestTurns = Turns.TestCase
