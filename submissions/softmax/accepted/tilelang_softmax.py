"""Softmax in TileLang: one block a row, and a running maximum and sum over tiles of 2048."""
# grade: device=cuda needs=tilelang

import tilelang
import tilelang.language as T
import torch

TILE = 2048
THREADS = 256
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@tilelang.jit
def _softmax_rows(dtype):
    rows = T.dynamic("rows")
    cols = T.dynamic("cols")

    @T.prim_func
    def kernel(x: T.Tensor((rows, cols), dtype), out: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows, threads=THREADS) as row:
            tile = T.alloc_fragment((1, TILE), "float32")
            peak = T.alloc_fragment((1,), "float32")
            part = T.alloc_fragment((1,), "float32")
            base = T.alloc_fragment((1,), "float32")
            highest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.fill(highest, -T.infinity("float32"))
            T.fill(total, 0)
            for step in T.serial(T.ceildiv(cols, TILE)):
                for _, i in T.Parallel(1, TILE):
                    tile[0, i] = T.if_then_else(
                        step * TILE + i < cols,
                        T.cast(x[row, step * TILE + i], "float32"),
                        -T.infinity("float32"),
                    )
                T.reduce_max(tile, peak, dim=1)
                for i in T.Parallel(1):
                    peak[i] = T.max(highest[i], peak[i])
                    # Nothing finite was seen yet: exp(-inf - 0) is 0, and exp(-inf + inf) is NaN.
                    base[i] = T.if_then_else(
                        peak[i] == -T.infinity("float32"), T.float32(0), peak[i]
                    )
                for r, i in T.Parallel(1, TILE):
                    tile[r, i] = T.exp(tile[r, i] - base[r])
                T.reduce_sum(tile, part, dim=1)
                for i in T.Parallel(1):
                    total[i] = total[i] * T.exp(highest[i] - base[i]) + part[i]
                    highest[i] = peak[i]
            for step in T.serial(T.ceildiv(cols, TILE)):
                for r, i in T.Parallel(1, TILE):
                    if step * TILE + i < cols:
                        out[row, step * TILE + i] = T.cast(
                            T.exp(T.cast(x[row, step * TILE + i], "float32") - highest[r])
                            / total[r],
                            dtype,
                        )

    return kernel


def softmax(x, out):
    _softmax_rows(NAMES[x.dtype])(x, out)
