# grade: device=cuda rule=work_outside_call
"""Works on a separate stream after a long wait, and never joins it.

The stream that the runner waits for is idle, so "done" comes first; the outputs come 20 ms later.
"""

import torch

side = torch.cuda.Stream()


def softmax(x, out):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(40_000_000)
        torch.softmax(x, dim=-1, out=out)
