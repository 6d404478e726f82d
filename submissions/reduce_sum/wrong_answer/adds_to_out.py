"""Adds to what `out` holds when the call begins, as atomics do: it is not zero."""


def reduce_sum(x, out):
    out.add_(x.float().sum(dim=-1))
