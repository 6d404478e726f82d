"""Do the calls of a round run one after the other? The judge watches their outputs appear.

A submission that starts a call while the one before it is still running hides the ends of its
kernels, and is faster only in a benchmark. While a round runs, the GPU's copy engine, which the
submission cannot hold up, reads a few words of every set's outputs again and again, at places
nobody could know. Calls that run in turn leave a later set untouched until an earlier one is whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import torch

from grader.judge.block import Block, poison_word

ENDS, ANYWHERE = 3, 2
"""Words of every set that one sweep reads: so many near the start of its outputs and as many near
the end, which is where neighbouring calls would meet, and so many anywhere."""
PLACES = 2 * ENDS + ANYWHERE
NEAR = 64
"""Near is within this part of an output tensor."""
MOST_SWEEPS = 512
MOST_PITCH_BYTES = 1 << 31
"""CUDA's limit of the distance between rows of a copy."""


class Lookout:
    """Watches the outputs of a block whose outputs were poisoned, on a CUDA device.

    `outputs` are the (offset, bytes) of the output tensors of the first set.
    """

    def __init__(self, block: Block, outputs: list[tuple[int, int]]) -> None:
        self._block = block
        self._set_bytes = block.tail_bytes // block.count
        self._outputs = [(offset, nbytes // 8) for offset, nbytes in outputs if nbytes >= 8]
        shape = (MOST_SWEEPS * PLACES, block.count)
        self._seen = torch.zeros(shape, dtype=torch.int64, pin_memory=True)
        self._stream = torch.cuda.Stream()
        self._places: list[int] = []
        self._sweeps = 0

    @staticmethod
    def can_watch(block: Block, outputs: list[tuple[int, int]]) -> bool:
        """Whether there is a copy engine that reaches so far, and poison to tell by."""
        near_enough = block.tail_bytes // block.count < MOST_PITCH_BYTES
        large_enough = any(nbytes >= 8 for _, nbytes in outputs)
        return block.device == "cuda" and block.item_bytes > 0 and near_enough and large_enough

    def aim(self) -> None:
        """Choose new places, before the clock runs."""
        self._sweeps = 0
        self._places = []
        for _ in range(ENDS):
            self._places += [self._place(0, 1 / NEAR), self._place(1 - 1 / NEAR, 1)]
        self._places += [self._place(0, 1) for _ in range(ANYWHERE)]

    def sweep(self) -> None:
        """Read every place of every set once, one place after the other."""
        from cuda.bindings import runtime

        row_bytes = 8 * self._block.count
        target = self._seen.data_ptr() + self._sweeps * PLACES * row_bytes
        base = self._block.arena.buffer.data_ptr()
        for place in self._places:
            (code,) = runtime.cudaMemcpy2DAsync(
                target,
                8,
                base + place,
                self._set_bytes,
                8,
                self._block.count,
                runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost,
                self._stream.cuda_stream,
            )
            if code != runtime.cudaError_t.cudaSuccess:
                raise RuntimeError(f"the CUDA runtime says {code.name}")
            target += row_bytes
        self._stream.synchronize()
        self._sweeps += 1

    def watch(self, going_on: Callable[[], bool]) -> None:
        """Sweep again and again while the round is going on."""
        while going_on() and self._sweeps < MOST_SWEEPS:
            self.sweep()

    def has_begun(self, order: list[int]) -> bool:
        """Whether the first sweep, before "go", found outputs written already."""
        return bool(self._written(order)[:PLACES].any())

    def side_by_side(self, order: list[int]) -> bool:
        """Whether a later call of `order` was seen to have begun before an earlier one ended."""
        return overlapped(self._written(order))

    def _written(self, order: list[int]) -> torch.Tensor:
        looks = self._seen[: self._sweeps * PLACES, order]
        return looks != poison_word(self._block.item_bytes)

    def _place(self, start: float, end: float) -> int:
        """An offset into the first set's outputs, between two shares of one of its tensors."""
        offset, words = secrets.choice(self._outputs)
        first = min(int(words * start), words - 1)
        return offset + 8 * (first + secrets.randbelow(max(1, int(words * end) - first)))


def overlapped(written: torch.Tensor) -> bool:
    """Whether in any look a call's word is unwritten though a later call's was written before.

    `written` is bool [looks, calls], looks in the order of time, calls in the order of the round.
    """
    if written.numel() == 0:
        return False
    calls = written.shape[1]
    positions = torch.arange(calls).expand_as(written)
    furthest = torch.where(written, positions, -1).amax(1).cummax(0).values
    before = torch.cat([torch.tensor([-1]), furthest[:-1]])
    return bool((~written & (positions < before[:, None])).any())
