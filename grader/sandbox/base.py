"""The protocol between the judge and the sandbox that runs a submission.

A `Sandbox` starts a `Runner`: a process tree that runs `python -m grader.runner` with one end of a
Unix `SOCK_SEQPACKET` socket. The judge holds the other end (`Runner.channel`). Nothing else passes
between them; the runner's output is kept for a person to read.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from grader.problem.spec import Limits

Device = Literal["cpu", "cuda"]
"""The device that a submission runs on."""
RunnerDevice = Literal["cpu", "cuda", "none"]
"""The device that a runner gets; one with ``none`` can only compile."""


def exit_on_signals() -> None:
    """Exit normally on SIGTERM and SIGHUP unless handled, so that `atexit` stops the runners."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class SandboxError(Exception):
    """The sandbox could not be started or stopped. Never the submission's fault."""


@dataclass(frozen=True)
class RunnerLimits:
    """What one runner may use. The numbers come from `grader.problem.spec.Limits`."""

    memory_bytes: int
    scratch_bytes: int
    output_bytes: int
    pids: int
    open_files: int = 4096

    @classmethod
    def of(cls, limits: Limits) -> RunnerLimits:
        """The part of a problem's limits that applies to a runner."""
        return cls(limits.memory_bytes, limits.scratch_bytes, limits.output_bytes, limits.pids)


@dataclass(frozen=True)
class RunnerExit:
    """How a runner ended, as seen from outside. At most one of the last three fields is true."""

    exit_code: int | None = None
    """Exit status; None when a signal ended the runner, or the cause is unknown."""
    signal: int | None = None
    out_of_memory: bool = False
    """It was killed at `memory_bytes`."""
    output_exceeded: bool = False
    """It was killed for printing more than `output_bytes`."""
    stopped: bool = False
    """The judge stopped it."""


class Runner(ABC):
    """One running sandbox, used by one submission. A context manager that stops it."""

    channel: socket.socket
    """The judge's end of the wire: connected, `SOCK_SEQPACKET`, non-inheritable."""

    @abstractmethod
    def poll(self) -> RunnerExit | None:
        """How the runner ended, or None while it runs. Returns quickly, never raises."""

    @abstractmethod
    def log(self) -> bytes:
        """Its stdout and stderr so far, in order of arrival, capped."""

    @abstractmethod
    def stop(self) -> RunnerExit:
        """Kill the process tree, wait for it and remove its files. Idempotent, never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Sandbox(ABC):
    """A way to run submissions."""

    name: str
    """``docker`` or ``process``."""

    @abstractmethod
    def describe(self) -> str:
        """The name, and in brackets the kind of isolation, for the report."""

    @abstractmethod
    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """Start a runner and return it once it is connected. Thread-safe.

        Raises `SandboxError` when it cannot be started.
        """
