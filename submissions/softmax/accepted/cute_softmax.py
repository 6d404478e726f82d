"""Softmax in the CuTe DSL of CUTLASS: one block a row. Each thread keeps a running maximum and sum
of its columns; warps and then the block combine them."""
# grade: device=cuda needs=cutlass

from functools import cache

import cutlass
import torch
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute.runtime import make_ptr

THREADS = 256
WARPS = THREADS // 32
TYPES = {
    torch.float32: cutlass.Float32,
    torch.float16: cutlass.Float16,
    torch.bfloat16: cutlass.BFloat16,
}
NOTHING = float("-inf")


@cute.jit
def _base(highest: cutlass.Float32):
    """The origin of exponents: exp(-inf - 0) is 0, and exp(-inf + inf) would be NaN."""
    base = highest
    if highest == NOTHING:
        base = cutlass.Float32(0.0)
    return base


@cute.kernel
def _softmax_rows(x: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    cols = x.shape[1]
    mine = cutlass.Float32(NOTHING)
    total = cutlass.Float32(0.0)
    for col in range(thread, cols, THREADS):
        value = x[row, col].to(cutlass.Float32)
        grown = cute.arch.fmax(mine, value)
        base = _base(grown)
        total = total * cute.math.exp(mine - base) + cute.math.exp(value - base)
        mine = grown

    highest = cute.arch.warp_reduction(mine, cute.arch.fmax)
    total = total * cute.math.exp(mine - _base(highest))
    total = cute.arch.warp_reduction(total, lambda a, b: a + b)

    shared = cutlass.utils.SmemAllocator()
    peaks = shared.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), byte_alignment=16)
    sums = shared.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), byte_alignment=16)
    if thread % 32 == 0:
        peaks[thread // 32] = highest
        sums[thread // 32] = total
    cute.arch.sync_threads()
    highest = cutlass.Float32(NOTHING)
    for warp in cutlass.range_constexpr(WARPS):
        highest = cute.arch.fmax(highest, peaks[warp])
    base = _base(highest)
    total = cutlass.Float32(0.0)
    for warp in cutlass.range_constexpr(WARPS):
        total = total + sums[warp] * cute.math.exp(peaks[warp] - base)

    for col in range(thread, cols, THREADS):
        value = cute.math.exp(x[row, col].to(cutlass.Float32) - highest) / total
        out[row, col] = value.to(out.element_type)


@cute.jit
def _launch(
    x: cute.Pointer, out: cute.Pointer, rows: cutlass.Int32, cols: cutlass.Int32, stream: CUstream
):
    layout = cute.make_layout((rows, cols), stride=(cutlass.Int64(cols), 1))
    _softmax_rows(cute.make_tensor(x, layout), cute.make_tensor(out, layout)).launch(
        grid=[rows, 1, 1], block=[THREADS, 1, 1], stream=stream
    )


def _pointer(dtype, address):
    return make_ptr(TYPES[dtype], address, cute.AddressSpace.gmem, assumed_align=dtype.itemsize)


@cache
def _compiled(dtype):
    pointer = _pointer(dtype, 16)
    return cute.compile(_launch, pointer, pointer, 1, 1, CUstream(0))


def softmax(x, out):
    rows, cols = x.shape
    stream = CUstream(torch.cuda.current_stream().cuda_stream)
    pointers = [_pointer(x.dtype, tensor.data_ptr()) for tensor in (x, out)]
    _compiled(x.dtype)(*pointers, rows, cols, stream)
