"""Halves the problem forever: too deep a recursion."""


def int4_matmul(a, b_packed, scales, out):
    middle = max(1, out.shape[0] // 2)
    int4_matmul(a[:middle], b_packed, scales, out[:middle])
