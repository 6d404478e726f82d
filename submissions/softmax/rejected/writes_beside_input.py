# grade: rule=memory_tampered
"""Right, but it writes in front of its input, outside of its arguments."""

import torch


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
    before = x.as_strided((1,), (1,), storage_offset=x.storage_offset() - 1)
    before.fill_(1.0)
