"""Worker processes for parallel gradings, one per GPU, and shares of work for several machines."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import click

Work = TypeVar("Work")


@contextmanager
def workers(device: Literal["cpu", "cuda"]) -> Iterator[Executor]:
    """An executor with one process per visible GPU, or one process for the CPU.

    Each process sees only its GPU. Tasks start in the order of their submission; tasks that have
    not started when the block is left are cancelled. When a process dies, its task raises
    `BrokenProcessPool` and a new process takes its place.

    Ends the program if `device` is ``cuda`` and there is no GPU.
    """
    names = visible_gpus() if device == "cuda" else [""]
    if not names:
        sys.exit("torch finds no NVIDIA GPU on this machine")
    executor = _GpuExecutor(names)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def visible_gpus() -> list[str]:
    """The value of `CUDA_VISIBLE_DEVICES` for each GPU that this process may use."""
    import torch

    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (chosen.split(",") if chosen else [str(number) for number in range(count)])[:count]


class _GpuExecutor(Executor):
    """One thread per GPU, which passes each task to an idle process."""

    def __init__(self, names: list[str]) -> None:
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for name in names:
            self._idle.put(_Worker(name))
        self._threads = ThreadPoolExecutor(len(names))

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self._threads.submit(self._run, partial(call, *args, **options))

    def _run(self, call: Callable[[], Any]) -> Any:
        worker = self._idle.get()
        try:
            return worker.run(call)
        finally:
            self._idle.put(worker)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        while not self._idle.empty():
            self._idle.get().end()


class _Worker:
    """A process that sees one GPU. It starts with the first task, and again after it died."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._process: ProcessPoolExecutor | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        """Run the task in the process; return or raise what it does."""
        if self._process is None:
            # A forked process would inherit locks and an unusable CUDA context.
            context = multiprocessing.get_context("spawn")
            self._process = ProcessPoolExecutor(1, context, _start, (self._gpu,))
        try:
            return self._process.submit(call).result()
        except BrokenProcessPool:
            self.end()
            raise

    def end(self) -> None:
        if self._process is not None:
            self._process.shutdown()
            self._process = None


def _start(gpu: str) -> None:
    """Restrict this process to one GPU, and end it with its parent."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """End this process when its parent has ended; for a thread of its own."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def shared(every: list[Work], share: str) -> list[Work]:
    """The work of one share, such as ``2/4``. Raises click.BadParameter."""
    number, _, count = share.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(f"{share!r} is no share such as 2/4", param_hint="--share")
    return every[int(number) - 1 :: int(count)]
