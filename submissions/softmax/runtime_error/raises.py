"""Raises an exception when it is called."""


def softmax(x, out):
    raise ValueError("rows of this width are not supported yet")
