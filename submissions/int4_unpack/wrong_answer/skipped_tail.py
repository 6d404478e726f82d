"""Int4 unpacking that handles whole packs of 8 bytes and forgets the tail of the list."""

import torch

PACK = 8


def int4_unpack(packed, out):
    whole = packed.numel() // PACK * PACK
    flat = packed.view(-1)[:whole]
    out.zero_()
    codes = torch.stack((flat & 0xF, flat >> 4), dim=-1).flatten().to(torch.int8)
    out.view(-1)[: 2 * whole] = codes - 8
