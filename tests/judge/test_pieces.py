"""Tensors are cut alike, in order and completely."""

from __future__ import annotations

import pytest
import torch

from grader.judge import pieces as module
from grader.judge.pieces import pieces


@pytest.mark.parametrize("shape", [(7, 5), (35,), (1,), (), (0, 3)], ids=str)
def test_pieces_are_all_of_the_tensors(shape: tuple[int, ...]) -> None:
    first = torch.randn(shape)
    second = (first * 2).bool()
    found = list(pieces(first, second, elements=4))
    assert all(len(a) == len(b) <= 4 for a, b in found)
    assert torch.equal(torch.cat([a for a, _ in found]), first.flatten())
    assert torch.equal(torch.cat([b for _, b in found]), second.flatten())


def test_pieces_of_a_contiguous_tensor_are_views() -> None:
    tensor = torch.zeros(3, 5)
    for (piece,) in pieces(tensor, elements=4):
        piece.fill_(1)
    assert bool(tensor.all())


def test_pieces_of_a_strided_tensor_are_in_its_order() -> None:
    tensor = torch.arange(15).view(3, 5).t()
    (first, _) = (piece for (piece,) in pieces(tensor, elements=8))
    assert first.tolist() == [0, 5, 10, 1, 6, 11, 2, 7]


def test_most_tensors_are_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(10)
    assert len(list(pieces(tensor))) == 1
    monkeypatch.setattr(module, "MOST_ELEMENTS", 9)
    assert len(list(pieces(tensor))) == 2


def test_tensors_of_several_sizes_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(pieces(torch.zeros(3), torch.zeros(5), elements=2))
