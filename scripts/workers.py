"""Processes that grade side by side, one for each GPU."""

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
from typing import Any, Literal


@contextmanager
def workers(device: Literal["cpu", "cuda"]) -> Iterator[Executor]:
    """An executor with a process for every GPU that this one may use, which sees only that GPU; or
    with one process for the CPU. What is submitted first is begun first; what has not begun when
    the block is left, be it by an interruption, never is. What a process was at when it died ends
    with `BrokenProcessPool`, and another takes its place.

    Ends the program when a GPU is wanted and there is none.
    """
    names = visible_gpus() if device == "cuda" else [""]
    if not names:
        sys.exit("there is no NVIDIA GPU here that torch can use")
    executor = _Workers(names)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def visible_gpus() -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` may be set to, for each GPU that this process may use."""
    import torch

    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (chosen.split(",") if chosen else [str(number) for number in range(count)])[:count]


class _Workers(Executor):
    """Threads that each hand what they are given to a process, for one GPU."""

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
    """A process that sees one GPU, begun when it is needed; and another when that has died."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._process: ProcessPoolExecutor | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        """What the call returns or raises there."""
        if self._process is None:
            # A fork would inherit locks, and a CUDA that believes to be in its parent.
            context = multiprocessing.get_context("spawn")
            self._process = ProcessPoolExecutor(1, context, _begin, (self._gpu,))
        try:
            return self._process.submit(call).result()
        except BrokenProcessPool:
            self.end()
            raise

    def end(self) -> None:
        if self._process is not None:
            self._process.shutdown()
            self._process = None


def _begin(gpu: str) -> None:
    """Take one GPU for this process, which ends with its parent."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=_follow_the_parent, daemon=True).start()


def _follow_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
