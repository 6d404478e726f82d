"""The rotation in Triton: one program has all heads of a token, or of several where they are few."""

import triton
import triton.language as tl


@triton.jit
def _tokens(
    x, positions, cosines, sines, out, pairs, heads, half, PAIRS: tl.constexpr, HALF: tl.constexpr
):
    # A "pair" here is a token and a head.
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)[:, None]
    index = tl.arange(0, HALF)[None, :]
    inside = (pair < pairs) & (index < half)
    position = tl.load(positions + pair // heads, mask=pair < pairs, other=0)
    cos = tl.load(cosines + position * half + index, mask=inside, other=0.0)
    sin = tl.load(sines + position * half + index, mask=inside, other=0.0)
    at = pair * 2 * half + index
    first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + at + half, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(out + at, (first * cos - second * sin).to(kind), mask=inside)
    tl.store(out + at + half, (second * cos + first * sin).to(kind), mask=inside)


def rope(x, positions, cosines, sines, out):
    tokens, heads, head_dim = x.shape
    half = triton.next_power_of_2(head_dim // 2)
    # The interpreter pays per program, not per element.
    elements = 1 << 18 if x.device.type == "cpu" else 1024
    pairs = max(elements // half, 1)
    grid = (triton.cdiv(tokens * heads, pairs),)
    _tokens[grid](
        x, positions, cosines, sines, out, tokens * heads, heads, head_dim // 2,
        PAIRS=pairs, HALF=half,
    )  # fmt: skip
