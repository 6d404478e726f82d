"""Why accounts and the office refuse. Each text is one line that says what to do."""

from __future__ import annotations


class NotThere(Exception):
    """There is no such thing."""


class Conflict(Exception):
    """It is in a state in which this cannot be done."""


class Invalid(Exception):
    """What was given makes no sense."""
