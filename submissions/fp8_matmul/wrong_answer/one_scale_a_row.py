"""Fp8 matmul that uses the scale of a row's first block for the whole row."""

BLOCK = 128


def fp8_matmul(a, a_scales, b, b_scales, out):
    column_scales = b_scales[:, 0].repeat_interleave(BLOCK)[: len(b)]
    out.copy_((a.float() @ b.float().T) * a_scales[:, :1] * column_scales)
