"""The kernel behind `batch_check.BatchCheck`. Imported only where there is a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TYPES = {
    torch.float32: (tl.float32, tl.int32),
    torch.float16: (tl.float16, tl.int16),
    torch.bfloat16: (tl.bfloat16, tl.int16),
}


@triton.jit  # type: ignore[untyped-decorator]
def _base(at, FLOAT: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    base = tl.load(at).to(tl.pointer_type(FLOAT))
    return tl.multiple_of(base, 16) if WHOLE else base


@triton.jit  # type: ignore[untyped-decorator]
def _compare(  # type: ignore[no-untyped-def]
    out_at,
    expected_at,
    initial_at,
    counts,
    bad,
    error2,
    reference2,
    atol,
    rtol,
    poison,
    FLOAT: tl.constexpr,
    BITS: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    index = tl.arange(0, CHUNK)
    inside = index < CHUNK if WHOLE else index < tl.load(counts + chunk)
    out_base = _base(out_at + chunk, FLOAT, WHOLE)
    expected_base = _base(expected_at + chunk, FLOAT, WHOLE)
    raw = tl.load(out_base + index, mask=inside, other=0.0)
    unwritten = raw.to(BITS, bitcast=True).to(tl.int32) == poison
    out = raw.to(tl.float32)
    expected = tl.load(expected_base + index, mask=inside, other=0.0).to(tl.float32)
    reference = expected
    if HAS_INITIAL:
        initial_base = _base(initial_at + chunk, FLOAT, WHOLE)
        initial = tl.load(initial_base + index, mask=inside, other=0.0).to(tl.float32)
        reference -= tl.where(tl.abs(initial) < float("inf"), initial, 0.0)
    finite = tl.abs(expected) < float("inf")
    error = tl.where(finite, tl.abs(out - expected), 0.0)
    reference = tl.where(finite, reference, 0.0)
    alike = ((out != out) & (expected != expected)) | (out == expected)
    # Every comparison with a NaN is false, so `fine` must be the one that is compared.
    fine = tl.where(finite, error <= atol + rtol * tl.abs(reference), alike)
    wrong = inside & ((fine == 0) | unwritten)
    tl.store(bad + chunk, tl.sum(wrong.to(tl.int32), axis=0))
    tl.store(error2 + chunk, tl.sum(tl.where(inside, error * error, 0.0), axis=0))
    tl.store(reference2 + chunk, tl.sum(tl.where(inside, reference * reference, 0.0), axis=0))


def compare(
    chunks: int,
    out_at: torch.Tensor,
    expected_at: torch.Tensor,
    initial_at: torch.Tensor,
    counts: torch.Tensor,
    bad: torch.Tensor,
    error2: torch.Tensor,
    reference2: torch.Tensor,
    atol: float,
    rtol: float,
    poison: int,
    dtype: torch.dtype,
    has_initial: bool,
    whole: bool,
    chunk: int,
) -> None:
    """Compare `chunks` chunks of at most `chunk` elements of `dtype`.

    `out_at`, `expected_at`, `initial_at`: int64 [chunks], addresses in device memory; `counts`:
    int32 [chunks], elements in each chunk. Results, one per chunk: `bad` int32, the number of
    elements that are unwritten (all bits `poison`), not finite where they should be, or off by more
    than ``atol + rtol·|reference|``; `error2` and `reference2` float32, sums of squares. The
    reference is the expected value, or with `has_initial` its change from the initial value.

    `whole` promises that every chunk is full and aligned to 16 bytes, which is faster.
    """
    FLOAT, BITS = _TYPES[dtype]
    _compare[(chunks,)](
        out_at,
        expected_at,
        initial_at,
        counts,
        bad,
        error2,
        reference2,
        atol,
        rtol,
        poison,
        FLOAT=FLOAT,
        BITS=BITS,
        HAS_INITIAL=has_initial,
        WHOLE=whole,
        CHUNK=chunk,
        num_warps=8,
    )
