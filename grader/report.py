"""What every other room speaks: the verdict, the result of a case, the report.

The tree of verdicts, by whose doing it is::

    (none)                       no verdict can be given here (a .cu file and no GPU)
    accepted                     right, and won by the rules
    the submission's
    ├── compile_error            never became a callable entry
    ├── runtime_error            raised, exited, was killed by a signal, abused the wire
    ├── time_limit_exceeded      ┐
    ├── memory_limit_exceeded    ├ ended by the judge at a stated limit
    ├── output_limit_exceeded    ┘
    ├── wrong_answer             ran, and computed something else
    └── rejected                 right outputs, but a named rule was broken
    ours
    └── judge_error              never blamed on the submission
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

LOG_BYTES = 16 * 1024
"""How much of a submission's own output a report carries."""

REASON_CHARS = 300
"""How long a report's one-line reason may be."""

MOST_MARKS = 6
"""How many combining marks may stand on one character: Burmese has words with four, in NFC, and a
pile of them covers the lines above and below."""

BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols by their category, and yet nothing is seen of them: Hangul's fillers, and the
Braille pattern without dots."""

UNTOLD = -1
"""The seed of a report that came from a server, which tells seeds to nobody."""


class Verdict(StrEnum):
    """The judge's word on a submission. The meaning of each stands in the tree above."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT_EXCEEDED = "time_limit_exceeded"
    MEMORY_LIMIT_EXCEEDED = "memory_limit_exceeded"
    OUTPUT_LIMIT_EXCEEDED = "output_limit_exceeded"
    REJECTED = "rejected"
    JUDGE_ERROR = "judge_error"


class Rule(StrEnum):
    """The closed list of rules that a `rejected` may name."""

    TIME_CLAIM = "time_claim"
    """The time claimed is below what the judge's own clock allows."""
    WORK_OUTSIDE_CALL = "work_outside_call"
    """Work before the inputs were there or after "done": surviving threads, streams, processes."""
    CARRIED_ANSWER = "carried_answer"
    """An answer carried from one call's inputs to another call. Since every call has inputs of its
    own, such an answer is nearly always wrong, and `wrong_answer` beats this."""
    MEMORY_TAMPERED = "memory_tampered"
    """An input, or lent memory that is no output, was written."""
    BELOW_FLOOR = "below_floor"
    """Faster than the hardware can be; held for review."""


CaseStatus = Literal[
    "passed",
    "wrong_answer",
    "runtime_error",
    "time_limit_exceeded",
    "memory_limit_exceeded",
    "output_limit_exceeded",
    "rejected",
    "not_run",
]


class Mismatch(BaseModel):
    """Where and how an output differs from the reference; a picture for the submitter."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    argument: str
    """Name of the argument, with `[i]` behind it for an element of a list."""
    shape: list[int]
    index: list[int]
    """First wrong element, row-major."""
    expected: float
    got: float
    wrong_elements: int
    total_elements: int
    histogram: list[tuple[str, int]] = Field(default_factory=list)
    """Absolute error by decade, each bin (label, elements)."""
    worst_slice: str | None = None
    """The worst row, column or tile in words, such as ``rows 16:32``."""


class CaseResult(BaseModel):
    """What was found for one test or benchmark case. Errors are null where nothing was compared."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    name: str
    kind: Literal["test", "benchmark"]
    params: dict[str, Any]
    status: CaseStatus
    reason: str | None = None
    """One line, for a case that did not pass."""
    max_abs_err: float | None = None
    rel_l2: float | None = None
    worst_slice_rel_l2: float | None = None
    error_budget_used: float | None = None
    """Largest error over the budget that plain PyTorch's own error allows; at most 1 to pass."""
    mismatch: Mismatch | None = None
    time_us: float | None = None
    """Per call, microseconds: the larger of the claim and what the outside clock allows."""
    ci_us: tuple[float, float] | None = None
    """Confidence interval of `time_us`, of about 95 %: see `grader.stats.middle`."""
    external_us: float | None = None
    """Per call by the judge's own clock, of the middle one of the rounds, less the calibrated
    constant of a round."""
    cold_us: float | None = None
    """Latency of a single call by the judge's own clock."""
    rounds: int | None = None
    round_us: list[float] = Field(default_factory=list)
    """What each round claimed per call, microseconds, in order; the rounds left out are not in."""
    round_mhz: list[float] = Field(default_factory=list)
    """The clock of one of the GPU's multiprocessors, counted there while it had nothing else to do:
    the mean of before and after each of these rounds. Empty where that cannot be counted."""
    calls_per_round: int | None = None
    converged: bool | None = None
    """Whether the interval became as narrow as asked before the budget ended."""
    graph: bool | None = None
    """Whether rounds were CUDA-graph replays."""
    baseline_us: dict[str, float] = Field(default_factory=dict)
    """Time of each baseline in the same run, microseconds per call."""
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    sol: float | None = None
    """Fraction of the roofline (speed of light) of the GPU it ran on."""


