"""Rotary position embedding in Triton: a program has some heads of a few tokens, reads the tokens'
rows of the tables once, and has all of its loads in flight before the first product.
"""

import triton
import triton.language as tl

TILE_ELEMENTS = 1024
"""Pairs of a program."""
WARPS = 4


@triton.jit
def _rope(
    x,
    positions,
    cosines,
    sines,
    out,
    tokens,
    heads,
    half,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[None, :, None]
    index = tl.arange(0, HALF)[None, None, :]
    known = (token < tokens) & (index < half)
    inside = known & (head < heads)
    at = (token.to(tl.int64) * heads + head) * 2 * half + index
    first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + at + half, mask=inside, other=0.0).to(tl.float32)
    row = tl.load(positions + token, mask=token < tokens, other=0) * half + index
    cos = tl.load(cosines + row, mask=known, other=0.0)
    sin = tl.load(sines + row, mask=known, other=0.0)
    kind = out.dtype.element_ty
    tl.store(out + at, (first * cos - second * sin).to(kind), mask=inside)
    tl.store(out + at + half, (second * cos + first * sin).to(kind), mask=inside)


def launch(x, positions, cosines, sines, out, elements=TILE_ELEMENTS, warps=WARPS):
    tokens, heads, head_dim = x.shape
    if x.device.type == "cpu":  # the interpreter pays per program, not per element
        elements = 1 << 18
    half = triton.next_power_of_2(head_dim // 2)
    some_heads = min(triton.next_power_of_2(heads), max(elements // half, 1))
    some_tokens = min(triton.next_power_of_2(tokens), max(elements // (half * some_heads), 1))
    grid = (triton.cdiv(tokens, some_tokens), triton.cdiv(heads, some_heads))
    _rope[grid](
        x,
        positions,
        cosines,
        sines,
        out,
        tokens,
        heads,
        head_dim // 2,
        TOKENS=some_tokens,
        HEADS=some_heads,
        HALF=half,
        num_warps=warps,
    )


def rope(x, positions, cosines, sines, out):
    launch(x, positions, cosines, sines, out)
