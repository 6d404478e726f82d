"""Int4 unpacking that takes a nibble for two's complement, instead of a code plus 8."""

import torch


def int4_unpack(packed, out):
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1).to(torch.int8)
    out.copy_(torch.where(codes > 7, codes - 16, codes))
