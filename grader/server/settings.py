"""What the operator of a server may set in the environment: limits, and who may sign in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

PREFIX = "GRADE_SERVE_"
"""The prefix of a setting's variable in the environment: ``GRADE_SERVE_MAX_QUEUE=50``."""

PROVIDER_PREFIX = "GRADE_OAUTH_"
"""The prefix of what is set of a provider: ``GRADE_OAUTH_GITHUB_CLIENT_ID=…``."""

GITHUB = "https://github.com"

SignUp = Literal["closed", "invited", "open"]
"""Whether strangers who sign in with a provider may make an account."""


class SettingsError(ValueError):
    """An invalid setting. The text is one line for the operator."""


@dataclass(frozen=True)
class Settings:
    """Limits of a server, each a positive number, and whether it lets strangers in."""

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
    sign_up: SignUp = "closed"
    """Whether a person who signs in with an unknown account may make a user."""

    @classmethod
    def unknown(cls, environ: Mapping[str, str] = os.environ) -> list[str]:
        """Variables with our prefix that name no setting."""
        known = {PREFIX + one.name.upper() for one in fields(cls)}
        return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The defaults, overridden by the environment. Raises `SettingsError`."""
        values: dict[str, Any] = {}
        for one in fields(cls):
            name = PREFIX + one.name.upper()
            if name not in environ:
                continue
            text, default = environ[name], one.default
            values[one.name] = (
                _choice(name, text) if isinstance(default, str) else _number(name, text, default)
            )
        return cls(**values)


def _choice(name: str, text: str) -> str:
    if text not in get_args(SignUp):
        choices = ", ".join(get_args(SignUp))
        raise SettingsError(f"{name} must be one of {choices}, not {text!r}")
    return text


def _number(name: str, text: str, default: Any) -> float:
    try:
        value = int(text) if isinstance(default, int) else float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e12:
        raise SettingsError(f"{name} must be a positive number, not {text!r}")
    return value


@dataclass(frozen=True)
class ProviderSettings:
    """A site whose accounts users sign in with: GitHub, or an OpenID provider."""

    name: str
    """In lower case, as in the addresses of pages."""
    client_id: str
    client_secret: str = field(repr=False)
    issuer: str
    """The site's address, without a slash at its end. That of an OpenID provider has
    ``/.well-known/openid-configuration``; that of ``github`` is GitHub's, or a GitHub server's."""

    @property
    def title(self) -> str:
        """The name as pages show it."""
        return "GitHub" if self.is_github else self.name.capitalize()

    @property
    def is_github(self) -> bool:
        """Whether it speaks GitHub's protocol, which is not OpenID."""
        return self.name == "github"


def providers_from_environment(
    environ: Mapping[str, str] = os.environ,
) -> dict[str, ProviderSettings]:
    """The providers by name, in the order of their names. Raises `SettingsError`."""
    found: dict[str, dict[str, str]] = {}
    for variable in sorted(environ):
        if not variable.startswith(PROVIDER_PREFIX):
            continue
        match = re.fullmatch(
            r"([A-Z][A-Z0-9]{0,19})_(CLIENT_ID|CLIENT_SECRET|ISSUER)",
            variable.removeprefix(PROVIDER_PREFIX),
        )
        if match is None:
            raise SettingsError(
                f"{variable} is no setting; write {PROVIDER_PREFIX}NAME_CLIENT_ID, "
                "_CLIENT_SECRET or _ISSUER, with letters and digits in NAME"
            )
        found.setdefault(match[1].lower(), {})[match[2].lower()] = environ[variable].strip()
    return {name: _provider(name, values) for name, values in found.items()}


def _provider(name: str, values: Mapping[str, str]) -> ProviderSettings:
    issuer = values.get("issuer") or (GITHUB if name == "github" else "")
    given = {"client_id": "", "client_secret": "", **values, "issuer": issuer}
    for key, value in given.items():
        if not value:
            raise SettingsError(f"{PROVIDER_PREFIX}{name.upper()}_{key.upper()} is not set")
    url = urlsplit(issuer)
    is_local = url.hostname in ("localhost", "127.0.0.1", "::1")
    if not url.hostname or url.query or url.scheme not in ("https", "http" if is_local else ""):
        raise SettingsError(
            f"{PROVIDER_PREFIX}{name.upper()}_ISSUER must be an address that begins with https://"
        )
    return ProviderSettings(name, given["client_id"], given["client_secret"], issuer.rstrip("/"))
