"""Inputs of the attention problem: queries, keys and values in one of two memory layouts."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
QUERY_SIZE = {"normal": 1.0, "equal": 1.0, "diagonal": 1.0, "peaked": 3.0, "large": 60.0}
"""Size of a query's entries, which is also the standard deviation of its logits."""
OWN_KEY = 0.75


def generate(
    generator: torch.Generator,
    call: int,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    q_len: int,
    k_len: int,
    head_dim: int,
    dtype: str,
    causal: bool,
    layout: str,
    values: str,
    scale: float | None = None,
) -> dict[str, Tensor | bool | float]:
    """`q` [batch, heads, q_len, head_dim], `k` and `v` [batch, kv_heads, k_len, head_dim].

    `layout` is the order in memory: ``bhsd``, or ``bshd`` for strided views of [batch, length,
    heads, head_dim]. `values`: ``normal``; ``peaked`` (few keys count, so that each one matters);
    ``large`` (logits far beyond 88); ``equal`` (all keys of a head alike, so that the result is
    the mean of the values seen); ``diagonal`` (each query's own key is the last it may see).
    `scale` is ``head_dim ** -0.5`` unless given.
    """

    def normal(heads: int, length: int, size: float = 1.0) -> Tensor:
        order = (batch, heads, length) if layout == "bhsd" else (batch, length, heads)
        x = torch.randn(*order, head_dim, generator=generator, device=generator.device)
        x = x.mul_(size).to(DTYPES[dtype])
        return x if layout == "bhsd" else x.transpose(1, 2)

    q = normal(heads, q_len, QUERY_SIZE[values])
    k = normal(kv_heads, k_len)
    v = normal(kv_heads, k_len)
    if values == "equal":
        k.copy_(k[:, :, :1].clone())
    elif values == "diagonal":
        _point_at_last_key(q, k)
    return {
        "q": q,
        "k": k,
        "v": v,
        "causal": causal,
        "scale": head_dim**-0.5 if scale is None else scale,
    }


def _point_at_last_key(q: Tensor, k: Tensor) -> None:
    """Make query i a share of the key i + k_len - q_len, where there is one.

    Its logit is then about ``OWN_KEY * head_dim ** 0.5``: enough that a mask which is off by one
    shows, and so little that all other keys still count.
    """
    q_len, k_len = q.shape[2], k.shape[2]
    shared = min(q_len, k_len)
    own = k[:, :, k_len - shared :].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    q[:, :, q_len - shared :] = own * OWN_KEY
