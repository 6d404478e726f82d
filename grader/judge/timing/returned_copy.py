"""What it costs a function that returns its outputs that they are copied into the judge's memory.

The report shows it beside the time, and never subtracts it: only the runner knows whether the copy
ran, and a submission can write the lent outputs itself and skip it (docs/threat-model.md).
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch

from grader.judge.problem_code import Values, listed
from grader.judge.timing.baselines import Call, median_us
from grader.judge.timing.plan import POLICY

MOST_PAIRS = 256
"""Copies of a timed round."""
LEAST_PAIRS = 4
LARGE_BYTES = 1 << 30
"""Outputs from this size on keep the cache cold by themselves, and are copied between one pair of
tensors: memory may be short."""


def returned_copy_us(outputs: Values, device: str) -> float:
    """Microseconds per call that copying tensors like `outputs` takes right after the kernels that
    have written what is copied; 0 if less than can be measured.

    outputs: name → a tensor as the judge lends it, or a list of tensors.
    """
    targets = list(itertools.chain.from_iterable(map(listed, outputs.values())))
    kernels, copies = [], []
    for _ in range(_pairs(sum(t.nbytes for t in targets), device)):
        lent = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in targets
        ]
        returned = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in targets]
        kernels.append(partial(_write, returned))
        copies.append(partial(_copy, lent, returned))
    with_copy = [partial(_both, *pair) for pair in zip(kernels, copies, strict=True)]
    return max(0.0, median_us(with_copy, device) - median_us(kernels, device))


def _pairs(nbytes: int, device: str) -> int:
    """How many copies keep the L2 cache as cold as the rounds of a submission do."""
    if nbytes >= LARGE_BYTES:
        return 1
    if device == "cpu":
        return LEAST_PAIRS
    cold_bytes = POLICY.cold_l2 * torch.cuda.get_device_properties().L2_cache_size
    return min(MOST_PAIRS, max(LEAST_PAIRS, math.ceil(cold_bytes / nbytes) + 1))


def _write(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.fill_(1)


def _copy(lent: list[torch.Tensor], returned: list[torch.Tensor]) -> None:
    for target, source in zip(lent, returned, strict=True):
        target.copy_(source)


def _both(kernel: Call, copy: Call) -> None:
    kernel()
    copy()
