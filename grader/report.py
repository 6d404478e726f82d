"""The data that all rooms share: the verdict, the result of a case, the report.

The verdicts, by who is responsible::

    (none)                       no verdict is possible here (a .cu file and no GPU)
    accepted                     correct outputs, no rule broken
    the submission
    ├── compile_error            did not become a callable entry
    ├── runtime_error            raised, exited, was killed by a signal, abused the wire
    ├── time_limit_exceeded      ┐
    ├── memory_limit_exceeded    ├ stopped by the judge at a stated limit
    ├── output_limit_exceeded    ┘
    ├── wrong_answer             ran, and its outputs are wrong
    └── rejected                 correct outputs, but a named rule was broken
    the judge
    └── judge_error              never blamed on the submission
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

LOG_BYTES = 16 * 1024
"""Length limit of a submission's output in a report, in characters."""

REASON_CHARS = 300
"""Length limit of a report's one-line reason."""

MAX_MARKS = 6
"""Combining marks allowed on one character. Burmese words have up to four in NFC; a long pile
would cover the lines above and below."""

BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Invisible characters that Unicode counts as letters or symbols: Hangul fillers and the blank
Braille pattern."""

SOFTWARE = {
    "grade": "grade",
    "torch": "PyTorch",
    "cuda": "CUDA",
    "triton": "Triton",
    "tilelang": "TileLang",
    "nvidia-cutlass-dsl": "CuTe DSL",
    "cuda-tile": "cuTile",
    "helion": "Helion",
    "python": "Python",
}
"""Keys of a report's environment whose versions decide a time, and their names."""

FLOOR_SHARE = 0.85
"""A time below this share of the roofline's floor is held for a person. The ceilings are what a
copy and a matrix product of random numbers reach on that GPU, and honest kernels reach more: one
that only reads 1.07 times the bandwidth of a copy (`reduce_sum`, H200), and products of zeros 1.13
times the rate. The datasheets' bandwidth is 1.12 times what a copy reaches on an H100 and on an
H200."""

HIDDEN_SEED = -1
"""Stands for the seed in a report from a server; servers keep seeds secret."""


class Verdict(StrEnum):
    """The judge's decision on a submission. The module's docstring explains each."""

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
    """The reported time is below what the judge's own clock allows."""
    WORK_OUTSIDE_CALL = "work_outside_call"
    """Work before the inputs were available or after the call returned, such as in surviving
    threads, streams or processes."""
    CARRIED_ANSWER = "carried_answer"
    """An output carried over from another call's inputs. Inputs differ from call to call, so such
    an output is nearly always wrong, and `wrong_answer` takes precedence."""
    MEMORY_TAMPERED = "memory_tampered"
    """An input was written, or shared memory that is not an output."""
    BELOW_FLOOR = "below_floor"
    """Faster than the hardware allows; held for review."""


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
    """Where and how an output differs from the reference, for the submitter."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    argument: str
    """Name of the argument, followed by `[i]` for an element of a list."""
    shape: list[int]
    index: list[int]
    """Index of the first wrong element in row-major order."""
    expected: float
    got: float
    wrong_elements: int
    total_elements: int
    histogram: list[tuple[str, int]] = Field(default_factory=list)
    """Absolute error by decade, each bin (label, elements)."""
    looks_like: str | None = None
    """The number format whose rounding gives errors of this size, such as ``bf16``; null if none
    does."""
    worst_slice: str | None = None
    """The worst row, column or tile, such as ``row 16``; null if it is not known."""
    others: list[str] = Field(default_factory=list)
    """One line for each other output that is wrong too."""


class CaseResult(BaseModel):
    """The result of one test or benchmark case. Errors are null if nothing was compared."""

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
    """Error divided by its budget, the larger of what rounding explains and a multiple of eager
    PyTorch's own error; at most 1 to pass."""
    mismatch: Mismatch | None = None
    time_us: float | None = None
    """Microseconds per call: the larger of the reported time and what the outside clock allows. On
    a CPU the reported time, or the outside clock's where that is more than twice as long."""
    ci_us: tuple[float, float] | None = None
    """Confidence interval of `time_us`, about 95 %; see `grader.stats.estimate`."""
    external_us: float | None = None
    """Microseconds per call by the judge's outside clock, of the median round, less the calibrated
    constant cost of a round."""
    cold_us: float | None = None
    """Latency of a single call by the judge's outside clock, in microseconds."""
    returned_copy_us: float | None = None
    """Of `time_us`, about what copying the outputs that the function returns takes, measured by the
    judge; null if it writes them."""
    rounds: int | None = None
    round_us: list[float] = Field(default_factory=list)
    """Reported microseconds per call of each round, in order, without discarded rounds; by the
    outside clock where `time_us` is."""
    round_mhz: list[float] = Field(default_factory=list)
    """SM clock around each of these rounds, in MHz: the mean of a measurement before and one after,
    on an idle multiprocessor. Empty if it cannot be measured."""
    calls_per_round: int | None = None
    converged: bool | None = None
    """Whether the interval became narrow enough before the time budget ended."""
    graph: bool | None = None
    """Whether rounds were CUDA-graph replays."""
    baseline_us: dict[str, float] = Field(default_factory=dict)
    """Baseline name → microseconds per call, in the same run."""
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    sol: float | None = None
    """Fraction of the roofline (speed of light) of the GPU."""


