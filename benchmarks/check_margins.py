"""Does the check refuse an honest kernel, or let a broken one pass, at any seed?

    python -m benchmarks.check_margins [--seeds 100] [--device cpu|cuda] PROBLEM...

A row per case: how often honest implementations were checked and refused; the largest share of any
bound that one used; how often mutants were checked and passed, by luck or because the case admits
them; and the smallest share that a mutant used which failed. A grading runs every case, so a mutant
escapes at a seed only if it passes all of them: the last line per problem counts those. The row
`drawn` is of cases drawn from the problem's domain, others for each seed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Literal

import click

from grader.judge.problem_code import ProblemCode
from grader.judge.verification.case_check import case_values, check_case
from grader.judge.verification.result import VerificationRow
from grader.judge.verification.verify import DRAWN
from grader.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = (
    "problem", "case", "honest", "refused", "most used", "mutants", "passed", "least used",
    "seconds",
)  # fmt: skip


@click.command()
@click.option("--seeds", default=100, show_default=True)
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--case", "only", multiple=True, help="Only these cases.")
@click.argument("problems", nargs=-1, required=True)
def main(
    seeds: int,
    first: int,
    device: Literal["cpu", "cuda"],
    only: tuple[str, ...],
    problems: tuple[str, ...],
) -> None:
    """Print what the check refuses and lets pass."""
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|", flush=True)
    for name in problems:
        code = ProblemCode(Problem.load(ROOT / "problems" / name), device)
        caught: dict[tuple[str, int], bool] = defaultdict(bool)
        for case in code.problem.cases("test", device) + code.problem.cases("benchmark", device):
            if only and case.name not in only:
                continue
            start = time.monotonic()
            rows: list[VerificationRow] = []
            for seed in range(first, first + seeds):
                data = case_values(code, case, seed)
                found = list(check_case(code, data, {"eager": code.eager}))
                for row in found:
                    if row.expected == "fail" and row.outcome != "same as reference":
                        caught[row.name, seed] |= row.outcome == "failed"
                rows += found
            _print_case(name, case.name, rows, time.monotonic() - start)
        if not only:
            start = time.monotonic()
            rows = [row for seed in range(first, first + seeds) for row in _drawn(code, seed)]
            if rows:
                _print_case(name, "drawn", rows, time.monotonic() - start)
        escaped = [f"{mutant} (seed {seed})" for (mutant, seed), was in caught.items() if not was]
        print(f"{name}: {len(caught)} gradings of mutants, {len(escaped)} escaped", *escaped[:20])


def _drawn(code: ProblemCode, seed: int) -> list[VerificationRow]:
    """Honest implementations and mutants on the cases that a grading with this seed may draw."""
    rows: list[VerificationRow] = []
    for case in code.problem.draw_cases(code.device, seed, DRAWN):
        data = case_values(code, case, seed)
        rows += check_case(code, data, {"eager": code.eager}, is_drawn=True)
    return rows


def _print_case(problem: str, case: str, rows: list[VerificationRow], elapsed_s: float) -> None:
    honest = [row for row in rows if row.expected == "pass"]
    refused = [row for row in honest if not row.ok]
    mutants = [r for r in rows if r.expected == "fail" and r.outcome != "same as reference"]
    failed = [row.used for row in mutants if row.outcome == "failed"]
    cells = (
        problem, case, len(honest), len(refused), f"{max(row.used for row in honest):.2f}",
        len(mutants), len(mutants) - len(failed), f"{min(failed, default=0):.2f}",
        f"{elapsed_s:.0f}",
    )  # fmt: skip
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    for row in refused[:5]:
        print(f"refused: {row.name}, {row.case}: {row.detail}", flush=True)


if __name__ == "__main__":
    main()
