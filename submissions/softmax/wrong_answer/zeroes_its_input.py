"""Zeroes its input before it uses it. A row of one element hides that, so not every test is wrong.

Two faults meet, and `wrong_answer` is the graver one, whichever test comes first; the reason tells
of the written input too.
"""

import torch


def softmax(x, out):
    x.zero_()
    out.copy_(torch.softmax(x.float(), dim=-1))
