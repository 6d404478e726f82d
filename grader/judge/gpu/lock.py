"""One measurement at a time on a GPU: two would slow each other, and share its memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from grader.sandbox.base import SandboxError
from grader.sandbox.host import selected_gpu_node

FOLDER = Path("/tmp")
"""Of the locks: the same for everybody on a machine, whatever their TMPDIR."""


_ours = ContextVar("ours", default=False)
"""Whether this thread holds the GPU."""


@contextlib.contextmanager
def exclusive(device: str, wait: bool = True) -> Iterator[bool]:
    """Hold the current GPU against every other measurement on this machine, waiting for it if need
    be; without `wait`, False where another holds it.

    On a CPU there is nothing to hold, and none within another of the same thread.
    """
    if device == "cpu" or _ours.get():
        yield True
        return
    fd = _open(FOLDER / f"grade-gpu-{_name()}.lock")
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        outside = _ours.set(True)
        try:
            yield True
        finally:
            _ours.reset(outside)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """A descriptor of the file, made if it is not there. To read it is enough to lock it, so that
    another user's will do; but to open that with O_CREAT may be refused in a shared directory."""
    try:
        fd = _made_or_found(path)
    except OSError as error:
        raise SandboxError(
            f"{path} cannot be opened ({error.strerror}); remove it, since gradings wait for each "
            "other there"
        ) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SandboxError(
            f"{path} is not a file; remove it, since gradings wait for each other there"
        )
    return fd


def _made_or_found(path: Path) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:  # another was faster
        return os.open(path, flags)
    os.fchmod(fd, 0o644)  # whatever the umask
    return fd


def _name() -> str:
    """The GPU that CUDA would take: its node; where the driver does not tell, as it was named to
    us."""
    if (node := selected_gpu_node()) is not None:
        return node.name
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return "".join(c for c in first if c.isalnum() or c == "-") or "none"
