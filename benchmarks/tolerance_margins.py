"""How much of the check's bounds does plain PyTorch use, over many seeds?

    python -m benchmarks.tolerance_margins [--seeds 100] [--device cpu|cuda] PROBLEM...

A row per test case has the largest share of each bound that PyTorch's error used. At a share near
1, an honest kernel would sooner or later be rejected by bad luck.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from grader.judge.correctness.check import check, tolerance_of
from grader.judge.problem_code import ProblemCode, seed_for
from grader.problem import Problem

ROOT = Path(__file__).resolve().parent.parent


@click.command()
@click.option("--seeds", default=100, show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.argument("problems", nargs=-1, required=True)
def main(seeds: int, device: Literal["cpu", "cuda"], problems: tuple[str, ...]) -> None:
    """Print the shares of the bounds that plain PyTorch uses."""
    print(
        "| problem | case | seeds | failed | rel L2 | worst slice | budget |\n" + "|---" * 7 + "|"
    )
    for name in problems:
        code = ProblemCode(Problem.load(ROOT / "problems" / name), device)
        for case in code.problem.cases("test", device):
            failed, whole, worst, budget = 0, 0.0, 0.0, 0.0
            for number in range(seeds):
                inputs = code.inputs(case, seed_for(number, case.name))
                truth, eager = code.run_reference(case, inputs), code.run_eager(case, inputs)
                for argument in code.written:
                    bounds = tolerance_of(code.problem, argument, case)
                    initial = inputs[argument.name] if argument.role == "inout" else None
                    output, right = eager[argument.name], truth[argument.name]
                    found = check(argument.name, output, right, output, bounds, initial)
                    failed += found.failure is not None
                    whole = max(whole, (found.rel_l2 or 0) / bounds.rel_l2)
                    worst = max(worst, (found.worst_slice_rel_l2 or 0) / bounds.rel_l2)
                    budget = max(budget, found.budget_used or 0)
            cells = [name, case.name, seeds, failed, f"{whole:.2f}", f"{worst:.2f}"]
            print("|", *(f"{cell} |" for cell in cells), f"{budget:.2f} |", flush=True)


if __name__ == "__main__":
    main()