Stage = Literal["compile", "tests", "benchmarks", "accepted"]
"""How far a submission came, in this order; it failed at the stage that is named."""


class Reward(BaseModel):
    """What a trainer may reward, of a report with a verdict on its submission."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: Stage
    """``compile``: it did not become a callable entry. ``tests``: a test did not pass.
    ``benchmarks``: it failed after all tests had passed. ``accepted``: it did not fail, be it timed
    or only tested."""
    tests_passed: float = Field(ge=0, le=1)
    """Tests that passed, divided by all tests. Those that were not run count as not passed."""
    speedup: float | None = Field(default=None, gt=0)
    """Time of the fastest baseline divided by the submission's, as a geometric mean over the
    benchmarks; null unless it was accepted and timed on a GPU."""
    speedup_ci: tuple[float, float] | None = None
    """Interval of `speedup`, about 95 %, from that of the submission's own time."""
    baseline: str | None = None
    """The fastest baseline."""
    roofline: float | None = Field(default=None, gt=0)
    """Geometric mean over the benchmarks of the share of the roofline, from 0 to about 1; null
    unless it was accepted, timed, and the GPU's ceilings are known."""
    rule: Rule | None = None
    """The rule that a `rejected` submission broke."""


class Report(BaseModel):
    """The result of one grading. `Report.model_dump(mode="json")` is the ``--json`` contract."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    problem: str
    problem_digest: str
    submission_sha256: str
    submission_name: str
    language: Literal["python", "cuda"]
    verdict: Verdict | None
    rule: Rule | None = None
    reason: str
    """One line for a person, at most `REASON_CHARS` long."""
    device: Literal["cpu", "cuda"]
    gpu: str | None = None
    worker: str | None = None
    """The worker of a server that graded it: the user of its token, a slash, and the name that it
    gives itself. Null for a local grading."""
    sandbox: str
    """``docker``, or ``process`` with its isolation, such as ``process (namespaces)``."""
    ranked: bool = False
    score_us: float | None = None
    """Geometric mean of `time_us` over benchmark cases; null unless accepted and timed on a GPU."""
    score_ci_us: tuple[float, float] | None = None
    rank: int | None = None
    speedup: dict[str, float] = Field(default_factory=dict)
    """Baseline name → geometric mean over benchmark cases of baseline time / `time_us`."""
    cases: list[CaseResult] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)
    stages_s: dict[str, float] = Field(default_factory=dict)
    """Seconds per stage: sandbox_start, baseline, load, test, benchmark, total; for a `.cu` file
    also compile, which overlaps the first ones."""
    log: str = ""
    """The submission's output, escaped, at most `LOG_BYTES` characters."""
    notes: list[str] = Field(default_factory=list)
    """Remarks for the reader, such as about a copy that counts into the time."""
    seed: int
    """Master seed of all inputs of this grading; `grade replay` repeats them."""
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    id: int | None = None
    """The board's number for this result; null if it is not recorded."""

    @computed_field  # type: ignore[prop-decorator]  # mypy allows no decorator above a property
    @property
    def reward(self) -> Reward | None:
        """What a trainer may reward. Null without a verdict on the submission, such as after a
        fault of the judge: that is no reason for a reward of zero."""
        return reward_of(self)

    @model_validator(mode="before")
    @classmethod
    def _compute_reward_again(cls, data: Any) -> Any:
        """A report that was written has its reward, which is never believed."""
        if isinstance(data, dict) and "reward" in data:
            return {name: value for name, value in data.items() if name != "reward"}
        return data


