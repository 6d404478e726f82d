"""Cuts off what is too large for the dtype instead of giving infinity."""

import torch


def square(x, out):
    most = torch.finfo(x.dtype).max
    out.copy_((x.double() * x.double()).clamp(max=most))
