"""A file on disk → `Submission`. Pure: the file is read, never parsed."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Literal

Language = Literal["python", "cuda"]

LANGUAGES: dict[str, Language] = {".py": "python", ".cu": "cuda"}
"""The file extensions that are taken."""


def language_of(path: PurePath) -> Language | None:
    """The language that claims a file by its extension, in upper or lower case; None if none."""
    return LANGUAGES.get(path.suffix.lower())


class SubmissionError(Exception):
    """The file cannot be handed in at all. The text is one line for a person."""


@dataclass(frozen=True)
class Submission:
    """One source file, exactly as handed in. It may be empty or not UTF-8; loading it will tell."""

    name: str
    """File name without its folder. Text of the submitter's making: escape it to show it."""
    language: Language
    source: bytes

    @cached_property
    def sha256(self) -> str:
        """Digest of `source`, hex."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def uses_triton(self) -> bool:
        """Whether it seems to bring Triton kernels, by its text: a wrong guess costs time only."""
        return self.language == "python" and b"triton" in self.source

    @classmethod
    def read(cls, path: Path, max_bytes: int) -> Submission:
        """Read a file of at most `max_bytes` bytes.

        Raises `SubmissionError` when it is not there, not a regular file, too large, or of an
        extension that no language claims.
        """
        language = language_of(path)
        # What a path is comes before what it is called: "is a folder" helps more than "no .py".
        source = _read_regular(path, max_bytes)
        if language is None:
            known = " or ".join(LANGUAGES)
            raise SubmissionError(f"{path}: a submission is a {known} file, not '{path.suffix}'")
        return cls(path.name, language, source)


def _read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. A FIFO or a device is refused without waiting for it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise SubmissionError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SubmissionError(f"{path}: cannot be read ({reason})") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise SubmissionError(f"{path}: is a folder; hand in one file")
        if not stat.S_ISREG(mode):
            raise SubmissionError(f"{path}: is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            source = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(source) > max_bytes:
        raise SubmissionError(f"{path}: larger than the limit of {max_bytes:,} bytes")
    return source