def reward_of(report: Report) -> Reward | None:
    """The reward of a report; None without a verdict on the submission."""
    if report.verdict in (None, Verdict.JUDGE_ERROR):
        return None
    tests = [case for case in report.cases if case.kind == "test"]
    passed = sum(case.status == "passed" for case in tests)
    found = Reward(
        stage=_stage(report, len(tests) > passed),
        tests_passed=passed / len(tests) if tests else 0.0,
        rule=report.rule,
    )
    if report.verdict is not Verdict.ACCEPTED or report.score_us is None:
        return found
    # A worker on another machine may report any number, and its report is parsed before it is
    # validated.
    shares = [case.sol for case in report.cases if case.kind == "benchmark"]
    known = [share for share in shares if share is not None and _is_positive(share)]
    changes: dict[str, Any] = {}
    if known and len(known) == len(shares):
        changes["roofline"] = geometric_mean(known)
    if report.speedup and all(map(_is_positive, report.speedup.values())):
        baseline, speedup = min(report.speedup.items(), key=lambda named: named[1])
        changes |= {"baseline": baseline, "speedup": speedup}
        if report.score_ci_us is not None and all(map(_is_positive, report.score_ci_us)):
            low_us, high_us = report.score_ci_us
            interval = (speedup * report.score_us / high_us, speedup * report.score_us / low_us)
            changes["speedup_ci"] = interval
    return found.model_copy(update=changes)


def _is_positive(number: float) -> bool:
    return 0 < number < math.inf


def _stage(report: Report, has_failed_test: bool) -> Stage:
    if report.verdict is Verdict.ACCEPTED:
        return "accepted"
    if not any(case.status != "not_run" for case in report.cases):
        return "compile"
    return "tests" if has_failed_test else "benchmarks"


class PassedTests(BaseModel):
    """The tests that a submission has passed in one grading, for another that only times it."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    problem_digest: str
    submission_sha256: str
    device: Literal["cpu", "cuda"]
    seed: int
    cases: tuple[CaseResult, ...]

    @classmethod
    def of(cls, report: Report) -> Self:
        """Those of an accepted report."""
        assert report.verdict is Verdict.ACCEPTED
        return cls(
            problem_digest=report.problem_digest,
            submission_sha256=report.submission_sha256,
            device=report.device,
            seed=report.seed,
            cases=tuple(case for case in report.cases if case.kind == "test"),
        )


def is_above_roofline(report: Report) -> bool:
    """Whether a case is faster than the hardware allows, so that a person must look at it."""
    shares = [case.sol for case in report.cases if case.sol is not None]
    return report.rule is Rule.BELOW_FLOOR or any(share * FLOOR_SHARE > 1 for share in shares)


def provenance(report: Report) -> list[tuple[str, str]]:
    """What a report says of where it was graded, as pairs of a label and a text.

    The environment is what the judge's process found. It is a claim if a hosted worker sent it, so
    only short texts of it are shown.
    """

    def told(key: str) -> str | None:
        value = report.environment.get(key)
        return one_line(value, 60) if isinstance(value, str) and value else None

    software = [f"{label} {version}" for key, label in SOFTWARE.items() if (version := told(key))]
    pairs = (
        ("worker", report.worker),
        ("GPU", told("gpu_uuid")),
        ("driver", told("driver")),
        ("software", ", ".join(software)),
    )
    return [(label, text) for label, text in pairs if text]


def escape(text: str, limit: int) -> str:
    """Make a submission's text safe to show: escape control characters, cut to `limit` characters.

    Newline and tab stay. Bidirectional overrides, invisible characters and piles of combining marks
    are escaped too, since they can make a terminal or page show a different text.
    """
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
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
    marks = MAX_MARKS  # a mark at the start would modify the text before it
    for c in text:
        if unicodedata.category(c) in ("Mn", "Me"):
            marks += 1
        else:
            marks = MAX_MARKS if c in "\n\t" else 0
        good = c.isprintable() and c not in BLANKS and marks <= MAX_MARKS
        yield c if good or c in "\n\t" else _escaped(c)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
