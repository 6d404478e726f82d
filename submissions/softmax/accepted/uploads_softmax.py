"""Softmax by PyTorch whose every call brings a number from the host, as a table of pointers or a
temperature might be.

Such a copy cannot be captured, so its rounds are started by a message; and it uses the GPU's copy
engines between any two calls, while the judge looks on by the same engines.
"""

import torch


def softmax(x, out):
    temperature = torch.tensor(1.0, dtype=x.dtype).to(x.device)
    torch.softmax(x / temperature, dim=-1, out=out)
