"""Prefix sum in Triton in one pass: every element is read once and written once.

Programs take tiles in the order in which they start. Each publishes the sum of its tile, looks back
over its predecessors' sums until it meets one that knows the sum of everything up to itself, and
publishes the same of its own: D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with
Decoupled Look-back" (2016). A word of 64 bits holds a sum and how far it reaches, so that both are
seen at once and no order of memory accesses need be enforced.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
WINDOW = 32
WARPS = 8

OF_TILE = tl.constexpr(1)  # the sum of a tile alone
OF_ALL = tl.constexpr(2)  # the sum of everything up to a tile
FLAG_BIT = tl.constexpr(32)


@triton.jit
def _publish(state, value, flag):
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_xchg(state, (flag.to(tl.int64) << FLAG_BIT) | bits, sem="relaxed")


@triton.jit
def _scan(x, out, states, n, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    # The first word counts the programs that have started; the others belong to the tiles.
    tile = tl.atomic_add(states, 1, sem="relaxed")
    state = states + 1 + tile
    first = tile * BLOCK
    at = first + tl.arange(0, BLOCK)
    is_whole = first + BLOCK <= n
    if is_whole:
        values = tl.load(x + at, eviction_policy="evict_first")
    else:
        values = tl.load(x + at, mask=at < n, other=0.0)
    total = tl.sum(values, axis=0)
    _publish(state, total, tl.where(tile == 0, OF_ALL, OF_TILE))

    lane = tl.arange(0, WINDOW)
    before = 0.0
    end = tile
    while end > 0:
        which = end - 1 - lane
        # What lies before the first tile is known: nothing.
        nothing = tl.full([WINDOW], OF_ALL, tl.int64) << FLAG_BIT
        word = tl.load(states + 1 + which, mask=which >= 0, other=nothing, volatile=True)
        flag = (word >> FLAG_BIT).to(tl.int32)
        nearest = tl.min(tl.where(flag == OF_ALL, lane, WINDOW), axis=0)
        missing = tl.sum(((lane <= nearest) & (flag == 0)).to(tl.int32), axis=0)
        if missing == 0:
            sums = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
            before += tl.sum(tl.where(lane <= nearest, sums, 0.0), axis=0)
            end = tl.where(nearest < WINDOW, 0, end - WINDOW)
    if tile > 0:
        _publish(state, before + total, tl.full([], OF_ALL, tl.int32))

    sums = tl.cumsum(values, axis=0) + before
    if is_whole:
        tl.store(out + at, sums)
    else:
        tl.store(out + at, sums, mask=at < n)


workspaces = {}


def prefix_sum(x, out):
    n = x.numel()
    tiles = triton.cdiv(n, BLOCK)
    key = (x.device, tiles)
    if key not in workspaces:
        workspaces[key] = torch.empty(1 + tiles, dtype=torch.int64, device=x.device)
    states = workspaces[key]
    states.zero_()
    _scan[(tiles,)](x, out, states, n, BLOCK=BLOCK, WINDOW=WINDOW, num_warps=WARPS)
