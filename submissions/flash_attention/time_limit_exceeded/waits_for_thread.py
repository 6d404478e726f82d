"""Waits for a thread that waits for the call to end: a deadlock."""

import threading


def flash_attention(q, k, v, out, causal, scale):
    returned = threading.Event()
    helper = threading.Thread(target=returned.wait, daemon=True)
    helper.start()
    helper.join()
    returned.set()
