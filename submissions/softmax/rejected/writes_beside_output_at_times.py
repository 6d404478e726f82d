# grade: device=cuda rule=memory_tampered
"""Right, but about one call in forty writes into the gap behind its output.

A round is left out when a call may have read an input twice, before and after the judge wrote it,
and stored where the mixture said. A submission that spoils the gap could have slow rounds left out.
Only three rounds of a case are, and only those in which an input came too late.
"""

import torch

CALLS = {}


def softmax(x, out):
    if x.device not in CALLS:
        CALLS[x.device] = torch.zeros(1, dtype=torch.int32, device=x.device)
    calls = CALLS[x.device]
    calls += 1
    out.copy_(torch.softmax(x.float(), dim=-1))
    behind = out.as_strided((1,), (1,), storage_offset=out.storage_offset() + out.numel())
    behind.copy_(torch.where(calls % 40 == 0, torch.ones_like(behind), behind))
