"""A child process with non-blocking pipes, which ends together with its process group."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress

GRACE_S = 10.0
"""Time for a worker process to close its sandboxes before it is killed."""


class ChildProcess:
    """A process in its own process group, with non-blocking pipes to its stdin and stdout."""

    def __init__(self, command: list[str]) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._pidfd = os.pidfd_open(self._popen.pid)

    def wait(self, wake_fd: int, to_write: bool, deadline: float) -> None:
        """Wait until stdout or `wake_fd` is readable, the process ends, or, if `to_write`, stdin is
        writable. `deadline` is in seconds of `time.monotonic`."""
        poller = select.poll()
        for fd in (self._stdout, self._pidfd, wake_fd):
            poller.register(fd, select.POLLIN)
        if to_write:
            poller.register(self._stdin, select.POLLOUT)
        left_s = deadline - time.monotonic()
        poller.poll(None if left_s == float("inf") else max(0.0, left_s * 1000))

    def write(self, data: bytes) -> int:
        """Write to stdin. Returns the number of bytes taken; all of them if the process has ended,
        which `read` reports."""
        try:
            return os.write(self._stdin, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)

    def read(self) -> bytes | None:
        """Bytes from stdout; None if there are none yet, empty once the process has ended and
        everything is read."""
        try:
            return os.read(self._stdout, 1 << 16)
        except BlockingIOError:
            # A grandchild may keep the pipe open after the child has ended.
            return b"" if self._has_ended() else None

    def end(self) -> None:
        """End the process and its process group: SIGTERM, then SIGKILL after `GRACE_S`."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.stdout.close()
        if not self._has_ended():
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            self._has_ended(GRACE_S)
        # Its pid is also its group's id, and is not reused until we have waited for it.
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        os.close(self._pidfd)

    def exit_reason(self) -> str:
        """How the process ended, such as ``exit status 1`` or ``signal 9``."""
        code = self._popen.returncode
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def _has_ended(self, timeout_s: float = 0) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
