"""The maximum of each of k parts of a row: two of the best may lie in one part."""

import torch


def top_k(x, out):
    k = out.shape[1]
    parts = [part.amax(dim=1) for part in x.tensor_split(k, dim=1)]
    out.copy_(torch.stack(parts, dim=1).sort(dim=1, descending=True).values)
