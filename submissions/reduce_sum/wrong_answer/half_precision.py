"""Adds in fp16: a sum of 2048 does not grow by 1 any more."""

import torch


def reduce_sum(x, out):
    out.copy_(torch.cumsum(x.half(), dim=-1)[:, -1])
