"""All zeros, which an absolute tolerance alone lets pass on wide rows."""


def softmax(x, out):
    out.zero_()
