"""Leaves out the blocks of k whose scales are the smaller half, as if they did not matter.

That is half of the work, with outputs of the right size. The relative error of rows and tiles is
far beyond what rounding explains.
"""

import torch

BLOCK = 128


def fp8_matmul(a, a_scales, b, b_scales, out):
    weight = a_scales.mean(0) * b_scales.mean(0)
    total = torch.zeros(out.shape, device=a.device)
    for block in weight.argsort(descending=True)[: -(-len(weight) // 2)].tolist():
        ks = slice(block * BLOCK, (block + 1) * BLOCK)
        column_scales = b_scales[:, block].repeat_interleave(BLOCK)[: len(b)]
        product = a[:, ks].float() @ b[:, ks].float().T
        total += product * a_scales[:, block, None] * column_scales
    out.copy_(total)
