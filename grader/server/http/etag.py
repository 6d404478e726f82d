"""Answers with an ETag, which a client may keep and revalidate, and with gzip."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response


@dataclass(frozen=True)
class CacheableResponse:
    """A body with its ETag and its compressed form.

    It must hold nothing secret: the length of a compressed body gives away what it contains.
    """

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def to(self, request: Request) -> Response:
        """The answer to a request: 304 if the client has this content already."""
        compress = _accepts_gzip(request.headers.get("accept-encoding", ""))
        headers = {
            **self.headers,
            "ETag": f'"{self._digest}-gzip"' if compress else f'"{self._digest}"',
            "Cache-Control": "private, no-cache",
            "Vary": f"{self.headers.get('Vary', 'Authorization, Cookie')}, Accept-Encoding",
        }
        if self._digest in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if compress:
            headers["Content-Encoding"] = "gzip"
        content = self._compressed if compress else self.content
        return Response(content, headers=headers, media_type=self.media_type)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:32]

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self.content, 6, mtime=0)


def share(request: Request, response: CacheableResponse) -> CacheableResponse:
    """Let `response_cache` send this answer to every caller without an account.

    It must be the same for all of them, and change only when a leaderboard changes.
    """
    request.state.shared = response
    return response


def _accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, with a weight above 0."""
    weights = dict(
        part.replace(" ", "").casefold().partition(";")[::2] for part in accept_encoding.split(",")
    )
    return "gzip" in weights and not re.fullmatch(r"q=0(\.0*)?", weights["gzip"])
