"""GELU in Triton, as x times the sigmoid of 2u."""

import triton
import triton.language as tl

BLOCK = 8192


@triton.jit
def _gelu(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    inner = 1.5957691216057308 * (value + 0.044715 * value * value * value)
    result = value / (1.0 + tl.exp(-inner))
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < n)


def gelu(x, out):
    n = x.numel()
    _gelu[(triton.cdiv(n, BLOCK),)](x, out, n, BLOCK=BLOCK)
