"""Inputs of the cross-entropy: logits in one of several distributions, labels, and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator,
    call: int,
    *,
    rows: int,
    classes: int,
    dtype: str,
    values: str,
    label: str,
    scale: float,
) -> dict[str, Tensor | float]:
    """`logits` [rows, classes] of `dtype`, whose distribution `values` names; `labels` [rows],
    int64: ``random``, ``first``, ``last``, or the two ``ends`` in turn; and `scale`."""
    device = generator.device
    x = torch.randn(rows, classes, generator=generator, device=device)
    labels = torch.randint(classes, (rows,), generator=generator, device=device)
    if label == "ends":
        labels = torch.arange(rows, device=device) % 2 * (classes - 1)
    elif label != "random":
        labels.fill_(0 if label == "first" else classes - 1)
    at = labels[:, None]
    if values == "large":  # far beyond 88, where exp overflows fp32
        x *= 45
    elif values == "shifted_up":
        x += 1000
    elif values == "shifted_down":
        x -= 1000
    elif values == "equal":  # every other row holds one value
        x[1::2] = x[1::2, :1] * 10
    elif values == "certain":  # the label is far above the rest, or far below
        signs = 1 - 2 * (torch.arange(rows, device=device)[:, None] % 2)
        x.scatter_(1, at, signs * (10 + x.gather(1, at)))
    elif values == "masked":  # a third of the classes are never the answer
        hidden = torch.rand(x.shape, generator=generator, device=device) < 0.3
        hidden.scatter_(1, at, False)
        x.masked_fill_(hidden, -torch.inf)
    return {"logits": x.to(DTYPES[dtype]), "labels": labels, "scale": scale}
