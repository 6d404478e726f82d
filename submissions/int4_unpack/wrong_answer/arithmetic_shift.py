"""Int4 unpacking of bytes taken as signed: the shift to the right repeats the highest bit."""

import torch


def int4_unpack(packed, out):
    signed = packed.view(torch.int8)
    out.copy_(torch.stack((signed & 0xF, signed >> 4), dim=-1).flatten(1) - 8)
