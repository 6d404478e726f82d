"""Int8 matmul by PyTorch: its int8 product where it takes the shape, float64 elsewhere."""

import torch


def int8_dynamic_matmul(a, a_scales, b, b_scales, out):
    (m, k), n = a.shape, len(b)
    if a.is_cuda and m > 16 and k % 8 == 0 and n % 8 == 0:
        total = torch._int_mm(a, b.T)
    else:
        total = a.double() @ b.double().T
    out.copy_(total.float() * a_scales[:, None] * b_scales)
