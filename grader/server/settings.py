"""The server's limits, which its operator may set in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "GRADE_SERVE_"
"""The prefix of a setting's variable in the environment: ``GRADE_SERVE_MAX_QUEUE=50``."""


class SettingsError(ValueError):
    """An invalid setting. The text is one line for the operator."""


@dataclass(frozen=True)
class Settings:
    """Limits of a server. Each is a positive number."""

    max_in_flight: int = 10
    """Unfinished submissions of one user."""
    max_queue: int = 1000
    """Waiting submissions of all users together."""
    batch_items: int = 1000
    """Items of one batch."""
    batch_items_in_flight: int = 2000
    """Unfinished items of one user's batches."""
    max_batch_queue: int = 20_000
    """Waiting items of all users' batches together. A claim reads the first of them only."""
    batch_days: float = 30.0
    """How long the reports and sources of a batch are kept after its end. A report takes up to a
    few hundred kilobytes."""
    source_bytes_per_user: int = 1 << 30
    """Stored sources of one user: the sizes of all files submitted, until a source is removed."""
    source_days: float = 36500.0
    """How long a source is kept that does not rank; a hundred years, so forever by default."""
    min_free_bytes: int = 512 << 20
    """Free room of the database's disk below which no submission is stored. The results of those
    that wait take about 300 KB each."""
    body_bytes: int = (16 << 20) + (64 << 10)
    """The largest body of a submission or a batch: the largest source, plus the form around it."""
    report_bytes: int = 4 << 20
    """The largest body of a worker's request; a report takes a few hundred kilobytes."""
    small_body_bytes: int = 64 << 10
    """The largest body of any other request, and of a caller without an account."""
    body_s: float = 20.0
    """How long a body may take to arrive."""
    requests_per_minute: int = 600
    """Per address."""
    submissions_per_minute: int = 20
    """Per user."""
    failures_per_minute: int = 10
    """Wrong tokens per address that are answered with 401, and more of them with 429. Valid tokens
    are let in regardless."""
    listeners: int = 1000
    """Open event streams."""
    listeners_per_address: int = 100
    """Open event streams per address."""
    poll_s: float = 0.5
    """Interval at which the database is polled for the event streams."""
    worker_alive_s: float = 60.0
    """A worker counts as gone after this long without a message."""
    verify_s: float = 1800.0
    """How long the check of one problem may take before a reload takes it."""
    drain_s: float = 60.0
    """How long running gradings may take after the server was told to stop."""

    @classmethod
    def unknown(cls, environ: Mapping[str, str] = os.environ) -> list[str]:
        """Variables with our prefix that name no setting."""
        known = {PREFIX + field.name.upper() for field in fields(cls)}
        return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The defaults, overridden by the environment. Raises `SettingsError`."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = PREFIX + field.name.upper()
            if name not in environ:
                continue
            parse = int if isinstance(field.default, int) else float
            try:
                value = parse(environ[name])
            except ValueError:
                value = 0
            if not 0 < value < 1e12:
                raise SettingsError(f"{name} must be a positive number, not {environ[name]!r}")
            values[field.name] = value
        return cls(**values)
