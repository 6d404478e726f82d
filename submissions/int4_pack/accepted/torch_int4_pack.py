"""Int4 packing by PyTorch's operators."""

import torch


def int4_pack(codes, out):
    biased = (codes.clamp(-8, 7) + 8).view(torch.uint8)
    torch.add(biased[:, 0::2], biased[:, 1::2], alpha=16, out=out)
