"""Processes that grade side by side, one for each GPU."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.queues import Queue
from typing import Literal


@contextmanager
def workers(device: Literal["cpu", "cuda"]) -> Iterator[Executor]:
    """An executor with a process for every GPU that this one may use, which sees only that GPU; or
    with one process for the CPU. What is submitted first is begun first; what has not begun when
    the block is left, be it by an interruption, never is.

    Ends the program when a GPU is wanted and there is none.
    """
    names = visible_gpus() if device == "cuda" else [""]
    if not names:
        sys.exit("there is no NVIDIA GPU here that torch can use")
    # A fork would inherit locks, and a CUDA that believes to be in its parent.
    context = multiprocessing.get_context("spawn")
    unclaimed = context.Queue()
    for name in names:
        unclaimed.put(name)
    executor = ProcessPoolExecutor(len(names), context, _claim, (unclaimed,))
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


def _claim(unclaimed: Queue[str]) -> None:
    """Take one GPU for this process, which ends with its parent."""
    if name := unclaimed.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = name
    threading.Thread(target=_follow_the_parent, daemon=True).start()


def _follow_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
