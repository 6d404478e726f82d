"""The program: `grade`, and the same as `python -m grader.cli`."""

import atexit
import os
import sys
from contextlib import suppress

from grader.cli import main


def program() -> None:
    """Run one command, and be gone as soon as all is in order.

    Python waits for threads and calls what is registered for the exit, the first of it last. That
    is us, and we leave there: to take torch to pieces would keep the shell waiting for a second.
    """
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


if __name__ == "__main__":
    program()
