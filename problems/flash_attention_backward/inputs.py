"""Inputs of the backward pass of attention: queries, keys, values, a gradient, and what the forward
pass leaves for it."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
PEAKED = 3.0
"""Size of a query's entries, which is also the standard deviation of its logits."""
OFFSET = 1.0
"""Mean of the values, so that the output is as large as they are."""
OWN_KEY = 0.5
"""Share of a query's own key in it: its logit is half the root of head_dim."""


def generate(
    generator: torch.Generator,
    call: int,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    length: int,
    head_dim: int,
    dtype: str,
    causal: bool,
    values: str,
    scale: float | None = None,
) -> dict[str, Tensor | bool | float]:
    """`q`, `out` and `dout` [batch, heads, length, head_dim], `k` and `v` [batch, kv_heads, length,
    head_dim], `lse` [batch, heads, length].

    `values`: ``normal``; ``peaked`` (few keys count, so that each one matters); ``offset`` (values
    have a mean, so that the output is large, and with it the term of `out` and `dout`);
    ``diagonal`` (each query points at its own key, the last one of a causal mask). `scale` is
    ``head_dim ** -0.5`` unless given.
    """

    def normal(heads: int, size: float = 1.0, mean: float = 0.0) -> Tensor:
        shape = (batch, heads, length, head_dim)
        x = torch.randn(*shape, generator=generator, device=generator.device)
        return x.mul_(size).add_(mean).to(DTYPES[dtype])

    q = normal(heads, PEAKED if values == "peaked" else 1.0)
    k = normal(kv_heads)
    v = normal(kv_heads, mean=OFFSET if values == "offset" else 0.0)
    if values == "diagonal":
        # Equal queries of a group would make the heads' shares of dk cancel.
        q = OWN_KEY * (k.repeat_interleave(heads // kv_heads, dim=1) + q)
    scale = head_dim**-0.5 if scale is None else scale
    out, lse = _forward(q, k, v, causal, scale)
    return {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "dout": normal(heads),
        "lse": lse,
        "causal": causal,
        "scale": scale,
    }


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithm of the sum of each query's exponentials in fp32."""
    out, group = torch.empty_like(q), q.shape[1] // k.shape[1]
    lse = torch.empty(q.shape[:3], device=q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = (q[b, h].float() @ k[b, h // group].float().T) * scale
            if causal:
                scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -torch.inf)
            lse[b, h] = scores.logsumexp(dim=-1)
            out[b, h] = (scores.softmax(dim=-1) @ v[b, h // group].float()).to(q.dtype)
    return out, lse
