"""Scans each tile for itself: every tile begins at 0."""

import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _scan(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at, mask=at < n, other=0.0), axis=0), mask=at < n)


def prefix_sum(x, out):
    n = x.numel()
    _scan[(triton.cdiv(n, BLOCK),)](x, out, n, BLOCK=BLOCK)
