"""Prints forever."""

LINE = "still computing " * (1 << 12)


def softmax(x, out):
    while True:
        print(LINE)
