# grade: device=cuda
"""Allocates nearly all device memory while it is imported, so that the judge has none to lend.

The judge then runs out of memory through the submission's fault, which is not a judge error.
"""

import torch

free, _ = torch.cuda.mem_get_info()
hoard = torch.empty(free - (256 << 20), dtype=torch.uint8, device="cuda")


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
