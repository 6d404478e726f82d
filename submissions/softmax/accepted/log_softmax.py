"""Softmax as the exponential of PyTorch's log_softmax, in fp32."""

import torch


def softmax(x, out):
    out.copy_(torch.log_softmax(x, dim=-1, dtype=torch.float32).exp_())
