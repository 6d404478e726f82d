# grade: rule=memory_tampered
"""Squares its input in place and copies it: right outputs, but the input is not its own."""


def square(x, out):
    out.copy_(x.mul_(x))
