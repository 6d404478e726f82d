"""What the copy of returned outputs costs: the difference that it makes after the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from grader.judge.timing import returned_copy
from grader.judge.timing.baselines import Call
from grader.judge.timing.returned_copy import returned_copy_us


def measured(
    monkeypatch: pytest.MonkeyPatch, with_copy_us: float, without_us: float
) -> list[Sequence[Call]]:
    """Have the rounds take these times. Returns the calls of each round."""
    rounds: list[Sequence[Call]] = []

    def median_us(calls: Sequence[Call], device: str) -> float:
        rounds.append(calls)
        return with_copy_us if len(rounds) == 1 else without_us

    monkeypatch.setattr(returned_copy, "median_us", median_us)
    return rounds


def test_it_is_the_difference_that_the_copies_make(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []
    copy = returned_copy._copy

    def noted(lent: list[torch.Tensor], returned: list[torch.Tensor]) -> None:
        copy(lent, returned)
        assert all(map(torch.equal, lent, returned))
        copied.extend(
            (tuple(a.shape), a.stride(), b.stride()) for a, b in zip(lent, returned, strict=True)
        )

    monkeypatch.setattr(returned_copy, "_copy", noted)
    rounds = measured(monkeypatch, 10.0, 7.5)
    transposed = torch.zeros(5, 3, dtype=torch.bfloat16).t()
    outputs = {"y": transposed, "states": [torch.zeros(2), torch.zeros(4, dtype=torch.int32)]}
    assert returned_copy_us(outputs, "cpu") == 2.5
    assert len(rounds[0]) == len(rounds[1]) == returned_copy.LEAST_PAIRS
    for call in rounds[1]:
        call()
    assert not copied
    for call in rounds[0]:
        call()
    # What is returned is packed; the lent memory has the problem's strides.
    assert copied[:3] == [((3, 5), (1, 3), (5, 1)), ((2,), (1,), (1,)), ((4,), (1,), (1,))]
    assert len(copied) == 3 * returned_copy.LEAST_PAIRS


def test_large_outputs_are_copied_between_one_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = measured(monkeypatch, 10.0, 7.5)
    monkeypatch.setattr(returned_copy, "LARGE_BYTES", 32)
    returned_copy_us({"y": torch.zeros(8)}, "cpu")
    assert len(rounds[0]) == 1


def test_noise_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, 7.0, 7.5)
    assert returned_copy_us({"y": torch.zeros(8)}, "cpu") == 0.0


@pytest.mark.cuda
def test_a_copy_takes_at_least_what_its_bytes_do() -> None:
    y = torch.zeros(1 << 26, device="cuda")
    copy_us = returned_copy_us({"y": y}, "cuda")
    # 512 MiB are read and written, faster than which no GPU is; a slow one takes 1 ms.
    assert 2 * y.nbytes / 10e12 * 1e6 < copy_us < 5000
