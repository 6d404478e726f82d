"""What does the check of one call take on a GPU, by the kernel and by PyTorch's operations?

    python -m benchmarks.check_cost [--rows 16384] [--columns 8192]

Prints a Markdown table of medians, in milliseconds. Outputs are within their bounds, as most are.
"""

from __future__ import annotations

import time
from statistics import median
from unittest import mock

import click
import torch

from grader.judge.correctness.check import _Piece, check
from grader.judge.correctness.error_bound import ErrorBound
from grader.problem.spec import Tolerance

TOLERANCE = Tolerance(atol=1e-2, rtol=2e-2, rel_l2=1e-2, budget=4)
TIMES = 9


@click.command()
@click.option("--rows", default=16384, show_default=True)
@click.option("--columns", default=8192, show_default=True)
def main(rows: int, columns: int) -> None:
    """Check one output of each dtype by both."""
    click.echo("| dtype | elements | kernel, ms | PyTorch, ms |\n|---|---|---|---|")
    for dtype in (torch.float16, torch.float32):
        truth = torch.rand(rows, columns, dtype=torch.float64, device="cuda")
        out, eager = truth.to(dtype), (truth * (1 + 1e-7)).to(dtype)
        bound = ErrorBound(1e-6, truth, 1e-7, "rounding")

        def once() -> float:
            torch.cuda.synchronize()
            start_s = time.monotonic()
            assert check("out", out, truth, eager, TOLERANCE, None, bound).failure is None  # noqa: B023
            return (time.monotonic() - start_s) * 1e3

        once()
        by_kernel = median(once() for _ in range(TIMES))
        with mock.patch.object(_Piece, "fits_kernel", property(lambda piece: False)):
            once()
            by_torch = median(once() for _ in range(TIMES))
        name = str(dtype).removeprefix("torch.")
        click.echo(f"| {name} | {rows * columns:,} | {by_kernel:.2f} | {by_torch:.2f} |")


if __name__ == "__main__":
    main()
