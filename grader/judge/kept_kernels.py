"""What was compiled of a submission, kept for its next sandbox: Triton's cache, or the library of a
`.cu` file.

Compiling, testing and timing may each have a sandbox of their own. The bytes come from a sandbox of
the submission and go only to another of the same submission: the judge stores them and never looks
at them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grader.judge.session import Session
from grader.wire import Reply, fixed_size_memfd

KERNELS_BYTES = 64 << 20
"""The most that is taken. Memory is allocated only for what is written."""
RECEIVE_S = 10.0


@dataclass(frozen=True)
class KeptKernels:
    """A file for what one grading hands to another."""

    path: Path

    def save_library(self, content: bytes, compiler: dict[str, str]) -> None:
        """Keep the library of a `.cu` file, with the name and version of its compiler."""
        self._write(json.dumps(compiler).encode() + b"\n" + content)

    def library(self) -> tuple[bytes, dict[str, str]] | None:
        """What `save_library` kept; None if nothing was."""
        if (kept := self.read()) is None:
            return None
        head, content = kept.split(b"\n", 1)
        return content, json.loads(head)

    def receive(self, session: Session) -> None:
        """Have the runner write it. Raises `SubmissionFault` when that fails."""
        what = "handing over its kernels"
        self.receive_reply(lambda fd: session.ask("keep_kernels", {}, RECEIVE_S, what, fds=(fd,)))

    def receive_reply(self, ask: Callable[[int], Reply]) -> None:
        """Lend memory to a request, and keep what its reply says was written there."""
        fd = fixed_size_memfd("kernels", KERNELS_BYTES)
        try:
            if length := ask(fd).calls:
                self._write(os.pread(fd, min(length, KERNELS_BYTES), 0))
        finally:
            os.close(fd)

    def read(self) -> bytes | None:
        """What was kept; None if nothing was."""
        return self.path.read_bytes() if self.path.exists() else None

    def _write(self, content: bytes) -> None:
        """Write the whole file, or where there is no room for it none: the next runner compiles."""
        part = self.path.with_name(f"{self.path.name}.part")
        with suppress(OSError):
            part.write_bytes(content)
            part.replace(self.path)
        part.unlink(missing_ok=True)
