"""Top k in Triton: the k largest of each piece of a row, by striking out maxima, and the k largest
of all pieces in the same way, until one piece is left."""

import torch
import triton
import triton.language as tl

PIECE = 8192


@triton.jit
def _largest(x, out, cols, pieces, k, PIECE: tl.constexpr):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    at = (tl.program_id(0) % pieces) * PIECE + tl.arange(0, PIECE)
    values = tl.load(x + row * cols + at, mask=at < cols, other=float("-inf"))
    place = out + tl.program_id(0).to(tl.int64) * k
    for i in range(k):
        best = tl.argmax(values, axis=0)
        tl.store(place + i, tl.max(values, axis=0))
        values = tl.where(tl.arange(0, PIECE) == best, float("-inf"), values)


def top_k(x, out):
    rows, cols = x.shape
    k = out.shape[1]
    while True:
        piece = min(PIECE, triton.next_power_of_2(cols))
        pieces = triton.cdiv(cols, piece)
        to = out if pieces == 1 else torch.empty(rows, pieces * k, device=x.device)
        _largest[(rows * pieces,)](x, to, cols, pieces, k, PIECE=piece)
        if pieces == 1:
            return
        x, cols = to, pieces * k
