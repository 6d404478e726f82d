"""The bias of the row instead of that of the column. Where there are more rows, it starts anew."""

import torch


def bias_gelu(x, bias, out):
    row = torch.arange(x.shape[0], device=x.device) % bias.numel()
    v = x.float() + bias.float()[row, None]
    out.copy_(torch.nn.functional.gelu(v, approximate="tanh"))
