"""How far apart in time are the words of one sample read, and how long does a sample take?

    python -m benchmarks.sample_timing [--tries 40]

Needs a GPU and nvcc. A kernel writes the SM clock into some words continuously while the copy
engine reads them, so each word shows when it was read. The first table, in nanoseconds, is of a
sample at one place of every set, a set-boundary sample, two samples in a row, and burst samples.
The second, in microseconds, is the latency of a sample, from request to completion: alone, and
beside another process that keeps the GPU busy.
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
from grader.judge.gpu.dma import Glances, PairPeek, Peek
from grader.judge.gpu.sm_clock_kernel import sm_clock_mhz
from grader.judge.integrity.call_order import GLANCES

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
    peek = Peek(2 * SETS)
    pairs = PairPeek(peek, SETS - 1)
    places = {step: (base + SET_BYTES - step // 2, step) for step in STEPS}
    aimed = {step: pairs.aim(*place, SET_BYTES) for step, place in places.items()}
    glances = Glances(GLANCES, SETS - 1)
    glances.aim([places[STEPS[0]]] * GLANCES, SET_BYTES)

    def one() -> list[int]:
        peek.read(base, SET_BYTES, SETS, 0)
        peek.wait()
        return peek.words[:SETS].tolist()

    def two() -> list[int]:
        peek.read(base, SET_BYTES, SETS, 0)
        peek.read(base + 8, SET_BYTES, SETS, SETS)
        peek.wait()
        return peek.words.tolist()

    def boundary(step: int) -> list[int]:
        pairs.read(aimed[step])
        peek.wait()
        return pairs.words.flatten().tolist()

    def some() -> list[int]:
        glances.read()
        glances.wait()
        found: list[int] = glances.found.flatten().tolist()
        return found

    def beside() -> None:
        peek.read(base, SET_BYTES, SETS, 0)
        if glances.are_there():
            glances.read()
        peek.wait()

    starts = [base + i * SET_BYTES for i in range(SETS)]
    clock = ClockWriter()
    print("| nanoseconds between | least | median | most |\n|---|---|---|---|")
    ones = [clock.during(starts, one) for _ in range(tries)]
    print(f"| first and last word of a sample | {spread([max(t) - min(t) for t in ones])} |")
    for step in STEPS:
        words = [a + side * step // 2 for a in starts[1:] for side in (-1, 1)]
        found = [clock.during(words, partial(boundary, step)) for _ in range(tries)]
        within = [t[i + 1] - t[i] for t in found for i in range(0, len(t), 2)]
        print(f"| the two words of a boundary, {step >> 10} KiB apart | {spread(within)} |")
        every = [max(t) - min(t) for t in found]
        print(f"| first and last word of all its boundaries | {spread(every)} |")
    twos = [clock.during(starts + [a + 8 for a in starts], two) for _ in range(tries)]
    print(f"| two samples in a row | {spread([t[SETS] for t in twos])} |")
    words = [a + side * STEPS[0] // 2 for a in starts[1:] for side in (-1, 1)]
    found = [clock.during(words, some) for _ in range(tries)]
    each = len(words)
    apart = [t[i + each] - t[i] for t in found for i in range(0, len(t) - each, each)]
    print(f"| two burst samples in a row | {spread(apart)} |")
    within = [t[i + 1] - t[i] for t in found for i in range(0, len(t), 2)]
    print(f"| the two words of a boundary, in a burst | {spread(within)} |")

    samples: dict[str, Callable[[], object]] = {
        "one place": one,
        "two samples": two,
        "set boundaries": partial(boundary, STEPS[0]),
        f"a burst of {GLANCES}": some,
        "one place, and a burst meanwhile": beside,
    }
    print("\n| µs, alone and beside a busy process | median | most | median | most |")
    print("|---|---|---|---|---|")
    alone = {name: latency_us(sample) for name, sample in samples.items()}
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            for name, sample in samples.items():
                print(f"| {name} | {alone[name]} | {latency_us(sample)} |")
        finally:
            busy.kill()


if __name__ == "__main__":
    main()
