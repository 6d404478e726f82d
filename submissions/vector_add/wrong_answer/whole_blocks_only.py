"""A grid of n // BLOCK programs: the elements behind the last whole block are never written."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _add(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


def vector_add(x, y, out):
    whole = out.numel() // BLOCK
    if whole:
        _add[(whole,)](x, y, out, BLOCK=BLOCK)
