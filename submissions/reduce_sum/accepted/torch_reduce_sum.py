"""Row sums by PyTorch's own operator, in fp32, straight into `out`."""

import torch


def reduce_sum(x, out):
    torch.sum(x, dim=-1, dtype=torch.float32, out=out)
