"""The one error of this room."""

from __future__ import annotations


class ProblemError(Exception):
    """A problem folder is not usable. One line for a person: file, place, what to do."""
