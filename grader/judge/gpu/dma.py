"""The GPU's copy engine: it reads and writes device memory while kernels of other processes run.

A kernel of the judge's would wait for its time slice on the multiprocessors; a copy does not
(`benchmarks/copy_engine.py`).
"""

from __future__ import annotations

from typing import Any

import torch

MOST_PITCH_BYTES = 1 << 31
"""CUDA's limit on the distance between the rows of a copy, bytes."""


class CopyEngine:
    """A stream of copies between device memory and pinned host memory, done in order.

    Words are read into `words`, int64 [capacity]. Every method raises RuntimeError when CUDA
    refuses.
    """

    def __init__(self, capacity: int) -> None:
        self.words = _pinned_words(capacity)
        self.stream = torch.cuda.Stream()

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        """Queue a read of `count` words of 8 bytes, `pitch_bytes` apart from the device `address`
        on, into `words[at:]`."""
        self._copy(
            self.words.data_ptr() + 8 * at, 8, address, pitch_bytes, 8, count, "DeviceToHost"
        )

    def write(self, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        """Queue a write of `rows`, contiguous uint8 [rows, width] in pinned memory, `pitch_bytes`
        apart from the device `address` on. A write without gaps may wait for other processes'
        kernels."""
        count, width = rows.shape
        self._copy(address, pitch_bytes, rows.data_ptr(), width, width, count, "HostToDevice")

    def _copy(
        self,
        to: int,
        to_pitch_bytes: int,
        source: int,
        source_pitch_bytes: int,
        width_bytes: int,
        rows: int,
        direction: str,
    ) -> None:
        from cuda.bindings import runtime

        (code,) = runtime.cudaMemcpy2DAsync(
            to,
            to_pitch_bytes,
            source,
            source_pitch_bytes,
            width_bytes,
            rows,
            getattr(runtime.cudaMemcpyKind, f"cudaMemcpy{direction}"),
            self.stream.cuda_stream,
        )
        _expect_success(code)

    def mark(self, event: torch.cuda.Event) -> None:
        """Record an event behind everything queued so far."""
        event.record(self.stream)

    def wait(self) -> None:
        """Wait for everything queued so far."""
        self.stream.synchronize()


class PairReader:
    """Reads pairs of words, one copy for all sets, `times` copies in a row, into `found`,
    int64 [times, count, 2], in order with what its `CopyEngine` is asked for."""

    def __init__(self, copies: CopyEngine, times: int, count: int) -> None:
        self._words = _pinned_words(times, count, 2)
        self.found = self._words.numpy()
        self._copies = copies
        self._prepared: list[Any] = []

    def prepare(self, places: list[tuple[int, int]], pitch_bytes: int) -> None:
        """For each copy: the device address of the first pair, and the distance of its two words,
        of which `pitch_bytes` (from pair to pair) is a multiple. Preparing takes longer than
        reading, so it is done once for many reads."""
        self._prepared = [
            _pair_copy(words, address, step_bytes, pitch_bytes)
            for words, (address, step_bytes) in zip(self._words, places, strict=True)
        ]

    def read(self) -> None:
        """Queue the copies. Raises RuntimeError when CUDA refuses."""
        from cuda.bindings import runtime

        for prepared in self._prepared:
            (code,) = runtime.cudaMemcpy3DAsync(prepared, self._copies.stream.cuda_stream)
            _expect_success(code)


def _pinned_words(*shape: int) -> torch.Tensor:
    """Pinned host memory, int64, zero."""
    words = torch.empty(shape, dtype=torch.int64, pin_memory=True)
    words.numpy().fill(0)  # PyTorch would wake a thread on every processor, for 6 ms
    return words


def _pair_copy(words: torch.Tensor, address: int, step_bytes: int, pitch_bytes: int) -> Any:
    """Parameters of a copy of pairs into `words`, int64 [count, 2]."""
    from cuda.bindings import runtime

    made = runtime.cudaMemcpy3DParms()
    made.srcPtr = runtime.make_cudaPitchedPtr(address, step_bytes, 8, pitch_bytes // step_bytes)
    made.dstPtr = runtime.make_cudaPitchedPtr(words.data_ptr(), 8, 8, 2)
    made.extent = runtime.make_cudaExtent(8, 2, len(words))
    made.kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
    return made


def _expect_success(code: Any) -> None:
    from cuda.bindings import runtime

    if code != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"the CUDA runtime says {code.name}")
