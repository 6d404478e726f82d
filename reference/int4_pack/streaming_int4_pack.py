"""Int4 packing in Triton: the matrix is one list of pairs. A thread takes 32 codes, as two loads of
16 bytes, and writes 16 bytes; programs are small, so that many loads are in flight on each SM.
"""

import torch
import triton
import triton.language as tl

WORDS = 1024
"""Words of four codes of a program: 8 for each thread."""


@triton.jit
def _biased(word, SHIFT: tl.constexpr):
    """The code in bits SHIFT to SHIFT + 7 of the word, saturated, plus 8."""
    code = (word << (24 - SHIFT)) >> 24
    return tl.minimum(tl.maximum(code, -8), 7) + 8


@triton.jit
def _pack_words(codes, out, words, WORDS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    word = tl.load(codes + at, mask=at < words, other=0, eviction_policy="evict_first")
    low = _biased(word, 0) | _biased(word, 8) << 4
    high = _biased(word, 16) | _biased(word, 24) << 4
    tl.store(out + at, (low | high << 8).to(tl.int16), mask=at < words)


@triton.jit
def _pack_last(codes, out, pair):
    low = tl.load(codes + 2 * pair).to(tl.int32)
    high = tl.load(codes + 2 * pair + 1).to(tl.int32)
    low, high = (tl.minimum(tl.maximum(low, -8), 7) + 8, tl.minimum(tl.maximum(high, -8), 7) + 8)
    tl.store(out + pair, (low | high << 4).to(tl.uint8))


def int4_pack(codes, out):
    pairs = out.numel()
    words = pairs // 2
    block = triton.next_power_of_2(words + 1) if codes.device.type == "cpu" else WORDS
    if words:
        flat, packed = codes.view(-1)[: 4 * words], out.view(-1)[: 2 * words]
        grid = (triton.cdiv(words, block),)
        _pack_words[grid](
            flat.view(torch.int32), packed.view(torch.int16), words, WORDS=block, num_warps=4
        )
    if pairs % 2:
        _pack_last[(1,)](codes, out, pairs - 1)
