"""Do deferred inputs arrive before their call, and do they detect early reads?

    python -m benchmarks.deferred_inputs [--sandbox process] [--rounds 8] [--case NAME]... FILE...

Needs a GPU. FILE is a submission below `submissions/<problem>/`, honest or not. Each benchmark case
gets rounds as in a grading, and goes on after a fault. Every second round has no deferred inputs
(`grader/judge/integrity/deferred_inputs.py`), so that times can be compared. Counted are sets:

- `deferred`: sets with a piece of input that was stale until just before their call.
- `in time`: the piece was written before any call could have read it. Outputs that match the stale
  piece were then computed too early, which is a fault.
- `held up`: the write took long.

`overlaps` are samples that show two calls at work; an honest grading may have one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from benchmarks.gpu import require_gpu
from benchmarks.partial_grading import chosen, prepared
from grader.judge.benchmark import Benchmark, open_benchmark
from grader.judge.integrity.auditor import CopyEngineAudit
from grader.judge.integrity.deferred_inputs import DeferralCounts
from grader.judge.verdict import SubmissionFault
from grader.sandbox.base import SandboxError
from grader.stats import median

HEAD = """\
| case | calls | deferred | in time | held up | rounds | faults | overlaps | µs without \
| µs with | what |
|---|---|---|---|---|---|---|---|---|---|---|"""


def row(bench: Benchmark, rounds: int) -> str:
    """The row of a case."""
    times_us: dict[bool, list[float]] = {False: [], True: []}
    faults: Counter[str] = Counter()
    overlaps = 0
    audit, log = bench.auditor, bench.grading.audit_tally
    deferred = audit._deferred if isinstance(audit, CopyEngineAudit) else None
    if deferred is not None:
        deferred.counts = DeferralCounts()  # drops the warm-up's
    for number in range(2 * rounds):
        is_deferred = number % 2 == 1
        if isinstance(audit, CopyEngineAudit):
            audit._deferred = deferred if is_deferred else None
        try:
            times_us[is_deferred].append(bench.round(1 + number).reported_us)
        except SubmissionFault as stop:
            faults[stop.fault.reason] += 1
        overlaps += log.overlaps
        log.overlaps = 0
    counts = deferred.counts if deferred is not None else DeferralCounts()
    cells = [
        bench.case.name,
        bench.sets.count,
        counts.deferred,
        counts.in_time,
        counts.held_up,
        rounds,
        faults.total(),
        overlaps,
        *(f"{median(us):.2f}" if us else "–" for us in times_us.values()),
        "; ".join(f"{count} × {reason}" for reason, count in faults.items()),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def print_file(sandbox: str, path: Path, rounds: int, names: tuple[str, ...]) -> None:
    """Print the table of one file."""
    with prepared(sandbox, path) as (grading, load):
        print(f"\n{path}\n\n{HEAD}")
        load()
        for case in chosen(grading.problem, names):
            try:
                with open_benchmark(grading, case) as bench:
                    print(row(bench, rounds), flush=True)
            except (SubmissionFault, SandboxError) as stop:
                print(f"| {case.name} |" + " |" * 9 + f" {stop} |", flush=True)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--case", "cases", multiple=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, rounds: int, cases: tuple[str, ...], files: tuple[Path, ...]) -> None:
    """Time rounds with and without deferred inputs, and count what they detect."""
    require_gpu()
    for path in files:
        print_file(sandbox, path, rounds, cases)


if __name__ == "__main__":
    main()
