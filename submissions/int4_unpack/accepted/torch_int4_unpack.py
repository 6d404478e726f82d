"""Int4 unpacking by PyTorch's operators, one for each nibble."""

import torch


def int4_unpack(packed, out):
    out[:, 0::2] = (packed & 0xF).view(torch.int8) - 8
    out[:, 1::2] = (packed >> 4).view(torch.int8) - 8
