"""Prints its tiles in an endless loop."""


def int4_matmul(a, b_packed, scales, out):
    tile = " ".join(f"{byte:02x}" for byte in b_packed.flatten()[:4096].tolist())
    while True:
        print((tile + "\n") * (1 + (1 << 16) // len(tile)))
