"""How much faster than its kernel can a submission look? Forgeries beside the kernels they wrap.

    python -m benchmarks.forgery [--tries 10] [--sandbox process] [--only NAME]... [--out FILE]

Every forgery is graded `--tries` times in warm sandboxes, then the honest kernels that accepted
forgeries wrap, three times each. No case of an accepted try may be faster than the honest kernel's
median by more than 2 % or 3 µs per call, whichever is larger. A try with another verdict has no
score and gains nothing. Detection may depend on chance, so an accepted or rejected forgery gets all
its tries; two equal verdicts of any other kind end them. All visible GPUs share the work, one file
at a time each. The exit status is 0 if every forgery stays within the limit, else 1.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import click

from grader.judge import grade
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits
from grader.sandbox.pool import RunnerPool
from grader.stats import median
from grader.submission import Submission
from scripts.workers import workers

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "submissions"
HONEST_TRIES = 3
UNFORGED = ", without its last line"
"""Suffix of a forgery's name: its own honest kernel, without the line that forges."""
ALLOWED_SHARE, ALLOWED_US = 0.02, 3.0
"""A forgery may gain at most the larger of these per call: a share of the honest time, or µs."""

HONEST = {
    "softmax": "torch_softmax.py",
    "int4_matmul": "torch_int4_matmul.py",
    "flash_attention": "torch_attention.py",
    "multi_tensor_adamw": "torch_adamw.py",
    "add_layer_norm_gelu": "torch_chain.py",
    "layer_norm": "torch_layer_norm.py",
    "softmax_cross_entropy": "torch_loss.py",
    "square": "torch_square.py",
}
"""The kernel in `accepted/` that the forgeries of a problem wrap."""
FORGERIES = {
    "flash_attention": (
        "accepted/hostile_prepares_aside.py",
        "rejected/forged_claim.py",
        "rejected/early_done.py",
        "rejected/deferred_thread.py",
        "rejected/scales_queries.py",
    ),
    "int4_matmul": (
        "rejected/computes_aside.py",
        "accepted/hostile_prefetches_ahead.py",
        "rejected/forged_claim.py",
        "rejected/early_done.py",
        "rejected/deferred_thread.py",
        "rejected/writes_scales.py",
    ),
    "multi_tensor_adamw": (
        "rejected/forged_claim.py",
        "rejected/early_done.py",
        "rejected/deferred_thread.py",
        "rejected/overlapping_calls.py",
        "rejected/zeroes_grads.py",
    ),
    "softmax": (
        "rejected/patched_events.py",
        "rejected/native_timer.py",
        "rejected/forged_claim.py",
        "rejected/sandbagged_probe.py",
        "rejected/deferred_stream.py",
        "rejected/deferred_thread.py",
        "rejected/early_done.py",
        "rejected/done_by_thread.py",
        "rejected/skips_the_server.py",
        "rejected/leaves_the_tail.py",
        "rejected/flickering_input.py",
        "rejected/writes_beside_input.py",
        "rejected/writes_beside_output.py",
        "rejected/writes_input.py",
        "rejected/hostile_restores_input.py",
        "accepted/hostile_patches_clocks.py",
        "accepted/hostile_shaves_claim.py",
        "accepted/hostile_shaves_to_the_limit.py",
        "rejected/done_in_flight.py",
        "rejected/peeks_ahead.py",
        "accepted/hostile_starts_before_go.py",
        "rejected/all_at_once.py",
        "rejected/overlapping_calls.py",
        "rejected/overlaps_some_rounds.py",
        "rejected/busies_the_copy_engine.py",
        "rejected/batches_calls.py",
        "rejected/batches_eagerly.py",
        "rejected/batches_one_case.py",
        "rejected/l2_persistence.py",
        "accepted/hostile_launches_early.cu",
        "accepted/hostile_skips_late_inputs.py",
        "rejected/begins_before_the_end.py",
        "accepted/hostile_waits_at_the_gate.py",
        "accepted/hostile_slows_baseline.py",
        "wrong_answer/hostile_works_in_warm_up.py",
        "wrong_answer/hostile_stale_graph.py",
        "wrong_answer/hostile_cached_by_pointer.py",
        "wrong_answer/hostile_cached_by_shape.py",
        "wrong_answer/hostile_cached_by_sample.py",
        "wrong_answer/hostile_half_the_work.py",
        "wrong_answer/hostile_says_done.py",
    ),
    "add_layer_norm_gelu": ("rejected/hostile_adds_in_place.py",),
    "layer_norm": ("rejected/hostile_centers_its_input.py",),
    "softmax_cross_entropy": ("rejected/hostile_writes_into_logits.py",),
    "square": ("rejected/squares_in_place.py",),
}
"""The slowest problems first, so that several GPUs finish together."""
WRAPPED = {
    f"{problem}/{file}": f"{problem}/accepted/{HONEST[problem]}"
    for problem, files in FORGERIES.items()
    for file in files
} | {
    "softmax/rejected/batches_calls.py": "softmax/accepted/triton_softmax.py",
    "softmax/rejected/batches_eagerly.py": "softmax/accepted/triton_softmax.py",
    "softmax/rejected/batches_one_case.py": "softmax/rejected/batches_one_case.py" + UNFORGED,
    "softmax/accepted/hostile_launches_early.cu": "softmax/accepted/cuda_softmax.cu",
    "softmax/accepted/hostile_skips_late_inputs.py": "softmax/accepted/triton_softmax.py",
    "int4_matmul/rejected/computes_aside.py": "int4_matmul/accepted/triton_int4_matmul.py",
    "int4_matmul/accepted/hostile_prefetches_ahead.py": (
        "int4_matmul/accepted/triton_int4_matmul.py"
    ),
}
"""Each forgery and the honest kernel that it wraps, below `submissions/` or its own."""

