"""Square in Triton. A contiguous matrix is one long vector, so that rows of any width fill whole
blocks. Full blocks have no mask, and their loads and stores are 16 bytes wide in every dtype."""

import triton
import triton.language as tl

BLOCK_BYTES = 4096
WARPS = 4


@triton.jit
def _square(x, out, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= count:
        value = tl.load(x + at).to(tl.float32)
        tl.store(out + at, (value * value).to(out.dtype.element_ty))
    else:
        value = tl.load(x + at, mask=at < count).to(tl.float32)
        tl.store(out + at, (value * value).to(out.dtype.element_ty), mask=at < count)


def square(x, out):
    count, block = x.numel(), BLOCK_BYTES // x.element_size()
    _square[(triton.cdiv(count, block),)](x, out, count, BLOCK=block, num_warps=WARPS)
