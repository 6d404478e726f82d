"""Inputs of the grouped matmul: tokens, a matrix for each expert, and the sizes of the groups."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
STEP = 16
"""Terms that cancel the next as many: the depth of one tensor core instruction."""
STEEP = 1.5
"""Size of a weight of `cancelling`. Sixteen terms then add up to about 15."""
MOST_CANCELLING = 2048
"""Terms that may cancel: tensor cores cut sums off instead of rounding them, so that the errors of
more steps add up to what a result's rounding is."""
MOST_OCTAVES = 2


def generate(
    generator: torch.Generator,
    call: int,
    *,
    experts: int,
    active: int,
    tokens: int,
    k: int,
    n: int,
    dtype: str,
    routing: str,
    values: str,
) -> dict[str, Tensor]:
    """`x` [tokens, k] and `w` [experts, k, n] of `dtype`, `sizes` int32 [experts], of which
    `active` are not zero.

    Outputs have a size of about 1. `routing` is ``even``; ``uneven`` (the share of an expert falls
    with its rank); or ``crowded`` (all experts but one have a single token). `values` is
    ``normal``; ``uneven`` (experts and tokens differ by powers of two); or ``cancelling`` (16 terms
    of k are large and positive, the next 16 nearly take them back).
    """
    device = generator.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    sizes = _sizes(generator, experts, active, tokens, routing)
    x, w = normal(tokens, k), normal(experts, k, n) / k**0.5
    if values == "uneven":
        for tensor in (x, w):
            octaves = torch.randint(
                -MOST_OCTAVES,
                MOST_OCTAVES + 1,
                (len(tensor),),
                generator=generator,
                device=device,
            )
            tensor *= (2.0**octaves).view(-1, *[1] * (tensor.dim() - 1))
    elif values == "cancelling":
        x, w = _cancelling(x, w, DTYPES[dtype])
    elif values != "normal":
        raise ValueError(f"no distribution named {values!r}")
    return {"x": x.to(DTYPES[dtype]), "w": w.to(DTYPES[dtype]), "sizes": sizes}


def _sizes(
    generator: torch.Generator, experts: int, active: int, tokens: int, routing: str
) -> Tensor:
    """Every active expert has one token, and some have the rest."""
    device = generator.device
    which = torch.randperm(experts, generator=generator, device=device)[:active]
    rest = tokens - active
    counts = torch.ones(active, dtype=torch.int64, device=device)
    if routing == "even":
        counts += rest // active
        counts[: rest % active] += 1
    elif routing == "uneven":
        share = 1 / torch.arange(1, active + 1, device=device)
        picked = torch.multinomial(share, max(rest, 1), replacement=True, generator=generator)
        counts += torch.bincount(picked[:rest], minlength=active)
    elif routing == "crowded":
        counts[0] += rest
    else:
        raise ValueError(f"no routing named {routing!r}")
    sizes = torch.zeros(experts, dtype=torch.int64, device=device)
    return sizes.scatter_(0, which, counts).int()


def _cancelling(x: Tensor, w: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k = x.shape[1]
    size = min(k - k % (2 * STEP), MOST_CANCELLING)
    first, second = x[:, :size].unflatten(1, (-1, 2, STEP)).unbind(2)
    large = first.abs().to(dtype)
    small = second / (STEEP * (max(size, 2) / 2) ** 0.5)
    pairs = torch.stack((large, small - large), dim=2).flatten(1)
    weights = STEEP * k**0.5 * w[:, :size].abs().unflatten(1, (-1, 2, STEP))[:, :, :1]
    weights = weights.expand(-1, -1, 2, -1, -1).flatten(1, 3)
    return torch.cat((pairs, x[:, size:]), dim=1), torch.cat((weights, w[:, size:]), dim=1)
