"""How far apart in time are the words that one look reads, and how long does a look take?

    python -m benchmarks.sample_timing [--tries 40]

Needs a GPU and nvcc. A kernel writes its clock into some words again and again, while the copy
engine reads them: so each word tells when it was read. The first table has that for a look at one
place of every set, for one at a seam, for two looks one directly after the other, and for glances,
in nanoseconds; the second has how long a look takes, from asking until it is there, in
microseconds: alone, and beside another process that keeps the GPU busy.
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
from benchmarks.gpu import needs_gpu
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
"""Bytes between the two words of a seam."""
LOOKS = 300


class Clock:
    """A kernel that writes its clock into words, until it is told to stop."""

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
        for _ in range(2):  # the first one compiles
            self._mhz = sm_clock_mhz() or math.nan

    def during(self, addresses: list[int], look: Callable[[], list[int]]) -> list[float]:
        """When each word was read by a look, nanoseconds after the first."""
        at = torch.tensor(addresses, device="cuda")
        self._stop[0] = 0
        torch.cuda.synchronize()
        stop, stream = self._stop.data_ptr(), self._stream.cuda_stream
        self._begin(at.data_ptr(), len(addresses), stop, stream)
        time.sleep(1e-3)  # until it writes
        read = look()
        self._stop[0] = 1
        torch.cuda.synchronize()
        return [(ticks - read[0]) / self._mhz * 1e3 for ticks in read]


def spread(values: list[float]) -> str:
    """Least, middle and most."""
    values = sorted(values)
    return " | ".join(f"{v:.0f}" for v in (values[0], values[len(values) // 2], values[-1]))


def took_us(look: Callable[[], object]) -> str:
    """Middle and most of many looks, after a few."""
    found = []
    for _ in range(LOOKS):
        start_ns = time.perf_counter_ns()
        look()
        found.append((time.perf_counter_ns() - start_ns) / 1e3)
    found = sorted(found[5:])
    return f"{found[len(found) // 2]:.1f} | {found[-1]:.1f}"


@click.command()
@click.option("--tries", default=40, show_default=True, type=click.IntRange(min=1))
def main(tries: int) -> None:
    """Time looks, and the words in them."""
    needs_gpu()
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

    def seam(step: int) -> list[int]:
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
    clock = Clock()
    print("| nanoseconds between | least | median | most |\n|---|---|---|---|")
    ones = [clock.during(starts, one) for _ in range(tries)]
    print(f"| first and last word of a look | {spread([max(t) - min(t) for t in ones])} |")
    for step in STEPS:
        words = [a + side * step // 2 for a in starts[1:] for side in (-1, 1)]
        found = [clock.during(words, partial(seam, step)) for _ in range(tries)]
        within = [t[i + 1] - t[i] for t in found for i in range(0, len(t), 2)]
        print(f"| the two words of a seam, {step >> 10} KiB apart | {spread(within)} |")
        every = [max(t) - min(t) for t in found]
        print(f"| first and last word of all its seams | {spread(every)} |")
    twos = [clock.during(starts + [a + 8 for a in starts], two) for _ in range(tries)]
    print(f"| two looks directly after one another | {spread([t[SETS] for t in twos])} |")
    words = [a + side * STEPS[0] // 2 for a in starts[1:] for side in (-1, 1)]
    found = [clock.during(words, some) for _ in range(tries)]
    each = len(words)
    apart = [t[i + each] - t[i] for t in found for i in range(0, len(t) - each, each)]
    print(f"| two glances directly after one another | {spread(apart)} |")
    within = [t[i + 1] - t[i] for t in found for i in range(0, len(t), 2)]
    print(f"| the two words of a seam, by glances | {spread(within)} |")

    looks: dict[str, Callable[[], object]] = {
        "one place": one,
        "two looks": two,
        "a seam": partial(seam, STEPS[0]),
        f"{GLANCES} glances": some,
        "one place, and glances meanwhile": beside,
    }
    print("\n| µs, alone and beside a busy process | median | most | median | most |")
    print("|---|---|---|---|---|")
    alone = {name: took_us(look) for name, look in looks.items()}
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            for name, look in looks.items():
                print(f"| {name} | {alone[name]} | {took_us(look)} |")
        finally:
            busy.kill()


if __name__ == "__main__":
    main()
