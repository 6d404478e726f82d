"""Never returns from its first call."""


def softmax(x, out):
    while True:
        pass
