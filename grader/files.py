"""Files of the user: reading those that they named, and the folder of their data."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


class UnreadableFileError(Exception):
    """The file cannot be read. The text starts with the path and is one line for a person."""


def user_data_folder() -> Path:
    """The folder of this user's board and times: `grade` in XDG_DATA_HOME or its default.

    Raises RuntimeError if the user has no home directory.
    """
    default = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / default) / "grade"


def read_regular_file(path: Path, max_bytes: int, *, follow_link: bool = True) -> bytes:
    """The content of a regular file of at most `max_bytes` bytes.

    A FIFO or device is refused without blocking. Raises `FileNotFoundError` if there is nothing at
    `path`, and `UnreadableFileError` for every other failure. Without `follow_link`, a symbolic
    link is one.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags | (0 if follow_link else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the path contains a null byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if not follow_link and path.is_symlink():
            reason = f"{reason}; symbolic links are not followed"
        raise UnreadableFileError(f"{path}: cannot be read ({reason})") from None
    try:
        status = os.fstat(descriptor)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableFileError(f"{path}: is a folder, not a file")
        if not stat.S_ISREG(mode):
            raise UnreadableFileError(f"{path}: is not a regular file")
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
        except OSError as error:
            raise UnreadableFileError(f"{path}: cannot be read ({error.strerror})") from None
        if content and status.st_size == 0:  # made by the kernel as it is read, as in /proc
            raise UnreadableFileError(f"{path}: is not a regular file")
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise UnreadableFileError(f"{path}: larger than the limit of {max_bytes:,} bytes")
    return content
