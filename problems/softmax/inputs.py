"""Inputs of the softmax problem: one matrix of logits, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] of `dtype`; `values` names the distribution, one of `DISTRIBUTIONS`."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    return {"x": DISTRIBUTIONS[values](x, generator).to(DTYPES[dtype])}


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


def _large(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rows whose largest logit is far beyond 88, where exp overflows fp32."""
    return x.mul_(45)


def _shifted_up(x: Tensor, generator: torch.Generator) -> Tensor:
    """Ordinary logits around 1000: the shift must cancel exactly."""
    return x.add_(1000)


def _shifted_down(x: Tensor, generator: torch.Generator) -> Tensor:
    """Ordinary logits around -1000: without the shift every exp is zero."""
    return x.sub_(1000)


def _equal(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every other row holds one value throughout; the rest are ordinary, so that 1/N is wrong."""
    x[::2] = x[::2, :1] * 10
    return x


def _one_hot(x: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros and one peak a row, of another height in every row."""
    rows, cols = x.shape
    device = x.device
    peak = torch.randint(cols, (rows, 1), generator=generator, device=device)
    height = torch.rand(rows, 1, generator=generator, device=device) * 12 + 1
    return x.zero_().scatter_(1, peak, height)


def _masked(x: Tensor, generator: torch.Generator) -> Tensor:
    """A third of the entries are -inf; one row has a single entry left, one has none (NaN)."""
    hidden = torch.rand(x.shape, generator=generator, device=x.device) < 0.3
    hidden[:, 0] = False
    x.masked_fill_(hidden, -torch.inf)
    x[-1, 1:] = -torch.inf
    x[x.shape[0] // 2] = -torch.inf
    return x


def _tiny(x: Tensor, generator: torch.Generator) -> Tensor:
    """A third ordinary, a third denormal, a third so low that its probability is denormal."""
    x[:, 1::3] *= 1e-40
    x[:, 2::3] -= 92
    return x


DISTRIBUTIONS = {
    "normal": _normal,
    "large": _large,
    "shifted_up": _shifted_up,
    "shifted_down": _shifted_down,
    "equal": _equal,
    "one_hot": _one_hot,
    "masked": _masked,
    "tiny": _tiny,
}
