"""Rotates neighbours, elements 2i and 2i + 1: the pairs of GPT-J, not those of Llama."""

import torch


def rope(x, positions, cosines, sines, out):
    cos, sin = cosines[positions][:, None], sines[positions][:, None]
    first, second = x[..., ::2].float(), x[..., 1::2].float()
    rotated = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    out.copy_(rotated.flatten(-2))
