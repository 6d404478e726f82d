"""LayerNorm's gradients in Triton, from one pass over dy and x. As many programs as the GPU runs at
a time take rows in turn, with the weight and their shares of both column sums in registers, and the
next rows on their way to shared memory. The longest rows leave no registers for shares: there a
slab of rows gets programs for dx, a row each, and right after them programs for the column sums,
which find the slab in the L2 cache. A second kernel adds up the shares of programs or slabs.
"""

import torch
import triton
import triton.language as tl

TILE = 2048
"""Elements of the rows that a program takes at a time, where a row is shorter."""
LONGEST = 8192
"""Columns whose shares fit in the registers of an SM, beside a row of both inputs."""
WARPS_OF_SM = 16
"""With 128 registers a thread."""
STAGES = 4
"""Three rows of each program are on their way: 72 to 96 KB for each SM."""
SLAB = 128
"""Rows: those of three slabs, 8 MB each, are in the L2 cache of 50 MB."""
SLAB_ROWS, SLAB_COLS = 8, 512
"""Rows and columns that a program adds up at a time."""
SLAB_WARPS, SLAB_REGISTERS = 8, 128


@triton.jit
def _add(a, b, c, d):
    return a + c, b + d


@triton.jit
def _sums(a, b, AXIS: tl.constexpr, JOINT: tl.constexpr):
    if JOINT:  # in one exchange between warps; Triton's interpreter is slow at it
        first, second = tl.reduce((a, b), AXIS, _add)
    else:
        first, second = tl.sum(a, axis=AXIS), tl.sum(b, axis=AXIS)
    return first, second


@triton.jit
def _rows(
    dy,
    x,
    weight,
    mean,
    rstd,
    dx,
    shares,
    rows,
    cols,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STAGES: tl.constexpr,
    JOINT: tl.constexpr,
):
    col = tl.arange(0, COLS)
    known = col < cols
    w = tl.load(weight + col, mask=known, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros([COLS], tl.float32)
    dbias = tl.zeros([COLS], tl.float32)
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, rows, step, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        at = row.to(tl.int64)[:, None] * cols + col[None, :]
        grads = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        center = tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]
        # Beyond the row, what this gives meets a gradient of 0.
        normal = (values - center) * scale
        inner = grads * w
        across, along = _sums(inner, inner * normal, 1, JOINT)
        result = inner - (across / cols)[:, None] - normal * (along / cols)[:, None]
        tl.store(dx + at, (result * scale).to(dx.dtype.element_ty), mask=inside)
        # A thread has all rows of its columns.
        dweight += tl.sum(grads * normal, axis=0)
        dbias += tl.sum(grads, axis=0)
    share = shares + tl.program_id(0) * 2 * cols + col
    tl.store(share, dweight, mask=known)
    tl.store(share + cols, dbias, mask=known)


