"""How repeatable is a score, and does a kernel that is 1 % slower rank below?

    python -m benchmarks.precision [--runs 20] [--sandbox docker|process] [--only TEXT] [--out FILE]

Needs a GPU. Grades four honest kernels, one per problem, `--runs` times each in fresh sandboxes,
and a slower softmax that computes 1 % of its rows twice. A row per kernel has the median score,
the spread, the gradings that were not accepted or did not settle, and the seconds of a grading.
Then it prints how many pairs of gradings of one file the board would call a tie, and how often the
slower softmax ranks below. `--out` receives a line of JSON per grading, as they end.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

from benchmarks.estimators import spread
from benchmarks.gpu import require_gpu
from grader import stats
from grader.judge import grade
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.sandbox.pool import RunnerPool
from grader.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
SLOWER = "softmax, 1 % slower"
FILES = {
    "softmax": "softmax/accepted/triton_softmax.py",
    SLOWER: "softmax/accepted/triton_softmax.py",
    "int4_matmul": "int4_matmul/accepted/triton_int4_matmul.py",
    "multi_tensor_adamw": "multi_tensor_adamw/accepted/triton_adamw.py",
    "flash_attention": "flash_attention/accepted/triton_attention.py",
}


def slower_softmax(source: str, share: int = 100) -> str:
    """The Triton softmax with one extra program in `share`; they compute the first rows again."""
    changes = {
        "    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]\n": (
            "    tiles = tl.cdiv(rows, ROWS)\n"
            "    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)[:, None]\n"
        ),
        "    _whole_rows[(triton.cdiv(rows, height),)](\n": (
            "    tiles = triton.cdiv(rows, height)\n"
            f"    _whole_rows[(tiles + tiles // {share},)](\n"
        ),
        "    row = tl.program_id(0) // chunks\n    chunk = tl.program_id(0) % chunks\n": (
            "    here = tl.program_id(0) % total\n    row = here // chunks\n"
            "    chunk = here % chunks\n"
        ),
        "    tl.store(maxima + tl.program_id(0), highest)": "    tl.store(maxima + here, highest)",
        "    tl.store(sums + tl.program_id(0),": "    tl.store(sums + here,",
        "    program = tl.num_programs(0) - 1 - tl.program_id(0)\n": (
            "    program = (tl.num_programs(0) - 1 - tl.program_id(0)) % total\n"
        ),
        "def _chunk_sums(x, maxima, sums, cols, chunks,": (
            "def _chunk_sums(x, maxima, sums, cols, chunks, total,"
        ),
        "def _chunk_finish(x, out, maxima, sums, cols, chunks,": (
            "def _chunk_finish(x, out, maxima, sums, cols, chunks, total,"
        ),
        "        grid = (some_x.shape[0] * chunks,)\n": (
            "        total = some_x.shape[0] * chunks\n"
            f"        grid = (total + total // {share},)\n"
        ),
        "maxima, sums, cols, chunks, CHUNK=chunk, num_warps=8)": (
            "maxima, sums, cols, chunks, total, CHUNK=chunk, num_warps=8)"
        ),
        "            chunks,\n            CHUNK=chunk,": (
            "            chunks,\n            total,\n            CHUNK=chunk,"
        ),
    }
    for before, after in changes.items():
        if source.count(before) != 1:
            raise ValueError(f"the kernel has changed; it lacks: {before!r}")
        source = source.replace(before, after)
    return source


@dataclass
class Runs:
    """All gradings of one kernel."""

    name: str
    reports: list[Report] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    @property
    def ranked(self) -> list[Report]:
        """The gradings whose score ranks."""
        return [r for r in self.reports if r.score_us is not None and r.ranked]

    def row(self) -> str:
        """The row of the Markdown table."""
        scores = [r.score_us for r in self.ranked if r.score_us is not None]
        not_accepted = sum(r.verdict is not Verdict.ACCEPTED for r in self.reports)
        unsettled = len(self.reports) - not_accepted - len(scores)
        middle = stats.median(scores) if scores else float("nan")
        differ = spread(scores) if scores else float("nan")
        widths = [(r.score_ci_us[1] - r.score_ci_us[0]) / 2 for r in self.ranked if r.score_ci_us]
        width = stats.median(widths) / middle if widths else float("nan")
        return (
            f"| {self.name} | {len(self.reports)} | {not_accepted} | {unsettled} | {middle:.2f} | "
            f"{differ:.2%} | ± {width:.2%} | {stats.median(self.took_s):.1f} |"
        )


HEAD = """\
| kernel | gradings | not accepted | not settled | median score µs | (max − min) / median | \
its interval | seconds each |
|---|---|---|---|---|---|---|---|"""


def ties(runs: Runs) -> tuple[int, int]:
    """The number of pairs of gradings that share a rank, and the number of all pairs."""
    intervals = [r.score_ci_us for r in runs.ranked if r.score_ci_us is not None]
    pairs = list(itertools.combinations(intervals, 2))
    return sum(stats.overlap(a, b) for a, b in pairs), len(pairs)


def below(slow: Runs, fast: Runs) -> tuple[int, int]:
    """The number of pairs in which `slow` ranks below `fast`, and the number of all pairs."""
    pairs = [
        (a.score_ci_us, b.score_ci_us)
        for a, b in itertools.product(slow.ranked, fast.ranked)
        if a.score_ci_us is not None and b.score_ci_us is not None
    ]
    return sum(a[0] > b[1] for a, b in pairs), len(pairs)


def grade_often(runs: Runs, sandbox: Sandbox, count: int, out: Path | None) -> None:
    """Grade one kernel `count` times, each time in another warm sandbox."""
    file = ROOT / "submissions" / FILES[runs.name]
    problem = Problem.load(ROOT / "problems" / FILES[runs.name].split("/")[0])
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    if runs.name == SLOWER:
        text = slower_softmax(submission.source.decode())
        submission = dataclasses.replace(submission, name="slower.py", source=text.encode())
    with RunnerPool(sandbox, RunnerLimits.of(problem.spec.limits), "cuda", size=2) as pool:
        for _ in range(count):
            start = time.monotonic()
            report = grade(problem, submission, sandbox=pool, device="cuda")
            runs.took_s.append(time.monotonic() - start)
            runs.reports.append(report)
            if report.verdict is not Verdict.ACCEPTED:
                print(f"{runs.name}: {report.verdict}: {report.reason} (seed {report.seed})")
            for note in report.notes:
                print(f"{runs.name}: {note[-300:]}", flush=True)
            if out is not None:
                line = {"kernel": runs.name, "stages_s": report.stages_s} | report.model_dump(
                    mode="json", include={"verdict", "score_us", "score_ci_us", "ranked", "seed"}
                )
                line["cases_us"] = {c.name: c.time_us for c in report.cases if c.time_us}
                line["eager_us"] = {
                    c.name: c.baseline_us["eager"] for c in report.cases if "eager" in c.baseline_us
                }
                line["round_us"] = {c.name: c.round_us for c in report.cases if c.round_us}
                line["round_mhz"] = {c.name: c.round_mhz for c in report.cases if c.round_mhz}
                with out.open("a") as stream:
                    stream.write(json.dumps(line) + "\n")


@click.command()
@click.option("--runs", default=20, show_default=True)
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--only", multiple=True, help="Only kernels whose name contains this.")
@click.option("--out", type=click.Path(path_type=Path))
def main(runs: int, sandbox: str, only: tuple[str, ...], out: Path | None) -> None:
    """Grade honest kernels repeatedly and print the spread of their scores."""
    require_gpu()
    chosen = make_sandbox(sandbox)
    done: dict[str, Runs] = {}
    for name in FILES:
        if not only or any(text in name for text in only):
            done[name] = Runs(name)
            grade_often(done[name], chosen, runs, out)
            print(HEAD if len(done) == 1 else "", done[name].row(), sep="\n", flush=True)
    print()
    for one in done.values():
        same, pairs = ties(one)
        print(f"{one.name}: two gradings of the file tie in {same} of {pairs} pairs")
    if SLOWER in done and "softmax" in done:
        under, pairs = below(done[SLOWER], done["softmax"])
        print(f"the kernel that is 1 % slower ranks below in {under} of {pairs} pairs")


if __name__ == "__main__":
    main()
