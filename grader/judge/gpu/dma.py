"""Device memory that the GPU's copy engine reads, word by word, and writes.

It does so while kernels of other processes run, without waiting for them to end or to be put aside;
a kernel of our own would have to wait for its turn on the multiprocessors.
"""

from __future__ import annotations

from typing import Any

import torch

MOST_PITCH_BYTES = 1 << 31
"""CUDA's limit of the distance between rows of a copy."""


class Peek:
    """Reads words of 8 bytes into `words`, int64 [capacity], in host memory. What it is asked for
    is done in that order."""

    def __init__(self, capacity: int) -> None:
        self.words = _words(capacity)
        self.stream = torch.cuda.Stream()

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
            self.stream.cuda_stream,
        )
        _expect_success(code)

    def mark(self, event: torch.cuda.Event) -> None:
        """Have an event tell when everything was read that was begun so far."""
        event.record(self.stream)

    def wait(self) -> None:
        """Wait until everything is read and written that was begun."""
        self.stream.synchronize()


class PairPeek:
    """Reads pairs of words of 8 bytes into `words`, int64 [count, 2], in host memory, with one copy
    for all of them; behind what a `Peek` was asked for before."""

    def __init__(self, peek: Peek, count: int) -> None:
        self.words = _words(count, 2)
        self.found = self.words.numpy()
        """The same, for whoever is in a hurry."""
        self._peek = peek

    def aim(self, address: int, step_bytes: int, pitch_bytes: int) -> Any:
        """For `read`: of the pairs, `pitch_bytes` apart, the first begins at `address` in device
        memory; the two words of each are `step_bytes` apart, of which the pitch is a multiple. Made
        once for many reads, since making it takes longer than to ask for one."""
        return _of_pairs(self.words, address, step_bytes, pitch_bytes)

    def read(self, aimed: Any) -> None:
        """Begin to read them. Raises RuntimeError when CUDA refuses."""
        _copy_3d(aimed, self._peek.stream)


class Glances:
    """Reads pairs of words, as a `PairPeek` does, several times, one directly after the other, into
    `found`, int64 [times, count, 2], in host memory. On a stream of its own: what a `Peek` reads is
    not ordered behind it, though it takes some microseconds longer meanwhile."""

    def __init__(self, times: int, count: int) -> None:
        self._words = _words(times, count, 2)
        self.found = self._words.numpy()
        self._stream = torch.cuda.Stream()
        self._aimed: list[Any] = []

    def aim(self, places: list[tuple[int, int]], pitch_bytes: int) -> None:
        """Of each time the address of the first pair, and how far apart its two words are."""
        self._aimed = [
            _of_pairs(words, address, step_bytes, pitch_bytes)
            for words, (address, step_bytes) in zip(self._words, places, strict=True)
        ]

    def read(self) -> None:
        """Begin to. Raises RuntimeError when CUDA refuses."""
        for aimed in self._aimed:
            _copy_3d(aimed, self._stream)

    def are_there(self) -> bool:
        """Whether all is read that was begun."""
        return self._stream.query()

    def wait(self) -> None:
        """Wait until it is."""
        self._stream.synchronize()


def _words(*shape: int) -> torch.Tensor:
    """Host memory that the copy engine reaches, int64, zero."""
    words = torch.empty(shape, dtype=torch.int64, pin_memory=True)
    words.numpy().fill(0)  # PyTorch would wake a thread on every processor for it, for 6 ms
    return words


def _of_pairs(words: torch.Tensor, address: int, step_bytes: int, pitch_bytes: int) -> Any:
    """A copy of pairs into `words`, int64 [count, 2]."""
    from cuda.bindings import runtime

    made = runtime.cudaMemcpy3DParms()
    made.srcPtr = runtime.make_cudaPitchedPtr(address, step_bytes, 8, pitch_bytes // step_bytes)
    made.dstPtr = runtime.make_cudaPitchedPtr(words.data_ptr(), 8, 8, 2)
    made.extent = runtime.make_cudaExtent(8, 2, len(words))
    made.kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
    return made


def _copy_3d(parameters: Any, stream: torch.cuda.Stream) -> None:
    from cuda.bindings import runtime

    (code,) = runtime.cudaMemcpy3DAsync(parameters, stream.cuda_stream)
    _expect_success(code)


def _expect_success(code: Any) -> None:
    from cuda.bindings import runtime

    if code != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"the CUDA runtime says {code.name}")