HEAD = """\
| | file | verdicts | best score µs | honest score µs | gain | worst case | gained of allowed µs |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Try:
    """The result of one grading of a file."""

    outcome: str
    """The verdict and the broken rule, or the judge's own exception."""
    score_us: float | None = None
    """None unless accepted."""
    times_us: dict[str, float] = field(default_factory=dict)
    """By benchmark case, if accepted."""
    judge_failed: bool = False
    """Whether the judge failed."""

    @property
    def is_chance(self) -> bool:
        """Whether another try may have another outcome: samples are taken at random places."""
        return self.outcome.startswith(("accepted", "rejected"))


@dataclass(frozen=True)
class Honest:
    """An honest kernel's times: medians over its tries, microseconds."""

    score_us: float
    times_us: dict[str, float]


@dataclass(frozen=True)
class Gain:
    """How much a forgery beat the honest kernel by in one case, and how much is allowed."""

    case: str
    gained_us: float
    allowed_us: float

    @property
    def share(self) -> float:
        """Gain over allowance; above 1 the clock was fooled."""
        return self.gained_us / self.allowed_us


def attempt(grade_once: Callable[[], Report]) -> Try:
    """Grade once. An exception of the judge becomes the outcome."""
    try:
        report = grade_once()
    except Exception as error:  # noqa: BLE001 - reported as a defect of the judge
        traceback.print_exc()
        return Try(f"the judge failed: {type(error).__name__}", judge_failed=True)
    if report.verdict is Verdict.ACCEPTED and report.score_us is not None:
        benchmarks = [c for c in report.cases if c.kind == "benchmark"]
        times_us = {c.name: c.time_us for c in benchmarks if c.time_us is not None}
        outcome = "accepted" if report.ranked else "accepted, unranked"
        return Try(outcome, report.score_us, times_us)
    rule = f" ({report.rule})" if report.rule else ""
    failed = report.verdict in (None, Verdict.JUDGE_ERROR)
    if failed:
        print(report.reason, *report.notes, sep="\n", file=sys.stderr)
    return Try(f"{report.verdict or 'no verdict'}{rule}", judge_failed=failed)


def repeat(grade_once: Callable[[], Report], tries: int) -> Iterator[Try]:
    """Up to `tries` tries; fewer if two agree on a verdict other than accepted or rejected."""
    seen: Counter[str] = Counter()
    accepted = False
    for _ in range(tries):
        one = attempt(grade_once)
        yield one
        seen[one.outcome] += 1
        accepted = accepted or one.score_us is not None
        if not accepted and not one.is_chance and seen[one.outcome] >= 2:
            return


def honest_times(tries: list[Try]) -> Honest | None:
    """Medians over the accepted tries; None without any."""
    scores = [one.score_us for one in tries if one.score_us is not None]
    if not scores:
        return None
    accepted = [one.times_us for one in tries if one.score_us is not None]
    common = set.intersection(*map(set, accepted))
    return Honest(median(scores), {c: median([times[c] for times in accepted]) for c in common})


def worst_gain(honest: Honest, tries: list[Try]) -> Gain | None:
    """The largest gain over its allowance, over all accepted tries and cases; None without any."""
    gains = [
        Gain(case, honest_us - one.times_us[case], max(ALLOWED_SHARE * honest_us, ALLOWED_US))
        for one in tries
        for case, honest_us in honest.times_us.items()
        if case in one.times_us
    ]
    return max(gains, key=lambda gain: gain.share, default=None)


def within_limit(honest: Honest | None, tries: list[Try]) -> bool:
    """Whether a forgery gained no more than allowed; False if the judge failed."""
    if not tries or any(one.judge_failed for one in tries):
        return False
    if not any(one.score_us is not None for one in tries):
        return True
    gain = worst_gain(honest, tries) if honest is not None else None
    return gain is not None and gain.share <= 1


