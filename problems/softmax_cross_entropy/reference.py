"""Cross-entropy of each row with its label, the gradient, and what a PyTorch user writes for it."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(logits: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Loss [rows] ``log(sum(exp(x))) - x[label]`` of each row of `logits` [rows, classes], and
    gradient [rows, classes] of the losses' sum times `scale`: ``(softmax(x) - onehot) * scale``."""
    largest = logits.amax(dim=-1, keepdim=True)
    weights = (logits - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    at = labels[:, None]
    loss = (total.log() + (largest - logits.gather(1, at)))[:, 0]
    grad = weights / total
    grad.scatter_(1, at, grad.gather(1, at) - 1)
    return loss, grad * scale


def eager(logits: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The yardstick: log_softmax, and what its gradient is."""
    at = labels[:, None]
    logarithms = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    loss = -logarithms.gather(1, at)[:, 0]
    grad = logarithms.exp()
    grad.scatter_add_(1, at, torch.full_like(grad[:, :1], -1.0))
    return loss, grad.mul_(scale).to(logits.dtype)
