"""What was compiled for a submission's tests, kept for the grading that times it: Triton's cache,
or the library of a `.cu` file.

Both gradings have a sandbox of their own. The bytes come from a sandbox of the submission and go
only to another of the same submission: the judge stores them and never looks at them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from grader.judge.session import Session
from grader.wire import fixed_size_memfd

KERNELS_BYTES = 64 << 20
"""The most that is taken. Memory is allocated only for what is written."""
RECEIVE_S = 10.0
LENGTH_BYTES = 8
"""A library in lent memory begins with its length (`grader/runner/compiler.py`)."""


@dataclass(frozen=True)
class KeptKernels:
    """A file for what one grading hands to another."""

    path: Path

    def save_library(self, fd: int, compiler: dict[str, str]) -> None:
        """Keep the library that the compiler of a `.cu` file wrote into lent memory."""
        length = LENGTH_BYTES + int.from_bytes(os.pread(fd, LENGTH_BYTES, 0), "little")
        library = os.pread(fd, min(length, os.fstat(fd).st_size), 0)
        self.path.write_bytes(json.dumps(compiler).encode() + b"\n" + library)

    def restore_library(self, fd: int) -> dict[str, str] | None:
        """Write the kept library into lent memory. Returns the name and version of its compiler;
        None if there is no library."""
        if not self.path.exists():
            return None
        head, library = self.path.read_bytes().split(b"\n", 1)
        os.pwrite(fd, library, 0)
        compiler: dict[str, str] = json.loads(head)
        return compiler

    def receive(self, session: Session) -> None:
        """Have the runner write it. Raises `SubmissionFault` when that fails."""
        fd = fixed_size_memfd("kernels", KERNELS_BYTES)
        try:
            what = "handing over its kernels"
            reply = session.ask("keep_kernels", {}, RECEIVE_S, what, fds=(fd,))
            if reply.calls:
                self.path.write_bytes(os.pread(fd, min(reply.calls, KERNELS_BYTES), 0))
        finally:
            os.close(fd)

    def read(self) -> bytes | None:
        """What was kept; None if nothing was."""
        return self.path.read_bytes() if self.path.exists() else None
