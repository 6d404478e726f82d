# grade: device=cuda
"""Takes nearly all device memory while it is imported, so that the judge has none to lend.

That the judge then runs short is the hoarder's doing and no error of the judge.
"""

import torch

free, _ = torch.cuda.mem_get_info()
hoard = torch.empty(free - (256 << 20), dtype=torch.uint8, device="cuda")


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
