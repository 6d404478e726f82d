"""Unscaled gradients, their global norm and an overflow flag, and what PyTorch users write for
it."""

from __future__ import annotations

import torch
from torch import Tensor

Outputs = tuple[list[Tensor], Tensor, Tensor]


def reference(grads: list[Tensor], inv_scale: float) -> Outputs:
    """``grads * inv_scale``; the L2 norm [1] of all of these together; and, int32 [1], whether any
    is infinite or NaN."""
    unscaled = [grad * inv_scale for grad in grads]
    every = torch.cat(unscaled)
    norm = every.square().sum().sqrt().reshape(1)
    return unscaled, norm, (~every.isfinite()).any().int().reshape(1)


def eager(grads: list[Tensor], inv_scale: float) -> Outputs:
    """The yardstick: horizontal `torch._foreach` operations. Gradients whose norm is finite are."""
    unscaled = torch._foreach_mul(grads, inv_scale)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(unscaled))).reshape(1)
    return list(unscaled), norm, (~norm.isfinite()).int()
