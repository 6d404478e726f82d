# grade: rule=memory_tampered
"""A thread that outlives the call keeps overwriting the input."""

import threading
import time

import torch


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
    end = time.monotonic() + 0.5

    def flicker():
        while time.monotonic() < end:
            x.fill_(1.0)

    threading.Thread(target=flicker, daemon=True).start()
    time.sleep(0.02)
