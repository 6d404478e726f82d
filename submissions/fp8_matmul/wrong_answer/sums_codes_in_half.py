"""Fp8 matmul whose blocks are summed in fp16, where 448 times 448 is infinite."""

import torch

BLOCK, STEP = 128, 32


def fp8_matmul(a, a_scales, b, b_scales, out):
    total = torch.zeros(out.shape, device=a.device)
    for start in range(0, a.shape[1], BLOCK):
        block = start // BLOCK
        product = torch.zeros(out.shape, dtype=torch.float16, device=a.device)
        for k in range(start, start + BLOCK, STEP):
            product += (a[:, k : k + STEP].float() @ b[:, k : k + STEP].float().T).half()
        column_scales = b_scales[:, block].repeat_interleave(BLOCK)[: len(b)]
        total += product.float() * a_scales[:, block, None] * column_scales
    out.copy_(total)
