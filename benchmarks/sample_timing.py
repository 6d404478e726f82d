"""How far apart in time are the words of one sample read, and how long does a sample take?

    python -m benchmarks.sample_timing [--tries 40]

Needs a GPU and nvcc. A kernel writes the SM clock into some words continuously while the copy
engine reads them, so each word shows when it was read. The first table, in nanoseconds, is of one
place of every set, of boundary pairs, of two reads in a row, and of the pairs of a whole sample.
The second, in microseconds, is the latency of a read, from request to completion: alone, and beside
another process that keeps the GPU busy.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch

from benchmarks.copy_engine import BUSY
from benchmarks.gpu import require_gpu
from benchmarks.sm_clock_kernel import sm_clock_mhz
from grader.judge.gpu.dma import CopyEngine, PairReader
from grader.judge.integrity.policy import CALL_ORDER

CLOCK = r"""
__global__ void write_clock(unsigned long long* const* at, int count, volatile int* stop) {
    if (threadIdx.x >= count) return;
    volatile unsigned long long* word = at[threadIdx.x];
    while (!*stop) for (int i = 0; i < 64; ++i) *word = clock64();
}
extern "C" void begin(unsigned long long* const* at, int count, int* stop, cudaStream_t stream) {
    write_clock<<<1, 1024, 0, stream>>>(at, count, stop);
}
"""
SETS, SET_BYTES = 24, 128 * (512 << 10)
STEPS = (1 << 20, 512 << 10, 8 << 10)
"""Bytes between the two words of a set boundary."""
SAMPLES = 300


class ClockWriter:
    """A kernel that writes the SM clock into words until it is stopped."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "clock.cu", Path(folder) / "clock.so"
            source.write_text(CLOCK)
            flags = ["-shared", "-Xcompiler=-fPIC", "-arch=native"]
            subprocess.run(["nvcc", *flags, "-o", str(library), str(source)], check=True)
            self._begin = ctypes.CDLL(str(library)).begin
        pointer = ctypes.c_void_p
        self._begin.argtypes = [pointer, ctypes.c_int, pointer, pointer]
        self._stop = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._stream = torch.cuda.Stream()
        for _ in range(2):  # the first call compiles
            self._mhz = sm_clock_mhz() or math.nan

    def during(self, addresses: list[int], sample: Callable[[], list[int]]) -> list[float]:
        """When a sample read each word, nanoseconds after the first."""
        at = torch.tensor(addresses, device="cuda")
        self._stop[0] = 0
        torch.cuda.synchronize()
        stop, stream = self._stop.data_ptr(), self._stream.cuda_stream
        self._begin(at.data_ptr(), len(addresses), stop, stream)
        time.sleep(1e-3)  # until it writes
        read = sample()
        self._stop[0] = 1
        torch.cuda.synchronize()
        return [(ticks - read[0]) / self._mhz * 1e3 for ticks in read]


def spread(values: list[float]) -> str:
    """Minimum, median and maximum."""
    values = sorted(values)
    return " | ".join(f"{v:.0f}" for v in (values[0], values[len(values) // 2], values[-1]))


def latency_us(sample: Callable[[], object]) -> str:
    """Median and maximum latency of many samples, after a few."""
    found = []
    for _ in range(SAMPLES):
        start_ns = time.perf_counter_ns()
        sample()
        found.append((time.perf_counter_ns() - start_ns) / 1e3)
    found = sorted(found[5:])  # the first ones warm up
    return f"{found[len(found) // 2]:.1f} | {found[-1]:.1f}"


@click.command()
@click.option("--tries", default=40, show_default=True, type=click.IntRange(min=1))
def main(tries: int) -> None:
    """Time samples, and the words in them."""
    require_gpu()
    memory = torch.zeros(SETS * SET_BYTES // 8, dtype=torch.int64, device="cuda")
    base = memory.data_ptr()
    copies = CopyEngine(2 * SETS)
    places = {step: (base + SET_BYTES - step // 2, step) for step in STEPS}
    readers = {step: PairReader(copies, 1, SETS - 1) for step in STEPS}
    for step, reader in readers.items():
        reader.prepare([places[step]], SET_BYTES)
    pairs = PairReader(copies, CALL_ORDER.pairs, SETS - 1)
    pairs.prepare([places[STEPS[0]]] * CALL_ORDER.pairs, SET_BYTES)

    def one() -> list[int]:
        copies.read(base, SET_BYTES, SETS, 0)
        copies.wait()
        return copies.words[:SETS].tolist()

    def two() -> list[int]:
        copies.read(base, SET_BYTES, SETS, 0)
        copies.read(base + 8, SET_BYTES, SETS, SETS)
        copies.wait()
        return copies.words.tolist()

    def read_pairs(reader: PairReader) -> list[int]:
        reader.read()
        copies.wait()
        found: list[int] = reader.found.flatten().tolist()
        return found

    def sample() -> None:
        copies.read(base, SET_BYTES, SETS, 0)
        pairs.read()
        copies.wait()

    starts = [base + i * SET_BYTES for i in range(SETS)]
    clock = ClockWriter()
    print("| nanoseconds between | least | median | most |\n|---|---|---|---|")
    ones = [clock.during(starts, one) for _ in range(tries)]
    print(f"| first and last word of one place | {spread([max(t) - min(t) for t in ones])} |")
    for step, reader in readers.items():
        words = [a + side * step // 2 for a in starts[1:] for side in (-1, 1)]
        found = [clock.during(words, partial(read_pairs, reader)) for _ in range(tries)]
        within = [t[i + 1] - t[i] for t in found for i in range(0, len(t), 2)]
        print(f"| the two words of a boundary pair, {step >> 10} KiB apart | {spread(within)} |")
        every = [max(t) - min(t) for t in found]
        print(f"| first and last word of all sets' pairs | {spread(every)} |")
    twos = [clock.during(starts + [a + 8 for a in starts], two) for _ in range(tries)]
    print(f"| two reads in a row | {spread([t[SETS] for t in twos])} |")
    words = [a + side * STEPS[0] // 2 for a in starts[1:] for side in (-1, 1)]
    found = [clock.during(words, partial(read_pairs, pairs)) for _ in range(tries)]
    each = len(words)
    apart = [t[i + each] - t[i] for t in found for i in range(0, len(t) - each, each)]
    print(f"| two boundary pairs of a sample | {spread(apart)} |")

    samples: dict[str, Callable[[], object]] = {
        "one place": one,
        "two reads": two,
        "one boundary pair": partial(read_pairs, readers[STEPS[0]]),
        f"{CALL_ORDER.pairs} boundary pairs": partial(read_pairs, pairs),
        "a whole sample": sample,
    }
    print("\n| µs, alone and beside a busy process | median | most | median | most |")
    print("|---|---|---|---|---|")
    alone = {name: latency_us(read) for name, read in samples.items()}
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            for name, read in samples.items():
                print(f"| {name} | {alone[name]} | {latency_us(read)} |")
        finally:
            busy.kill()


if __name__ == "__main__":
    main()
