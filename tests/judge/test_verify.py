"""Parts of `grader/judge/verify.py` that the problems of this repository do not reach."""

from __future__ import annotations

import torch

from grader.judge.verify import Piece, _last_row, _rounding


def test_an_integer_is_off_by_nothing() -> None:
    truth = torch.tensor([3.0, -7.0], dtype=torch.float64)
    assert _rounding(truth, torch.int32).tolist() == [0, 0]
    assert (_rounding(truth, torch.float16) > 0).all()


def test_the_last_row_is_left_out_of_a_strided_output() -> None:
    """PyTorch may answer with a transposed view."""
    value = torch.arange(1.0, 25).reshape(2, 3, 4).transpose(1, 2)
    dropped = _last_row(Piece(value, value, None, None, None, last=True, listed=False))
    assert torch.equal(dropped[:, :-1], value[:, :-1])
    assert torch.equal(dropped[0], value[0])
    assert not dropped[-1, -1].any()
