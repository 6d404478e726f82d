# grade: rule=work_outside_call
"""Returns at once; a thread fills `out` 50 ms later.

The judge copies the outputs when the call is done, and they are unwritten. It looks again a moment
later and sees them right, so it knows that the work was done outside the call.
"""

import threading
import time

import torch


def softmax(x, out):
    def later():
        time.sleep(0.05)
        out.copy_(torch.softmax(x.float(), dim=-1))

    threading.Thread(target=later).start()
