"""RMSNorm by PyTorch's own operator."""

import torch


def rms_norm(x, weight, out, eps):
    out.copy_(torch.nn.functional.rms_norm(x, weight.shape, weight, eps))
