"""What a server's operator may set: numbers with a default each, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "GRADE_SERVE_"
"""What stands before a setting's name in the environment: ``GRADE_SERVE_MAX_QUEUE=50``."""


class SettingsError(ValueError):
    """A setting that makes no sense. The text is one line for the operator."""


@dataclass(frozen=True)
class Settings:
    """Limits of a server. Every one of them is a positive number."""

    max_in_flight: int = 10
    """Unfinished submissions of one user."""
    max_queue: int = 1000
    """Submissions that wait, of all users together."""
    body_bytes: int = (16 << 20) + (64 << 10)
    """The largest body with a source in it: the largest source, and a form around it."""
    report_bytes: int = 4 << 20
    """The largest body of a worker; a report takes a few hundred kilobytes."""
    small_body_bytes: int = 64 << 10
    """The largest body of all others, and of a caller who is not known."""
    body_s: float = 20.0
    """How long a body may take to arrive."""
    requests_per_minute: int = 600
    """Of one address."""
    submissions_per_minute: int = 20
    """Of one user."""
    failures_per_minute: int = 10
    """Tokens that are none, of one address, before it is not listened to for a while."""
    listeners: int = 1000
    """Streams of events at one time."""
    listeners_per_address: int = 100
    """Of those, how many to one address."""
    poll_s: float = 0.5
    """How often the database is asked what the listeners wait for."""
    worker_alive_s: float = 60.0
    """A worker that was not heard of for so long is gone."""
    drain_s: float = 60.0
    """How long running gradings may take to end once the server is told to."""

    @classmethod
    def unknown(cls, environ: Mapping[str, str] = os.environ) -> list[str]:
        """Names in the environment that look like settings and are none."""
        known = {PREFIX + field.name.upper() for field in fields(cls)}
        return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The defaults, with what the environment says. Raises `SettingsError`."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            name = PREFIX + field.name.upper()
            if name not in environ:
                continue
            number = int if isinstance(field.default, int) else float
            try:
                value = number(environ[name])
            except ValueError:
                value = 0
            if not 0 < value < 1e12:
                raise SettingsError(f"{name} must be a positive number, not {environ[name]!r}")
            given[field.name] = value
        return cls(**given)
