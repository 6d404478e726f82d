"""Keeps the scores of all heads in fp64, again for every power of two of the batch."""

import torch


def flash_attention(q, k, v, out, causal, scale):
    group = q.shape[1] // k.shape[1]
    queries = q.double().cpu()
    keys = k.repeat_interleave(group, dim=1).double().cpu()
    kept = []
    while True:
        kept.append(torch.matmul(queries, keys.transpose(-1, -2)) * scale)
        queries = queries.repeat(1, 1, 2, 1)
