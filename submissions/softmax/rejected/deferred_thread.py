# grade: rule=work_outside_call
"""Returns at once; a thread fills `out` 50 ms later.

The judge takes its private copy of the outputs when the call is done and finds them unwritten. It
looks again a moment later, sees them right, and knows when the work was done.
"""

import threading
import time

import torch


def softmax(x, out):
    def later():
        time.sleep(0.05)
        out.copy_(torch.softmax(x.float(), dim=-1))

    threading.Thread(target=later).start()
