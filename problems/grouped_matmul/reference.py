"""Groups of rows times a matrix each, and what a PyTorch user writes for it."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    """The first ``sizes[0]`` rows of `x` [tokens, k] times ``w[0]`` [k, n], the next ``sizes[1]``
    rows times ``w[1]``, and so on; gives [tokens, n]."""
    groups = x.split(sizes.tolist())
    return torch.cat([rows @ matrix for rows, matrix in zip(groups, w, strict=True)])


def eager(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    """The yardstick: a product for each expert that has tokens, once the host knows the sizes."""
    groups = zip(x.split(sizes.tolist()), w, strict=True)
    return torch.cat([rows @ matrix for rows, matrix in groups if len(rows)])
