"""The rotation as models write it: each element times its cosine, its partner times the sine."""

import torch


def rope(x, positions, cosines, sines, out):
    cos = cosines[positions].repeat(1, 2)[:, None]
    sin = sines[positions].repeat(1, 2)[:, None]
    first, second = x.chunk(2, dim=-1)
    out.copy_(x * cos + torch.cat([-second, first], dim=-1) * sin)
