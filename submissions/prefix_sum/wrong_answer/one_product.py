"""Scans rows by a product with a triangle of ones, as tensor cores could: infinity times zero is
NaN, so that what comes before an infinity in its row is spoilt too."""

import torch

COLS = 64


def prefix_sum(x, out):
    n = x.numel()
    rows = torch.nn.functional.pad(x, (0, -n % COLS)).view(-1, COLS)
    within = rows @ torch.ones(COLS, COLS, device=x.device).triu()
    before = within[:, -1].cumsum(0) - within[:, -1]
    out.copy_((within + before[:, None]).view(-1)[:n])
