"""The program: `grade`, and the same as `python -m grader.cli`."""

import atexit
import io
import os
import sys
from contextlib import suppress
from typing import Any

from grader.cli import main


def program() -> None:
    """Run one command, and be gone as soon as all is in order.

    Python waits for threads and calls what is registered for the exit, the first of it last. That
    is us, and we leave there: to take torch to pieces would keep the shell waiting for a second.
    """
    _open_what_is_closed()
    _let_stderr_fail()
    status: int | None = None

    def leave() -> None:
        if status is None:  # Python's own end tells why
            return
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):  # `main` has told of what cannot be written
                stream.flush()
        os._exit(status)

    atexit.register(leave)
    status = main()
    sys.exit(status)


def _open_what_is_closed() -> None:
    """Give a standard stream that the shell closed (``>&-``) to nobody: else Python has none to
    flush, and the next file to be opened takes its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is given out, so it is the stream's own.
            nobody = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nobody, True)
            setattr(sys, name, os.fdopen(nobody, mode, closefd=False))


class _Unheard(io.FileIO):
    """Takes what cannot be written as written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _let_stderr_fail() -> None:
    """Notes that go to a full disk, or to a reader who went away, change no verdict's status."""
    told = sys.stderr
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Unheard(told.fileno(), "w", closefd=False)),
        encoding=told.encoding,
        errors=told.errors,
        line_buffering=True,
    )


if __name__ == "__main__":
    program()
