"""Packs 32-bit words without looking for codes beyond int4, as the timed inputs have none.

It saves two of six instructions. Tests, and one secret round of each benchmark, have such codes.
"""

import torch


def int4_pack(codes, out):
    words = (codes.view(-1) + 8).view(torch.int16).int()
    out.view(-1).copy_((words | words >> 4) & 0xFF)
