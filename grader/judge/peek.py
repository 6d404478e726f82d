"""Single words of device memory, read by the GPU's copy engine.

It reads while kernels of other processes run, without waiting for them to end or to be put aside;
a kernel of our own would have to wait for its turn on the multiprocessors.
"""

from __future__ import annotations

import torch

MOST_PITCH_BYTES = 1 << 31
"""CUDA's limit of the distance between rows of a copy."""


class Peek:
    """Reads words of 8 bytes into `words`, int64 [capacity], in host memory."""

    def __init__(self, capacity: int) -> None:
        self.words = torch.zeros(capacity, dtype=torch.int64, pin_memory=True)
        self._stream = torch.cuda.Stream()

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        """Begin to read `count` words that lie `pitch_bytes` apart, the first of them at `address`
        in device memory, into `words[at:]`. Raises RuntimeError when CUDA refuses."""
        from cuda.bindings import runtime

        (code,) = runtime.cudaMemcpy2DAsync(
            self.words.data_ptr() + 8 * at,
            8,
            address,
            pitch_bytes,
            8,
            count,
            runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost,
            self._stream.cuda_stream,
        )
        if code != runtime.cudaError_t.cudaSuccess:
            raise RuntimeError(f"the CUDA runtime says {code.name}")

    def mark(self, event: torch.cuda.Event) -> None:
        """Have an event tell when everything was read that was begun so far."""
        event.record(self._stream)

    def wait(self) -> None:
        """Wait until everything is read that was begun."""
        self._stream.synchronize()
