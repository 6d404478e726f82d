"""Is the calibrated cost of a returned output's copy that of the copy in company of a kernel?

    python -m benchmarks.returned_copy [--repeats 5]

Needs a GPU; ends within a minute. A function that returns its output is followed by a copy into the
judge's memory. The judge calibrates the copy by its own kernel, a fill, and shows it beside the
time (`grader/judge/timing/returned_copy.py`). Here a softmax and a matmul stand for submissions:
each is timed alone and with the copy behind it, on sets that keep the L2 cache cold. The columns of
the copy should agree, and the spread over the repeats says how far they can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import click
import torch

from benchmarks.gpu import require_gpu
from grader import stats
from grader.judge.gpu.lock import gpu_lock
from grader.judge.timing.baselines import median_us
from grader.judge.timing.plan import POLICY
from grader.judge.timing.returned_copy import returned_copy_us

Kernel = Callable[[torch.Tensor, torch.Tensor], object]
CASES: list[tuple[str, Kernel, tuple[int, int], torch.dtype]] = [
    ("softmax", lambda x, y: torch.softmax(x, 1, out=y), (64, 64), torch.float32),
    ("softmax", lambda x, y: torch.softmax(x, 1, out=y), (1024, 1024), torch.float32),
    ("softmax", lambda x, y: torch.softmax(x, 1, out=y), (4096, 4096), torch.float32),
    ("softmax", lambda x, y: torch.softmax(x, 1, out=y), (16384, 4096), torch.bfloat16),
    ("matmul", lambda x, y: torch.matmul(x, x, out=y), (1024, 1024), torch.bfloat16),
    ("matmul", lambda x, y: torch.matmul(x, x, out=y), (4096, 4096), torch.bfloat16),
]
HEAD = """\
| kernel | shape | dtype | kernel alone µs | copy in company µs | spread | calibrated µs | spread |
|---|---|---|---|---|---|---|---|"""


def row(name: str, kernel: Kernel, shape: tuple[int, int], dtype: torch.dtype, repeats: int) -> str:
    """One line of the table."""
    one = torch.randn(shape, device="cuda").to(dtype)
    cold_bytes = POLICY.cold_l2 * torch.cuda.get_device_properties().L2_cache_size
    count = min(256, max(4, math.ceil(cold_bytes / (3 * one.nbytes)) + 1))
    sets = [(one.clone(), torch.empty_like(one), torch.empty_like(one)) for _ in range(count)]

    def with_copy(x: torch.Tensor, y: torch.Tensor, lent: torch.Tensor) -> None:
        kernel(x, y)
        lent.copy_(y)

    alone, company, calibrated = [], [], []
    for _ in range(repeats):
        alone.append(median_us([partial(kernel, x, y) for x, y, _ in sets], "cuda"))
        both = median_us([partial(with_copy, *one_set) for one_set in sets], "cuda")
        company.append(both - alone[-1])
        calibrated.append(returned_copy_us({"y": one}, "cuda"))
    shown = f"{shape[0]} × {shape[1]} | {str(dtype).removeprefix('torch.')}"
    cells = [f"{stats.median(alone):.2f}"]
    for times in (company, calibrated):
        cells += [f"{stats.median(times):.2f}", f"{max(times) - min(times):.2f}"]
    return f"| {name} | {shown} | {' | '.join(cells)} |"


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Print the table."""
    require_gpu()
    with gpu_lock("cuda"):
        print(HEAD)
        for case in CASES:
            print(row(*case, repeats), flush=True)


if __name__ == "__main__":
    main()
