"""Int8 matrix-vector product in Triton: each program has 16 rows and goes along k."""

import triton
import triton.language as tl


@triton.jit
def _rows(x, w, scales, out, n, k, ROWS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, k, STEP):
        col = start + tl.arange(0, STEP)
        inside = (row[:, None] < n) & (col[None, :] < k)
        at = row[:, None].to(tl.int64) * k + col[None, :]
        codes = tl.load(w + at, mask=inside, other=0).to(tl.float32)
        total += tl.sum(codes * tl.load(x + col, mask=col < k, other=0.0)[None, :], axis=1)
    scale = tl.load(scales + row, mask=row < n, other=0.0)
    tl.store(out + row, (total * scale).to(tl.float16), mask=row < n)


def int8_weight_only_gemv(x, w, scales, out):
    n, k = w.shape
    rows = triton.next_power_of_2(n) if x.device.type == "cpu" else 16
    _rows[(triton.cdiv(n, rows),)](x, w, scales, out, n, k, ROWS=rows, STEP=256)