def row(name: str, honest: Honest | None, tries: list[Try], wanted: int) -> str:
    """The row of the Markdown table."""
    counts = Counter(one.outcome for one in tries)
    verdicts = ", ".join(f"{outcome} × {count}" for outcome, count in counts.items())
    if len(tries) < wanted:
        verdicts += f"; stopped after {len(tries)}"
    scores = [one.score_us for one in tries if one.score_us is not None]
    gain = worst_gain(honest, tries) if honest else None
    cells = [
        "✔" if within_limit(honest, tries) else "✘",
        f"`{name}`",
        verdicts,
        f"{min(scores):.2f}" if scores else "–",
        f"{honest.score_us:.2f}" if honest else "unknown" if scores else "–",
        f"{1 - min(scores) / honest.score_us:+.1%}" if scores and honest else "–",
        gain.case if gain else "–",
        f"{gain.gained_us:+.2f} of {gain.allowed_us:.2f}" if gain else "–",
    ]
    return "| " + " | ".join(cells) + " |"


class Table:
    """Prints lines, and rewrites the file with all of them."""

    def __init__(self, out: Path | None) -> None:
        self._out = out
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """Append a line."""
        self._lines.append(line)
        print(line, flush=True)
        if self._out is not None:
            self._out.write_text("\n".join(self._lines) + "\n")


def chosen(only: tuple[str, ...]) -> dict[str, str]:
    """The forgeries whose path contains one of these texts; all of them without texts."""
    return {f: h for f, h in WRAPPED.items() if not only or any(text in f for text in only)}


Tried = Callable[[str, int], list[Try]]
"""Grades a file that often."""
_pools: dict[str, RunnerPool] = {}
"""This process's pool, for the problem that it graded last."""


def _pool(problem: Problem, sandbox: str) -> RunnerPool:
    if problem.name not in _pools:
        while _pools:
            _pools.popitem()[1].close()
        limits = RunnerLimits.of(problem.spec.limits)
        _pools[problem.name] = RunnerPool(make_sandbox(sandbox), limits, "cuda", size=2)
    return _pools[problem.name]


def submission_of(name: str, most_bytes: int) -> Submission:
    """A file below `submissions/`, whole or without its last line."""
    submission = Submission.read(FOLDER / name.removesuffix(UNFORGED), most_bytes)
    if not name.endswith(UNFORGED):
        return submission
    return replace(submission, source=submission.source.rstrip().rpartition(b"\n")[0] + b"\n")


def try_file(sandbox: str, name: str, tries: int) -> list[Try]:
    """Grade a file up to `tries` times in warm sandboxes."""
    problem = Problem.load(ROOT / "problems" / name.split("/")[0])
    submission = submission_of(name, problem.spec.limits.source_bytes)
    pool = _pool(problem, sandbox)
    return list(repeat(lambda: grade(problem, submission, sandbox=pool, device="cuda"), tries))


def tries_of(trial: Future[list[Try]]) -> list[Try]:
    """The tries of a file; one that says so if its process died."""
    try:
        return trial.result()
    except BrokenProcessPool:
        return [Try("the judge's process died", judge_failed=True)]


def compare(
    executor: Executor, tried: Tried, names: dict[str, str], tries: int, table: Table
) -> int:
    """Grade honest kernels and forgeries; the number of forgeries within the limit."""
    forged = {executor.submit(tried, name, tries): name for name in names}
    accepted: dict[str, list[Try]] = {}
    honest_tries: dict[str, Future[list[Try]]] = {}
    within = 0
    for future in as_completed(forged):
        name, found = forged[future], tries_of(future)
        if any(one.score_us is not None for one in found):
            accepted[name] = found
            if names[name] not in honest_tries:
                honest_tries[names[name]] = executor.submit(tried, names[name], HONEST_TRIES)
            continue
        within += within_limit(None, found)
        table.add(row(name, None, found, tries))
    honest: dict[str, Honest | None] = {}
    for name, future in honest_tries.items():
        graded = tries_of(future)
        honest[name] = honest_times(graded)
        table.add(row(name, honest[name], graded, HONEST_TRIES))
    for name, found in accepted.items():
        within += within_limit(honest[names[name]], found)
        table.add(row(name, honest[names[name]], found, tries))
    return within


@click.command()
@click.option("--tries", default=10, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--sandbox", type=click.Choice(["process", "docker"]), default="docker", show_default=True
)
@click.option("--only", multiple=True, help="Only forgeries whose path contains this.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table to this file too.")
def main(tries: int, sandbox: str, only: tuple[str, ...], out: Path | None) -> None:
    """Grade forgeries beside the honest kernels that they wrap."""
    names = chosen(only)
    if not names:
        sys.exit(f"no forgery's path contains {' or '.join(only)}")
    table = Table(out)
    with workers("cuda") as executor:
        table.add(HEAD)
        within = compare(executor, partial(try_file, sandbox), names, tries, table)
    table.add(f"\n{within} of {len(names)} forgeries gained no more than 2 % or 3 µs per call.")
    sys.exit(0 if within == len(names) else 1)


if __name__ == "__main__":
    main()
