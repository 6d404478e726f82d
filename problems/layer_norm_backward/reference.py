"""The gradients of LayerNorm, and what a PyTorch user writes for them."""

from __future__ import annotations

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor]


def reference(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    """Gradients of ``sum(dy * y)``, where ``y = (x - mean) * rstd * weight + bias``: for `x`
    [rows, cols], and for weight and bias [cols].

    `mean` and `rstd` [rows], one over the standard deviation, are those of the rows of `x`, as the
    forward pass has kept them.
    """
    normal = (x - mean[:, None]) * rstd[:, None]
    inner = dy * weight
    along = (inner * normal).mean(dim=-1, keepdim=True)
    dx = (inner - inner.mean(dim=-1, keepdim=True) - normal * along) * rstd[:, None]
    return dx, (dy * normal).sum(dim=0), dy.sum(dim=0)


def eager(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    """The yardstick: the operator that autograd calls. On a CPU it takes statistics in the dtype of
    `x` only, and computes in fp32 here."""
    kind = x.dtype if x.is_cuda else torch.float32
    bias = torch.empty_like(weight, dtype=kind)
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy.to(kind),
        x.to(kind),
        weight.shape,
        mean[:, None],
        rstd[:, None],
        weight.to(kind),
        bias,
        [True, True, True],
    )
    return dx.to(x.dtype), dweight.to(x.dtype), dbias.to(x.dtype)
