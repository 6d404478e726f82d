"""Matmul with 2:4 sparse weights by PyTorch: compressed in the setup where the GPU's library takes
the shape, dense elsewhere."""

import torch

TILE = 64


def sparse24_matmul_setup(w):
    n, k = w.shape
    compresses = w.is_cuda and n % TILE == 0 and k % TILE == 0
    return torch.sparse.to_sparse_semi_structured(w) if compresses else w


def sparse24_matmul(x, w, out):
    if type(w) is torch.Tensor:
        torch.matmul(x, w.T, out=out)
        return
    rows = len(x)
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % TILE))
    out.copy_(torch.nn.functional.linear(padded, w)[:rows])
