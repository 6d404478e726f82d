"""Int4 unpacking in Triton: the matrix is one list of bytes. A program reads 16-bit words of four
codes and writes a 32-bit word for each, in vectors of 16 bytes a thread; results go past the cache.
"""

import torch
import triton
import triton.language as tl

WORDS = 1024
"""Words of four codes of a program: 8 for each thread."""


@triton.jit
def _unpack_words(packed, out, words, WORDS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    two = tl.load(packed + at, mask=at < words, other=0).to(tl.int32)
    spread = two & 0xF | (two & 0xF0) << 4 | (two & 0xF00) << 8 | (two & 0xF000) << 12
    # Plus 0x78 each, no byte carries; the highest bit flipped, a byte is its code less 8.
    result = (spread + 0x78787878) ^ -0x7F7F7F80
    tl.store(out + at, result, mask=at < words, cache_modifier=".cs")


@triton.jit
def _unpack_last(packed, out, at):
    byte = tl.load(packed + at).to(tl.int32)
    tl.store(out + 2 * at, ((byte & 0xF) - 8).to(tl.int8))
    tl.store(out + 2 * at + 1, ((byte >> 4 & 0xF) - 8).to(tl.int8))


def int4_unpack(packed, out):
    count = packed.numel()
    words = count // 2
    block = triton.next_power_of_2(words + 1) if packed.device.type == "cpu" else WORDS
    if words:
        flat, codes = packed.view(-1)[: 2 * words], out.view(-1)[: 4 * words]
        grid = (triton.cdiv(words, block),)
        _unpack_words[grid](
            flat.view(torch.int16), codes.view(torch.int32), words, WORDS=block, num_warps=4
        )
    if count % 2:
        _unpack_last[(1,)](packed, out, count - 1)
