"""Softmax by PyTorch that copies a number from the host in every call.

The number stands for a table of pointers or a temperature. Such a copy cannot be captured, so a
message starts its rounds. It also uses the copy engines between calls, while the judge reads the
outputs with the same engines.
"""

import torch


def softmax(x, out):
    temperature = torch.tensor(1.0, dtype=x.dtype).to(x.device)
    torch.softmax(x / temperature, dim=-1, out=out)
