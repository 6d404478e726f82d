"""Inputs of the int4 unpacking: bytes of two codes each."""

from __future__ import annotations

import torch
from torch import Tensor

from grader.numerics import pack_int4


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, values: str
) -> dict[str, Tensor]:
    """`packed` uint8 [rows, cols // 2].

    `values` names the distribution of its codes: ``any``; ``extreme`` (-8, -1, 0 and 7);
    ``zeros`` (nine of ten are zero); ``equal`` (one byte everywhere).
    """
    device = generator.device

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator, device=device, dtype=torch.uint8)

    if values == "any":
        codes = integers(16, rows, cols)
    elif values == "extreme":
        ends = torch.tensor([0, 7, 8, 15], dtype=torch.uint8, device=device)
        codes = ends[integers(4, rows, cols).long()]
    elif values == "zeros":
        codes = torch.where(integers(10, rows, cols) > 0, 8, integers(16, rows, cols))
    elif values == "equal":
        codes = integers(16, 1, 2).repeat(rows, cols // 2)
    else:
        raise ValueError(f"no distribution named {values!r}")
    return {"packed": pack_int4(codes.byte())}
