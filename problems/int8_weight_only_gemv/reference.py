"""A vector times int8 weights, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def reference(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    """``(w @ x) * scales`` of `w` [n, k] and `x` [k]; gives [n]."""
    return (w.to(x.dtype) @ x) * scales


def eager(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    """The yardstick: weights scaled in fp16, then one product."""
    return dequantise(w, scales) @ x


def dequantise(w: Tensor, scales: Tensor) -> Tensor:
    """Weights [n, k], rounded to the dtype of `scales`."""
    return w.to(scales.dtype) * scales[:, None]


def fp16_gemv(x: Tensor, w: Tensor, scales: Tensor) -> Callable[[], Tensor]:
    """What int8 is meant to beat: the same product with the weights kept in fp16."""
    weights = dequantise(w, scales)
    return lambda: weights @ x


PREPARED = {"fp16_gemv": fp16_gemv}
"""Calls that need a form of the inputs of their own, made outside of the time."""