@triton.jit
def _slabs(
    dy,
    x,
    weight,
    mean,
    rstd,
    dx,
    shares,
    rows,
    cols,
    SLAB: tl.constexpr,
    COLS: tl.constexpr,
    SLAB_ROWS: tl.constexpr,
    SLAB_COLS: tl.constexpr,
    JOINT: tl.constexpr,
):
    programs = SLAB + tl.cdiv(cols, SLAB_COLS)
    slab = tl.program_id(0) // programs
    turn = tl.program_id(0) % programs
    if turn < SLAB:
        row = slab * SLAB + turn
        if row < rows:
            col = tl.arange(0, COLS)
            known = col < cols
            start = row.to(tl.int64) * cols
            center, scale = tl.load(mean + row), tl.load(rstd + row)
            w = tl.load(weight + col, mask=known, other=0.0).to(tl.float32)
            grads = tl.load(dy + start + col, mask=known, other=0.0).to(tl.float32)
            values = tl.load(x + start + col, mask=known, other=0.0).to(tl.float32)
            inner = grads * w
            across, along = _sums(inner, inner * (values - center), 0, JOINT)
            across, along = across / cols, along / cols * scale * scale
            # The row again, from the L1 cache: in fp32 it would fill the registers. The cache
            # modifier keeps the compiler from merging the loads.
            w = tl.load(weight + col, mask=known, other=0.0, cache_modifier=".ca")
            grads = tl.load(dy + start + col, mask=known, other=0.0, cache_modifier=".ca")
            values = tl.load(x + start + col, mask=known, other=0.0, cache_modifier=".ca")
            inner = grads.to(tl.float32) * w.to(tl.float32)
            result = (inner - across - (values.to(tl.float32) - center) * along) * scale
            tl.store(dx + start + col, result.to(dx.dtype.element_ty), mask=known)
    else:
        col = (turn - SLAB) * SLAB_COLS + tl.arange(0, SLAB_COLS)
        known = col < cols
        dweight = tl.zeros([SLAB_ROWS, SLAB_COLS], tl.float32)
        dbias = tl.zeros([SLAB_ROWS, SLAB_COLS], tl.float32)
        for first in range(slab * SLAB, min(slab * SLAB + SLAB, rows), SLAB_ROWS):
            row = first + tl.arange(0, SLAB_ROWS)
            inside = (row < rows)[:, None] & known[None, :]
            at = row.to(tl.int64)[:, None] * cols + col[None, :]
            grads = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
            values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            center = tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
            scale = tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]
            dweight += grads * ((values - center) * scale)
            dbias += grads
        share = shares + slab * 2 * cols + col
        tl.store(share, tl.sum(dweight, axis=0), mask=known)
        tl.store(share + cols, tl.sum(dbias, axis=0), mask=known)


@triton.jit
def _columns(shares, dweight, dbias, count, cols, SHARES: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros([SHARES, COLS], tl.float32)
    for first in range(0, count, SHARES):
        share = first + tl.arange(0, SHARES)[:, None]
        inside = (share < count) & (col < 2 * cols)
        total += tl.load(shares + share * 2 * cols + col, mask=inside, other=0.0)
    result = tl.sum(total, axis=0)[None, :]
    kind = dweight.dtype.element_ty
    tl.store(dweight + col, result.to(kind), mask=col < cols)
    tl.store(dbias + col - cols, result.to(kind), mask=(col >= cols) & (col < 2 * cols))


def layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    is_cpu = x.device.type == "cpu"  # the interpreter pays per program, not per element
    by_slabs = width > LONGEST
    if by_slabs:
        count = triton.cdiv(rows, SLAB)
    elif is_cpu:
        height, count = triton.next_power_of_2(triton.cdiv(rows, 2)), 2
    else:
        height = max(TILE // width, 1)
        warps = height * width // 512
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        count = min(triton.cdiv(rows, height), sms * WARPS_OF_SM // warps)
    shares = torch.empty(count, 2, cols, dtype=torch.float32, device=x.device)
    inputs = dy, x, weight, mean, rstd, dx, shares, rows, cols
    if by_slabs:
        programs = count * (SLAB + triton.cdiv(cols, SLAB_COLS))
        sizes = {
            "SLAB": SLAB,
            "COLS": width,
            "SLAB_ROWS": SLAB_ROWS,
            "SLAB_COLS": SLAB_COLS,
            "JOINT": not is_cpu,
        }
        _slabs[(programs,)](*inputs, **sizes, num_warps=SLAB_WARPS, maxnreg=SLAB_REGISTERS)
    else:
        _rows[(count,)](
            *inputs,
            ROWS=height,
            COLS=width,
            STAGES=STAGES,
            JOINT=not is_cpu,
            num_warps=4 if is_cpu else warps,
            maxnreg=128,
        )
    at_once, columns = (4, width) if is_cpu else (256, 16)
    _columns[(triton.cdiv(2 * cols, columns),)](
        shares, dweight, dbias, count, cols, SHARES=at_once, COLS=columns, num_warps=8
    )
