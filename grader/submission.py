"""Reads a submission file. The file is never parsed or executed here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Literal

from grader.files import UnreadableFileError, read_regular_file
from grader.kernel_languages import KernelLanguage, kernel_language

Language = Literal["python", "cuda"]

LANGUAGES: dict[str, Language] = {".py": "python", ".cu": "cuda"}
"""File extension → language."""
STARTERS = {"triton": ".py", "torch": ".py", "cuda": ".cu"}
"""What a starter file is written in → its extension."""
SOLUTION = ".json"


def language_of(path: PurePath, solutions: bool = False) -> Language | None:
    """The language of a file by its extension, in upper or lower case; None if it is unknown. With
    `solutions`, a Solution of other problem sets, which is JSON, counts as Python."""
    suffix = path.suffix.lower()
    return "python" if solutions and suffix == SOLUTION else LANGUAGES.get(suffix)


def extensions(solutions: bool) -> list[str]:
    """What the names of submissions end in."""
    return [*LANGUAGES, SOLUTION] if solutions else list(LANGUAGES)


class SubmissionError(Exception):
    """The file cannot be submitted. The text is one line for a person."""


@dataclass(frozen=True)
class Submission:
    """One source file, byte for byte. It may be empty or not UTF-8; loading it then fails."""

    name: str
    """File name without its folder. The submitter chose it, so escape it to show it."""
    language: Language
    source: bytes

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `source`, hexadecimal."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def uses_triton(self) -> bool:
        """Whether its text mentions Triton. A wrong guess costs only time."""
        return self.language == "python" and b"triton" in self.source

    @property
    def kernel_language(self) -> KernelLanguage | None:
        """What a Python file's kernels are written in, by what it imports."""
        return kernel_language(self.source) if self.language == "python" else None

    @classmethod
    def read(cls, path: Path, max_bytes: int, solutions: bool = False) -> Submission:
        """Read a file of at most `max_bytes` bytes. With `solutions`, it may also be a Solution of
        other problem sets: JSON that holds its sources.

        Raises `SubmissionError` when it does not exist, is not a regular file, is too large, or has
        an unknown extension.
        """
        language = language_of(path, solutions)
        # Read before checking the extension: "is a folder" helps more than "not a .py file".
        try:
            source = read_regular_file(path, max_bytes)
        except FileNotFoundError:
            raise SubmissionError(f"{path}: no such file") from None
        except UnreadableFileError as error:
            raise SubmissionError(str(error)) from None
        if language is None:
            known = " or ".join(extensions(solutions))
            raise SubmissionError(f"{path}: a submission is a {known} file, not '{path.suffix}'")
        return cls(path.name, language, source)
