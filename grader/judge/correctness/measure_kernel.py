"""The kernel behind `check`: all that is measured of one output against its reference, in one pass.
Imported only where there is a GPU.

By PyTorch's operations the same reads and writes 350 bytes for each element; this reads 12 to 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MAXIMA = ("share", "largest", "bound", "eager largest", "exact largest")
SUMS = ("error", "exact", "eager error", "exact sum")
"""What a program writes, in this order: largest magnitudes; sums of squares, and at last of
magnitudes."""


@dataclass(frozen=True)
class Allowed:
    """What errors are held against: ``atol + rtol·|truth|``, and what rounding explains, ``least +
    relative·|magnitude| + eps·|expected|``. `atol` and `least` are positive."""

    atol: float
    rtol: float
    least: float
    relative: float
    eps: float


@dataclass(frozen=True)
class Measured:
    """Float64 tensors."""

    found: dict[str, torch.Tensor]
    """0-dimensional: `MAXIMA`, and the roots of `SUMS`, the last a sum. Those of a bound or of
    eager outputs are 0 where these are not given."""
    rows: tuple[torch.Tensor, torch.Tensor]
    """[rows]: sums of squares of the errors, and of the reference."""
    bands: tuple[torch.Tensor, torch.Tensor]
    """[bands, columns]: the same over each band of rows."""


@triton.jit(do_not_specialize=["across"])  # type: ignore[untyped-decorator]
def _measure(  # type: ignore[no-untyped-def]
    out_at,
    truth_at,
    eager_at,
    magnitude_at,
    allowed_at,
    found_at,
    row_error_at,
    row_truth_at,
    band_error_at,
    band_truth_at,
    count,
    columns,
    across,
    HAS_EAGER: tl.constexpr,
    HAS_BOUND: tl.constexpr,
    IS_OWN: tl.constexpr,
    SIDE: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    band, part = tile // across, tile % across
    row = band * SIDE + tl.arange(0, SIDE)
    column = part * SIDE + tl.arange(0, SIDE)
    at = row[:, None] * columns + column[None, :]
    inside = (column < columns)[None, :] & (at < count)
    truth = tl.load(truth_at + at, mask=inside, other=0.0).to(tl.float64)
    error = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float64) - truth
    size, exact = tl.abs(error), tl.abs(truth)
    atol, rtol = tl.load(allowed_at), tl.load(allowed_at + 1)
    found = found_at + tile * 9
    tl.store(found, tl.max(size / (atol + rtol * exact)))
    tl.store(found + 1, tl.max(size))
    bound = 0.0
    if HAS_BOUND:
        least, relative = tl.load(allowed_at + 2), tl.load(allowed_at + 3)
        expected = tl.abs(truth.to(tl.float32).to(out_at.dtype.element_ty).to(tl.float64))
        magnitude = exact
        if not IS_OWN:
            magnitude = tl.abs(tl.load(magnitude_at + at, mask=inside, other=0.0))
        explained = least + relative * magnitude + tl.load(allowed_at + 4) * expected
        share = size / explained
        # Not a number where the magnitude is none.
        bound = tl.max(tl.where(share == share, share, 0.0))
    tl.store(found + 2, bound)
    own, own2 = 0.0, 0.0
    if HAS_EAGER:
        eager = tl.load(eager_at + at, mask=inside, other=0.0).to(tl.float64) - truth
        own, own2 = tl.max(tl.abs(eager)), tl.sum(eager * eager)
    tl.store(found + 3, own)
    tl.store(found + 4, tl.max(exact))
    error2, truth2 = error * error, truth * truth
    row_error, row_truth = tl.sum(error2, axis=1), tl.sum(truth2, axis=1)
    tl.store(found + 5, tl.sum(row_error))
    tl.store(found + 6, tl.sum(row_truth))
    tl.store(found + 7, own2)
    tl.store(found + 8, tl.sum(exact))
    begun = row * columns < count
    tl.store(row_error_at + row * across + part, row_error, mask=begun)
    tl.store(row_truth_at + row * across + part, row_truth, mask=begun)
    place = band * columns + column
    tl.store(band_error_at + place, tl.sum(error2, axis=0), mask=column < columns)
    tl.store(band_truth_at + place, tl.sum(truth2, axis=0), mask=column < columns)


def measure(
    out: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor | None,
    magnitude: torch.Tensor | None,
    allowed: Allowed,
    columns: int,
    side: int,
) -> Measured:
    """Measure an output, a contiguous vector in fp32, fp16 or bf16 whose rows have `columns`
    elements, the last maybe fewer. `truth` is float64 or of one of these, and `magnitude` float64.
    All are of one size and finite, but for the magnitude. A band has `side` rows, a power of two.
    """
    count = out.numel()
    rows, across = -(-count // columns), -(-columns // side)
    bands = -(-rows // side)
    numbers = [allowed.atol, allowed.rtol, allowed.least, allowed.relative, allowed.eps]
    names = len(MAXIMA) + len(SUMS)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float64, device=out.device)

    found = empty(bands * across, names)
    row_sums = empty(rows, across), empty(rows, across)
    band_sums = empty(bands, columns), empty(bands, columns)
    is_own = magnitude is not None and magnitude.data_ptr() == truth.data_ptr()
    _measure[(bands * across,)](
        out,
        truth,
        out if eager is None else eager,
        truth if magnitude is None else magnitude,
        torch.tensor(numbers, dtype=torch.float64).to(out.device),
        found,
        *row_sums,
        *band_sums,
        count,
        columns,
        across,
        HAS_EAGER=eager is not None,
        HAS_BOUND=magnitude is not None,
        IS_OWN=is_own,
        SIDE=side,
        num_warps=16,
    )
    largest = found[:, : len(MAXIMA)].amax(0)
    summed = found[:, len(MAXIMA) :].sum(0)
    summed[:-1].sqrt_()
    values = [*largest.unbind(), *summed.unbind()]
    error2, truth2 = (sums.sum(1) for sums in row_sums)
    return Measured(dict(zip([*MAXIMA, *SUMS], values, strict=True)), (error2, truth2), band_sums)
