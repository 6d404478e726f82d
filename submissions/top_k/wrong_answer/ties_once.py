"""The largest different numbers: equal ones count once."""

import torch


def top_k(x, out):
    x = x.clone()
    for i in range(out.shape[1]):
        out[:, i] = x.amax(dim=1)
        x.masked_fill_(x == out[:, i : i + 1], -torch.inf)