class Report(BaseModel):
    """One grading, whole. `Report.model_dump(mode="json")` is the ``--json`` contract."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    problem: str
    problem_digest: str
    submission_sha256: str
    submission_name: str
    language: Literal["python", "cuda"]
    verdict: Verdict | None
    rule: Rule | None = None
    reason: str
    """One line a person can act on, at most `REASON_CHARS` long."""
    device: Literal["cpu", "cuda"]
    gpu: str | None = None
    sandbox: str
    """``docker``, or ``process`` with what it could isolate, such as ``process (namespaces)``."""
    ranked: bool = False
    score_us: float | None = None
    """Geometric mean of `time_us` over benchmark cases; null unless accepted and timed on a GPU."""
    score_ci_us: tuple[float, float] | None = None
    rank: int | None = None
    speedup: dict[str, float] = Field(default_factory=dict)
    """Baseline name → geometric mean over benchmark cases of baseline time over ours."""
    cases: list[CaseResult] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)
    stages_s: dict[str, float] = Field(default_factory=dict)
    """Seconds per stage: sandbox_start, baseline, load, test, benchmark, total; and of a `.cu` file
    compile, which goes on beside the first of them."""
    log: str = ""
    """The submission's own output, escaped, at most `LOG_BYTES`."""
    notes: list[str] = Field(default_factory=list)
    """What the reader should know, such as a copy that counts into the time."""
    seed: int
    """Master seed of every input of this grading; with it `grade replay` repeats them."""
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    id: int | None = None
    """The board's number for this result; null when it was not recorded."""


def escape(text: str, limit: int) -> str:
    """Make a submission's text safe to show: control characters escaped, cut to `limit` characters.

    Newline and tab stay. Bidirectional overrides, invisible characters and marks that would pile up
    are escaped too, since they can make a terminal or a page show another text than the one that is
    there.
    """
    shown = "".join(_shown(text[: limit + 1]))
    return shown if len(shown) <= limit else shown[: max(limit - 1, 0)] + "…"


def one_line(text: str, limit: int = REASON_CHARS) -> str:
    """`escape`, and line breaks folded to spaces."""
    return escape(" ".join(text[: 4 * limit].split()), limit)


def geometric_mean(values: list[float]) -> float:
    """Geometric mean of positive numbers. Raises ValueError when there are none."""
    if not values:
        raise ValueError("no values to take a mean of")
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _shown(text: str) -> Iterator[str]:
    marks = MOST_MARKS  # one at the start would stand on what is not of this text
    for c in text:
        if unicodedata.category(c) in ("Mn", "Me"):
            marks += 1
        else:
            marks = MOST_MARKS if c in "\n\t" else 0
        good = c.isprintable() and c not in BLANKS and marks <= MOST_MARKS
        yield c if good or c in "\n\t" else _escaped(c)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
