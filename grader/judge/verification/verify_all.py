"""`verify_all()`: the check of many problems, in several processes side by side."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from grader.judge.authors_code import HungCallError
from grader.judge.record import Device
from grader.judge.verification.result import VerificationResult
from grader.judge.verification.verify import verify
from grader.problem import Problem, ProblemError
from grader.report import one_line


@dataclass(frozen=True)
class VerifiedProblem:
    """What verifying one problem found."""

    problem: str
    seconds: float
    error: str | None = None
    """Why there is no result: the problem's code failed, or its process ended."""
    findings: list[str] = field(default_factory=list)
    margin: float | None = None
    """The least margin of a case: what the mildest mutant uses of the bounds, over what the worst
    honest implementation uses. None without a mutant that has numbers."""
    cases: int = 0
    compiled: list[str] = field(default_factory=list)
    """The cases on which torch.compile was checked."""

    @property
    def ok(self) -> bool:
        """Whether the problem's check holds."""
        return self.error is None and not self.findings


def summary_of(problem: str, result: VerificationResult, seconds: float) -> VerifiedProblem:
    """The summary of a result."""
    ratios = [margin.ratio for margin in result.margins() if margin.ratio is not None]
    least = min(ratios, default=math.inf)
    return VerifiedProblem(
        problem,
        seconds,
        findings=result.findings(),
        margin=least if math.isfinite(least) else None,
        cases=result.cases,
        compiled=result.compiled,
    )


def verify_all(
    folders: Sequence[Path], device: Device, processes: int
) -> Iterator[VerifiedProblem]:
    """Verify the problems in `folders`, in this many processes, and yield each summary when it is
    there. The death of a process is the error of the problem that it verified."""
    left = list(folders)
    busy: dict[object, _Worker] = {}
    workers = [_Worker(device) for _ in left[:processes]]
    try:
        for worker in workers:
            busy[worker.begin(left.pop(0))] = worker
        while busy:
            for connection in wait([worker.connection for worker in busy.values()]):
                worker = busy.pop(connection)
                yield worker.result()
                if left:
                    busy[worker.begin(left.pop(0))] = worker
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that verifies one problem after another: importing torch.compile takes a CPU 5 s.
    After its death the next problem starts another."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._process: SpawnProcess | None = None

    def begin(self, folder: Path) -> Connection:
        """Verify the problem in `folder`; the connection returned is ready when it has ended."""
        if self._process is None:
            self.connection, theirs = Pipe()
            # A fork would copy the locks of torch's threads without the threads.
            context = multiprocessing.get_context("spawn")
            self._process = context.Process(target=_serve, args=(theirs, self._device))
            self._process.start()
            theirs.close()
        self._folder, self._began_s = folder, time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # `result` says that it has died
            self.connection.send(folder)
        return self.connection

    def result(self) -> VerifiedProblem:
        """The summary of the problem begun last."""
        try:
            summary: VerifiedProblem = self.connection.recv()
        except (EOFError, ConnectionResetError):  # the latter if it has not read its folder
            assert self._process is not None
            self._process.join()
            error = f"its process ended with exit status {self._process.exitcode}"
            self._process = None
            took_s = time.monotonic() - self._began_s
            return VerifiedProblem(self._folder.name, took_s, error)
        return summary

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()


def _serve(connection: Connection, device: Device) -> None:
    """Verify the problems whose folders arrive, until the process is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the first process, and it this one
    threading.excepthook = partial(_end_if_hung, threading.excepthook)
    if device == "cpu":
        # There is a process for each core; more threads would spin while they wait for others.
        torch.set_num_threads(1)
    with contextlib.suppress(EOFError):  # the first process has ended
        while True:
            connection.send(_summary(connection.recv(), device))


def _end_if_hung(
    otherwise: Callable[[threading.ExceptHookArgs], object], unhandled: threading.ExceptHookArgs
) -> None:
    """End this process for a call of a problem's code that cannot be stopped."""
    if not isinstance(unhandled.exc_value, HungCallError):
        otherwise(unhandled)
        return
    print(unhandled.exc_value, file=sys.stderr, flush=True)
    os._exit(2)


def _summary(folder: Path, device: Device) -> VerifiedProblem:
    began_s = time.monotonic()
    try:
        result = verify(Problem.load(folder), device)
    except ProblemError as error:
        return VerifiedProblem(folder.name, time.monotonic() - began_s, one_line(str(error)))
    return summary_of(folder.name, result, time.monotonic() - began_s)
