"""Rounds of proof: when they come, and what they have told.

Nobody can tell them from others, and their times do not count. So they may have what would disturb
a clock: inputs of other kinds, which a call may take longer for, and inputs that come late
(`grader.judge.late`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

ONE_IN = 4
"""Of the rounds after the least, one in so many has one of proof before it, by lot: whoever is slow
to settle shall not know that he is no longer watched."""
MOST = 6
"""So many come before the least rounds are over at most: more, if those planned told too little."""
LEAST_IN_TIME = 1 / 16
"""Of the inputs that came late, this share must have been in time, and one at least. Of honest
files it is a quarter to nine tenths."""
MOST_HELD_UP = 1 / 3
"""If writes take long more often than this, somebody keeps the copy engine busy."""


@dataclass
class Tally:
    """What came of inputs that came late, in sets."""

    late: int = 0
    unwatched: int = 0
    """Whose calls came after the last look, in rounds too long to be watched whole; no others are
    counted in what follows, nor in `late`."""
    in_time: int = 0
    """Before their call may have begun."""
    held_up: int = 0
    """Whose write took long."""
    unsure: int = 0
    """Not known to be in time, and wrong: that tells nothing."""

    @property
    def tells(self) -> bool:
        """Whether enough came in time, and as a rule without delay; or no call was short enough."""
        if self.late == 0 and self.unwatched:
            return True
        is_enough = self.in_time >= max(1, LEAST_IN_TIME * self.late)
        return is_enough and self.held_up <= MOST_HELD_UP * self.late


class Proofs:
    """The rounds of proof of one case: so many before the least rounds are over, by lot, and never
    before the first, which tells how long a call takes; then now and then."""

    def __init__(self, planned: int, least_rounds: int, has_late: bool) -> None:
        self._drawn = secrets.SystemRandom().sample(range(1, least_rounds), planned)
        self._least_rounds = least_rounds
        self._has_late = has_late
        self._asked = 0
        """The round that was asked for last."""
        self.count = 0
        """How many there were; to be counted by whoever takes them."""
        self.tally = Tally()

    def due(self, index: int) -> bool:
        """Whether one comes before round `index`; to be asked again after each."""
        is_first, self._asked = index > self._asked, index
        by_lot = index >= self._least_rounds and secrets.randbelow(ONE_IN) == 0
        if is_first and (by_lot or index in self._drawn):
            return True
        return index == self._least_rounds - 1 and not self.told and self.count < MOST

    @property
    def told(self) -> bool:
        """Whether there is nothing that could come late, or enough of it did."""
        return not self._has_late or self.tally.tells
