"""Sort in Triton by a bitonic network over memory, filled up with infinity to a power of two."""

import torch
import triton
import triton.language as tl

BLOCK = 32768


@triton.jit
def _exchange(keys, half, size, distance, BLOCK: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    low = 2 * pair - pair % distance
    first = tl.load(keys + low, mask=pair < half)
    second = tl.load(keys + low + distance, mask=pair < half)
    smaller, larger = tl.minimum(first, second), tl.maximum(first, second)
    ascends = (low & size) == 0
    tl.store(keys + low, tl.where(ascends, smaller, larger), mask=pair < half)
    tl.store(keys + low + distance, tl.where(ascends, larger, smaller), mask=pair < half)


def sort(x, out):
    n = x.numel()
    length = triton.next_power_of_2(n)
    keys = torch.full((length,), float("inf"), device=x.device)
    keys[:n] = x
    size = 2
    while size <= length:
        distance = size // 2
        while distance > 0:
            grid = (triton.cdiv(length // 2, BLOCK),)
            _exchange[grid](keys, length // 2, size, distance, BLOCK=BLOCK)
            distance //= 2
        size *= 2
    out.copy_(keys[:n])
