"""Which copies reach device memory while kernels of another process keep the GPU busy?

    python -m benchmarks.copy_engine [--tries 300]

Needs a GPU. Two contexts take turns on the SMs, in slices of about a millisecond. The copy engine
does not wait for a turn. The driver chooses between SMs and copy engine by kind and size of a copy.
The table has each copy's latency, from request to completion, beside a process that keeps the SMs
busy. A copy that waits for the SMs takes hundreds of microseconds at least now and then.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import click
import torch

from benchmarks.gpu import require_gpu

BUSY = """
import torch
x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
def work():
    for _ in range(8):
        torch.matmul(x, x, out=y)
work()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    work()
print("busy", flush=True)
while True:
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
"""
KIB = 1024
MOST_BYTES = 4096 * KIB


def copies() -> tuple[dict[str, Callable[[], None]], Callable[[], None], list[torch.Tensor]]:
    """The copies to time, by name; a function that waits for them; and their memory, to be kept."""
    from cuda.bindings import driver, runtime

    kind = runtime.cudaMemcpyKind
    stream = torch.cuda.Stream()
    device, other = (torch.zeros(MOST_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    host = torch.ones(MOST_BYTES, dtype=torch.uint8, pin_memory=True)
    to, frm, here = device.data_ptr(), other.data_ptr(), host.data_ptr()

    def ok(result: tuple[Any, ...]) -> None:
        if int(result[0]) != 0:
            raise RuntimeError(str(result[0]))

    def flat(target: int, source: int, nbytes: int, how: Any) -> Callable[[], None]:
        return lambda: ok(runtime.cudaMemcpyAsync(target, source, nbytes, how, stream.cuda_stream))

    def rows(
        target: int, source: int, width: int, pitch: int, count: int, how: Any
    ) -> Callable[[], None]:
        return lambda: ok(
            runtime.cudaMemcpy2DAsync(
                target, pitch, source, width, width, count, how, stream.cuda_stream
            )
        )

    def batch(target: int, source: int, nbytes: int) -> Callable[[], None]:
        attributes = runtime.cudaMemcpyAttributes()
        attributes.srcAccessOrder = runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
        attributes.flags = runtime.cudaMemcpyFlags.cudaMemcpyFlagPreferOverlapWithCompute
        return lambda: ok(
            runtime.cudaMemcpyBatchAsync(
                [target], [source], [nbytes], 1, [attributes], [0], 1, stream.cuda_stream
            )
        )

    up, down, inside = (
        kind.cudaMemcpyHostToDevice,
        kind.cudaMemcpyDeviceToHost,
        kind.cudaMemcpyDeviceToDevice,
    )
    found: dict[str, Callable[[], None]] = {
        "to host, 64 rows of 8 B": lambda: ok(
            runtime.cudaMemcpy2DAsync(here, 8, to, 4096, 8, 64, down, stream.cuda_stream)
        )
    }
    for size in (4, 32, 64, 68, 128, 512):
        found[f"to device, {size} KiB"] = flat(to, here, size * KIB, up)
    for width, pitch, count in (
        (8, 64, 64),
        (64, 128, 64),
        (4096, 8192, 1),
        (4096, 8192, 2),
        (64, 128, 8),
        (2048, 4096, 64),
    ):
        name = f"to device, {count} rows of {width} B, {pitch} B apart"
        found[name] = rows(to, here, width, pitch, count, up)
    for size in (4, 64, 128, 1024):
        found[f"inside, {size} KiB"] = flat(to, frm, size * KIB, inside)
    for width, count in ((64, 64), (2048, 64)):
        name = f"inside, {count} rows of {width} B, {2 * width} B apart"
        found[name] = rows(to, frm, width, 2 * width, count, inside)
    for name, source in (("to device", here), ("inside", frm)):
        for size in (4, 128, 1024):
            found[f"{name}, {size} KiB, beside kernels"] = batch(to, source, size * KIB)
    found["one word by a stream memory operation"] = lambda: ok(
        driver.cuStreamWriteValue32(stream.cuda_stream, to, driver.cuuint32_t(7), 0)
    )
    return found, stream.synchronize, [device, other, host]


def times_us(copy: Callable[[], None], wait: Callable[[], None], tries: int) -> list[float]:
    """Latencies of `tries` copies, one at a time, in ascending order."""
    found = []
    for _ in range(tries):
        time.sleep(1e-4)
        start_ns = time.perf_counter_ns()
        copy()
        wait()
        found.append((time.perf_counter_ns() - start_ns) / 1e3)
    return sorted(found)


def table(tries: int) -> None:
    """Print a row for each kind of copy."""
    found, wait, _memory = copies()
    for name, copy in found.items():
        try:
            times_us(copy, wait, 5)
            took = times_us(copy, wait, tries)
        except Exception as error:  # noqa: BLE001 - a driver without this copy says so in its row
            print(f"| {name} | {error} | | |", flush=True)
            continue
        middle, high = took[len(took) // 2], took[len(took) * 9 // 10]
        print(f"| {name} | {middle:.0f} | {high:.0f} | {took[-1]:.0f} |", flush=True)


@click.command()
@click.option("--tries", default=300, show_default=True, type=click.IntRange(min=10))
def main(tries: int) -> None:
    """Time copies on an idle GPU, and beside a busy process."""
    require_gpu()
    head = "| copy | median µs | 90 % µs | most µs |\n|---|---|---|---|"
    print(f"idle\n\n{head}")
    table(max(10, tries // 10))
    busy = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        print(f"\nbeside a busy process\n\n{head}")
        table(tries)
    finally:
        busy.kill()
        busy.wait()


if __name__ == "__main__":
    main()
