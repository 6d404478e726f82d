"""Multiplies element by element in Python, which takes forever."""


def int4_matmul(a, b_packed, scales, out):
    rows, depth = a.shape
    for _ in range(1 << 40):
        for row in range(rows):
            for col in range(out.shape[1]):
                packed = b_packed[:, col // 2] >> 4 * (col % 2) & 0xF
                weights = (packed.double() - 8) * scales[:, col].double().repeat_interleave(128)
                total = sum(float(a[row, k]) * float(weights[k]) for k in range(depth))
                out[row, col] = total
