"""Device memory that the GPU's copy engine reads, word by word, and writes.

It does so while kernels of other processes run, without waiting for them to end or to be put aside;
a kernel of our own would have to wait for its turn on the multiprocessors.
"""

from __future__ import annotations

import torch

MOST_PITCH_BYTES = 1 << 31
"""CUDA's limit of the distance between rows of a copy."""


class Peek:
    """Reads words of 8 bytes into `words`, int64 [capacity], in host memory. What it is asked for
    is done in that order."""

    def __init__(self, capacity: int) -> None:
        self.words = torch.zeros(capacity, dtype=torch.int64, pin_memory=True)
        self._stream = torch.cuda.Stream()

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        """Begin to read `count` words that lie `pitch_bytes` apart, the first of them at `address`
        in device memory, into `words[at:]`. Raises RuntimeError when CUDA refuses."""
        self._copy(
            self.words.data_ptr() + 8 * at, 8, address, pitch_bytes, 8, count, "DeviceToHost"
        )

    def write(self, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        """Begin to write rows, contiguous uint8 [rows, width] in pinned host memory, so far apart,
        the first of them at `address` in device memory. A single row, or rows with nothing between
        them, may wait for other processes' kernels. Raises RuntimeError when CUDA refuses."""
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
        way: str,
    ) -> None:
        from cuda.bindings import runtime

        (code,) = runtime.cudaMemcpy2DAsync(
            to,
            to_pitch_bytes,
            source,
            source_pitch_bytes,
            width_bytes,
            rows,
            getattr(runtime.cudaMemcpyKind, f"cudaMemcpy{way}"),
            self._stream.cuda_stream,
        )
        if code != runtime.cudaError_t.cudaSuccess:
            raise RuntimeError(f"the CUDA runtime says {code.name}")

    def mark(self, event: torch.cuda.Event) -> None:
        """Have an event tell when everything was read that was begun so far."""
        event.record(self._stream)

    def wait(self) -> None:
        """Wait until everything is read and written that was begun."""
        self._stream.synchronize()
