"""What Triton compiled for a submission's tests, kept for the grading that times it.

Both gradings have a sandbox of their own. The bytes come from the submission and go only to the
sandbox of the same submission: the judge stores them and never looks at them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grader.judge.session import Session
from grader.wire import fixed_size_memfd

KERNELS_BYTES = 64 << 20
"""The most that is taken. Memory is allocated only for what is written."""
RECEIVE_S = 10.0


@dataclass(frozen=True)
class KeptKernels:
    """A file for what the runner of one grading hands to that of another."""

    path: Path

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
