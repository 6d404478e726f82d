"""Inputs of the int4 packing: signed codes, some of which must be saturated."""

from __future__ import annotations

import torch
from torch import Tensor


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, values: str
) -> dict[str, Tensor]:
    """`codes` int8 [rows, cols].

    `values` names the distribution: ``codes`` (-8 … 7); ``any`` (-128 … 127); ``extreme`` (-128,
    -9, -8, 7, 8 and 127); ``beyond`` (-11 … 10); ``equal`` (one number everywhere).
    """

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(
            low, high, shape, generator=generator, device=generator.device, dtype=torch.int8
        )

    if values == "codes":
        codes = integers(-8, 8, rows, cols)
    elif values == "any":
        codes = integers(-128, 128, rows, cols)
    elif values == "extreme":
        ends = torch.tensor([-128, -9, -8, 7, 8, 127], dtype=torch.int8, device=generator.device)
        codes = ends[integers(0, 6, rows, cols).long()]
    elif values == "beyond":
        codes = integers(-11, 11, rows, cols)
    elif values == "equal":
        codes = integers(-20, 20, 1, 1).expand(rows, cols).contiguous()
    else:
        raise ValueError(f"no distribution named {values!r}")
    return {"codes": codes}
