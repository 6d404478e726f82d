"""A lock per GPU and machine: concurrent measurements would slow each other and share memory.

Gradings that only test may share a GPU; one that times has it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from grader.sandbox.base import SandboxError
from grader.sandbox.host import selected_gpu_node

FOLDER = Path("/tmp")
"""Folder of the lock files: the same for all users of a machine, whatever their TMPDIR."""

Hold = Literal["nothing", "share", "all"]
"""What a thread holds of the GPU."""

_held: ContextVar[Hold] = ContextVar("held", default="nothing")


def gpu_is_shared(device: str) -> bool:
    """Whether other gradings may use the GPU beside what runs in this thread."""
    return device != "cpu" and _held.get() != "all"


@contextlib.contextmanager
def gpu_lock(device: str, wait: bool = True, shared: bool = False) -> Iterator[bool]:
    """Lock the current GPU against other measurements on this machine. Yields whether it is locked.

    With `shared`, others that share may use it too: for gradings that time nothing. Waits for the
    lock; without `wait`, yields False at once if another holds it. Within the block, the same
    thread may lock again, but not for itself alone if it shares. On a CPU there is nothing to lock.
    Raises `SandboxError` if a lock file cannot be opened.
    """
    if device == "cpu" or _held.get() == "all" or (shared and _held.get() == "share"):
        yield True
        return
    assert _held.get() == "nothing", "it would wait for itself"
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    with contextlib.ExitStack() as stack:
        try:
            # A process that waits for the GPU holds the turn. Otherwise gradings that share it
            # could follow each other without end, and one that needs it alone never had it.
            with _locked("turn", fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)):
                stack.enter_context(_locked("gpu", kind))
        except BlockingIOError:
            yield False
            return
        token = _held.set("share" if shared else "all")
        try:
            yield True
        finally:
            _held.reset(token)


@contextlib.contextmanager
def _locked(kind: str, operation: int) -> Iterator[None]:
    """Hold the lock file of this kind. Raises BlockingIOError if another does, and
    `SandboxError`."""
    fd = _open(FOLDER / f"grade-{kind}-{_name()}.lock")
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Open the lock file, creating it if needed.

    Read access is enough to lock, so another user's file works too.
    """
    try:
        fd = _open_or_create(path)
    except OSError as error:
        raise SandboxError(
            f"{path} cannot be opened ({error.strerror}); remove it: gradings use this path as a "
            "lock"
        ) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SandboxError(f"{path} is not a file; remove it: gradings use this path as a lock")
    return fd


def _open_or_create(path: Path) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # Linux may refuse O_CREAT on another user's file in a sticky directory, so try without first.
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:  # another process was faster
        return os.open(path, flags)
    os.fchmod(fd, 0o644)  # whatever the umask
    return fd


def _name() -> str:
    """Name of the GPU that CUDA would take: its device node, or if the driver does not report it,
    the first entry of CUDA_VISIBLE_DEVICES."""
    if (node := selected_gpu_node()) is not None:
        return node.name
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return "".join(c for c in first if c.isalnum() or c == "-") or "none"
