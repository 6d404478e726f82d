"""The seam between the judge and whatever runs a submission: one small protocol.

A `Sandbox` starts a `Runner`: a process tree that runs `python -m grader.runner` with one end of a
Unix `SOCK_SEQPACKET` socket. The judge holds the other end (`Runner.channel`) and nothing else
passes between them; what the runner prints is kept for a person to read.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from grader.problem.spec import Limits

Device = Literal["cpu", "cuda"]
"""What a submission runs on."""
RunnerDevice = Literal["cpu", "cuda", "none"]
"""What a sandbox has of that: a device to run on, or none, and then it can only compile."""


def exit_on_signals() -> None:
    """Unwind on SIGTERM and SIGHUP, where nobody else handles them, so that what must be ended at
    the exit is ended."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class SandboxError(Exception):
    """The sandbox could not be started or ended: ours, never the submission's. For a person."""


@dataclass(frozen=True)
class RunnerLimits:
    """What one runner may use; see `grader.problem.spec.Limits` for where the numbers come from."""

    memory_bytes: int
    scratch_bytes: int
    output_bytes: int
    pids: int
    open_files: int = 4096

    @classmethod
    def of(cls, limits: Limits) -> RunnerLimits:
        """What a problem's limits grant a runner."""
        return cls(limits.memory_bytes, limits.scratch_bytes, limits.output_bytes, limits.pids)


@dataclass(frozen=True)
class RunnerExit:
    """How a runner ended, as seen from outside it. At most one of the three causes is set."""

    exit_code: int | None = None
    """Exit status of the runner; null when a signal ended it, or nobody knows what did."""
    signal: int | None = None
    out_of_memory: bool = False
    """Ended because it reached `memory_bytes`."""
    output_exceeded: bool = False
    """Ended because it printed more than `output_bytes`."""
    stopped: bool = False
    """Ended because we stopped it."""


class Runner(ABC):
    """One running sandbox, used by one submission and then destroyed. A context manager."""

    channel: socket.socket
    """The judge's end of the wire: connected, `SOCK_SEQPACKET`, non-inheritable."""

    @abstractmethod
    def poll(self) -> RunnerExit | None:
        """How the runner ended, or None while it runs. Never blocks for long, never raises."""

    @abstractmethod
    def log(self) -> bytes:
        """What it has printed so far, stdout and stderr in order of arrival, capped by us."""

    @abstractmethod
    def stop(self) -> RunnerExit:
        """Kill the whole tree, wait for it, remove every trace. May be repeated; never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Sandbox(ABC):
    """A way to run submissions."""

    name: str
    """``docker`` or ``process``."""

    @abstractmethod
    def describe(self) -> str:
        """The name, and in brackets what of it matters to a reader of the report."""

    @abstractmethod
    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """Start a runner and return once it is connected. More than one thread may do that.

        Raises `SandboxError` when it cannot be started.
        """
