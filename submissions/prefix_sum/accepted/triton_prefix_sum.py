"""Prefix sum in Triton: the sum of each tile, their scan by PyTorch, and the scan of each tile."""

import torch
import triton
import triton.language as tl

BLOCK = 8192


@triton.jit
def _sum_tiles(x, sums, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def _scan_tiles(x, up_to, out, n, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    at = tile.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(up_to + tile - 1, mask=tile > 0, other=0.0)
    sums = tl.cumsum(tl.load(x + at, mask=at < n, other=0.0), axis=0) + before
    tl.store(out + at, sums, mask=at < n)


def prefix_sum(x, out):
    n = x.numel()
    tiles = triton.cdiv(n, BLOCK)
    sums = torch.empty(tiles, dtype=x.dtype, device=x.device)
    _sum_tiles[(tiles,)](x, sums, n, BLOCK=BLOCK)
    _scan_tiles[(tiles,)](x, sums.cumsum(0), out, n, BLOCK=BLOCK)
