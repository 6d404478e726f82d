"""The operations of the server, independent of HTTP, and the errors that they raise.

The text of each error is one line for the caller that says what to do.
"""

from __future__ import annotations


class NotFound(Exception):
    """There is no such user, token, submission or rejudge."""


class Conflict(Exception):
    """The current state does not allow the operation."""


class Invalid(Exception):
    """An argument is invalid."""
