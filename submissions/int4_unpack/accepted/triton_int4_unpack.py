"""Int4 unpacking in Triton: each program reads a block of bytes, and interleaves its nibbles."""

import triton
import triton.language as tl


@triton.jit
def _unpack(packed, out, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    bits = tl.load(packed + at, mask=at < count, other=0)
    codes = tl.interleave((bits & 0xF).to(tl.int8) - 8, (bits >> 4).to(tl.int8) - 8)
    to = 2 * start + tl.arange(0, 2 * BLOCK)
    tl.store(out + to, codes, mask=to < 2 * count)


def int4_unpack(packed, out):
    count = packed.numel()
    block = 1 << 17 if packed.device.type == "cpu" else 1024  # the interpreter pays per program
    _unpack[(triton.cdiv(count, block),)](packed, out, count, BLOCK=block)
