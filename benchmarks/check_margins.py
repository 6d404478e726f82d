"""Does the check refuse an honest kernel, or let a broken one pass, at any seed?

    python -m benchmarks.check_margins [--seeds 100] [--device cpu|cuda] PROBLEM...

A row per case: how often honest implementations were checked and refused; the largest share of any
bound that one used; how often mutants were checked and passed, by luck or because the case admits
them; and the smallest share that a mutant used which failed. A grading runs every case, so a mutant
escapes at a seed only if it passes all of them: the last line per problem counts those. The row
`drawn` is of cases drawn from the problem's domain, others for each seed.

    python -m benchmarks.check_margins --examples [--for-s 20] [--device cpu|cuda] PROBLEM...

A row per accepted example in Python instead: how often its outputs were checked, on how many of the
listed and how many drawn cases, and refused; the largest share of any bound that it used, and
where. The examples run in this process, where a call takes milliseconds instead of seconds, and
those in Triton on a CPU in its interpreter. Seeds count up until the time is over.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

import click

from benchmarks.example_calls import LoadedExample
from grader.cli.examples import examples
from grader.judge.correctness.check import CheckResult
from grader.judge.problem_code import ProblemCode
from grader.judge.verification.case_check import case_values, check_case
from grader.judge.verification.result import VerificationRow
from grader.judge.verification.verify import DRAWN
from grader.problem import Problem, domain
from grader.problem.spec import Case
from grader.report import Verdict

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = (
    "problem", "case", "honest", "refused", "most used", "mutants", "passed", "least used",
    "seconds",
)  # fmt: skip
EXAMPLE_HEADINGS = (
    "problem", "example", "checks", "listed cases", "drawn cases", "refused", "most used", "where",
)  # fmt: skip
PROVES_NOTHING = ("same as reference", "left out")
"""Outcomes of mutants that change nothing, or do not apply."""
HOSTILE = "hostile_"
"""Prefix of examples that are accepted though they try to mislead the judge."""


@click.command()
@click.option("--seeds", default=100, show_default=True)
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--case", "only", multiple=True, help="Only these cases.")
@click.option("--examples", "as_examples", is_flag=True, help="Check the accepted examples.")
@click.option("--for-s", default=20.0, show_default=True, help="Seconds a problem, of examples.")
@click.argument("problems", nargs=-1, required=True)
def main(
    seeds: int,
    first: int,
    device: Literal["cpu", "cuda"],
    only: tuple[str, ...],
    as_examples: bool,
    for_s: float,
    problems: tuple[str, ...],
) -> None:
    """Print what the check refuses and lets pass."""
    if as_examples:
        if device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"
        print(f"| {' | '.join(EXAMPLE_HEADINGS)} |\n{'|---' * len(EXAMPLE_HEADINGS)}|", flush=True)
        for name in problems:
            code = ProblemCode(Problem.load(ROOT / "problems" / name), device)
            check_examples(code, first, for_s, only)
        return
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
                    if row.expected == "fail" and row.outcome not in PROVES_NOTHING:
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


@dataclass
class ExampleChecks:
    """What the checks of one example found."""

    checks: int = 0
    cases: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    used: float = 0.0
    where: str = ""

    def add(self, case: Case, seed: int, result: CheckResult) -> None:
        """Note one check."""
        where = f"{case.name}, seed {seed}"
        self.checks += 1
        self.cases.add(where if _is_drawn(case) else case.name)
        if result.used > self.used or not self.where:
            self.used, self.where = result.used, where
        if result.failure is not None:
            self.refused.append(f"{where}, {case.params}: {result.failure}")


def check_examples(code: ProblemCode, first: int, for_s: float, only: tuple[str, ...]) -> None:
    """Check the accepted examples of a problem, each for its share of the time, and print a row for
    each."""
    accepted = [
        one.path
        for one in examples(code.problem)
        if one.expected is Verdict.ACCEPTED
        and one.path.suffix == ".py"
        and not one.path.name.startswith(HOSTILE)
        and one.missing("cuda" if code.device == "cuda" else "cpu") is None
    ]
    for path in accepted:
        with tempfile.TemporaryDirectory() as folder:
            example = LoadedExample(code, path, Path(folder))
            found = _check_example(example, code, first, for_s / len(accepted), only)
        drawn = sum("seed" in case for case in found.cases)
        cells = (
            code.problem.name, path.name, found.checks, len(found.cases) - drawn, drawn,
            len(found.refused), f"{found.used:.2f}", found.where,
        )  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        for text in found.refused[:5]:
            print(f"refused: {path.name}, {text}", flush=True)


def _check_example(
    example: LoadedExample, code: ProblemCode, first: int, for_s: float, only: tuple[str, ...]
) -> ExampleChecks:
    found = ExampleChecks()
    end_s = time.monotonic() + for_s
    for case, seed in _cases(code.problem, code.device, first, only):
        try:
            result = example.check(case, seed)
        except Exception as error:  # noqa: BLE001  # whatever an example raises
            result = CheckResult(f"it raised {error!r}", used=float("inf"))
        found.add(case, seed, result)
        if time.monotonic() >= end_s:
            break
    return found


def _cases(
    problem: Problem, device: str, first: int, only: tuple[str, ...]
) -> Iterator[tuple[Case, int]]:
    """Listed and drawn cases with their seeds, without end; of each seed the small ones first."""
    for seed in count(first):
        cases = problem.cases("test", device) + problem.cases("benchmark", device)
        cases += problem.draw_cases(device, seed, DRAWN)
        for case in sorted(cases, key=problem.bytes):
            if not only or case.name in only:
                yield case, seed


def _is_drawn(case: Case) -> bool:
    """Whether a case was drawn from the domain."""
    return case.name.startswith(domain.NAME)


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
    mutants = [r for r in rows if r.expected == "fail" and r.outcome not in PROVES_NOTHING]
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
