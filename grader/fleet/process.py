"""A slot's process as its keeper holds it: pipes that never block, an end that leaves nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress

GRACE_S = 10.0
"""How long a slot may take to end its sandboxes before it is killed."""


class Process:
    """A slot's process in a process group of its own, with pipes that never block us."""

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

    def wait(self, wake: int, to_write: bool, deadline: float) -> None:
        """Until there is something to read, or to write if asked, or it died, or `wake` is set."""
        poller = select.poll()
        for fd in (self._stdout, self._pidfd, wake):
            poller.register(fd, select.POLLIN)
        if to_write:
            poller.register(self._stdin, select.POLLOUT)
        left_s = deadline - time.monotonic()
        poller.poll(None if left_s == float("inf") else max(0.0, left_s * 1000))

    def write(self, data: bytes) -> int:
        """How many bytes it took; all of them where it is dead, which reading will tell."""
        try:
            return os.write(self._stdin, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)

    def read(self) -> bytes | None:
        """What it said; None when it said nothing, empty when it is dead and said all."""
        try:
            return os.read(self._stdout, 1 << 16)
        except BlockingIOError:
            # A child of its own may hold the pipe open.
            return b"" if self._is_dead() else None

    def end(self) -> None:
        """End it and its process group: let it clean up if it will, then kill."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.stdout.close()
        if not self._is_dead():
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            self._is_dead(GRACE_S)
        # Its id is its group's too, and nobody else's until we have waited for it.
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        os.close(self._pidfd)

    def ending(self) -> str:
        """How it ended, in words."""
        code = self._popen.returncode
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def _is_dead(self, timeout_s: float = 0) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
