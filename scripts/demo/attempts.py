"""Who submits what to a problem of the demo server, when, and what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from grader.problem import Case, Problem
from grader.report import Verdict

MARK = "-example"
"""At the end of the name of every user and GPU of the example data."""
USERS = tuple(
    f"{name}{MARK}"
    for name in (
        *("abe", "bea", "cat", "dia", "eli", "fay"),
        *("gus", "ida", "jon", "kit", "leo", "tia"),
    )
)
DAYS = 42.0
"""From the first result to the last."""
FRONT_RUNNERS = 3
"""Users who hold the record in turn."""
TIED = 1.0015
"""Between two times that tie: a score is known to ±0.2 % at best."""
APART = 1.01
"""Between two times that do not tie, at least."""

Kind = Literal["cuda", "triton", "torch"]
KINDS: dict[Kind, str] = {"cuda": ".cu", "triton": ".py", "torch": ".py"}
"""Kind of a kernel → extension of its file."""


@dataclass(frozen=True)
class Gpu:
    """A type of GPU, its ceilings per second, and what happens on its boards."""

    name: str
    bytes_per_s: float
    fp32_per_s: float
    tensor_per_s: float
    entrants: int
    records: int
    """How often somebody becomes the fastest."""

    def times_us(self, problem: Problem, case: Case) -> tuple[float, float]:
        """The least microseconds of a call for its memory traffic, and for its operations."""
        rate = self.tensor_per_s if problem.unit == "tensor" else self.fp32_per_s
        return problem.bytes(case) / self.bytes_per_s * 1e6, problem.flops(case) / rate * 1e6


GPUS = (
    Gpu(f"H100{MARK}", 2.994e12, 51.57e12, 787.5e12, entrants=9, records=6),
    Gpu(f"H200{MARK}", 4.236e12, 51.41e12, 810.7e12, entrants=6, records=5),
    Gpu(f"A100{MARK}", 2.039e12, 19.5e12, 312e12, entrants=5, records=4),
)
"""H100 and H200 have the ceilings of `reference/timings/`; A100 the peaks in NVIDIA's data sheet of
the 80 GB SXM card."""


@dataclass(frozen=True)
class Attempt:
    """A submission to make, and what becomes of it."""

    at: datetime
    user: str
    gpu: Gpu
    kind: Kind
    verdict: Verdict = Verdict.ACCEPTED
    slowdown: float = 1.0
    """Time of an accepted kernel, as a multiple of the last record on its GPU."""


def attempts(problem: Problem, until: datetime, failures: Collection[Verdict]) -> list[Attempt]:
    """All submissions to a problem until then, oldest first: races on three GPUs, and one
    submission with each of the verdicts `failures`.

    Empty for a problem without a benchmark for GPUs, since nothing can rank there.
    """
    if not problem.cases("benchmark", "cuda"):
        return []
    rng = random.Random(f"attempts {problem.name}")
    made = [attempt for gpu in GPUS for attempt in _race(gpu, until, rng)]
    for verdict in failures:
        at = _before(until, rng.uniform(0.2, DAYS * 0.9))
        made.append(Attempt(at, rng.choice(USERS), GPUS[0], "triton", verdict))
    return sorted(made, key=lambda attempt: attempt.at)


def _race(gpu: Gpu, until: datetime, rng: random.Random) -> Iterator[Attempt]:
    """The accepted submissions on one GPU: records, a tie with one of the first two, the others."""
    users = rng.sample(USERS, gpu.entrants)
    kinds: list[Kind] = ["cuda", "triton", *rng.choices(list(KINDS), k=gpu.entrants - 2)]
    records = list(_records(gpu.records, rng))
    for number, (age, slowdown) in enumerate(records):
        who = number % FRONT_RUNNERS
        yield Attempt(_before(until, age), users[who], gpu, kinds[who], slowdown=slowdown)
    last_age = records[-1][0]
    tied_with = rng.choice(records[-2:])[1]
    yield Attempt(
        _before(until, rng.uniform(0.1, last_age)),
        users[FRONT_RUNNERS],
        gpu,
        kinds[FRONT_RUNNERS],
        slowdown=tied_with * TIED,
    )
    for who in range(FRONT_RUNNERS + 1, gpu.entrants):
        slowdown = rng.uniform(1.12, 2.4)
        # No record: somebody has been faster before.
        beaten = next(age for age, record in records if record * APART < slowdown)
        at = _before(until, rng.uniform(0.1, beaten))
        yield Attempt(at, users[who], gpu, kinds[who], slowdown=slowdown)


def _records(count: int, rng: random.Random) -> Iterator[tuple[float, float]]:
    """The age in days and the slowdown of each record, oldest first, in ever smaller steps."""
    first, bend = rng.uniform(2.2, 3.5), rng.uniform(1.0, 2.0)
    for number in range(count):
        age = DAYS * (count - number - rng.uniform(0.0, 0.8)) / count
        left = (count - 1 - number) / (count - 1)
        yield age, first ** (left**bend * rng.uniform(0.9, 1.0))


def _before(until: datetime, days: float) -> datetime:
    return until - timedelta(days=days)
