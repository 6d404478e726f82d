"""Answers that a client may keep, and asks each time whether they are still right."""

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
class Answer:
    """What a client may keep. It holds nothing secret: it is sent compressed."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def to(self, request: Request) -> Response:
        """The content, or a word that it is still what the client has."""
        packs = _takes_gzip(request.headers.get("accept-encoding", ""))
        told = {
            **self.headers,
            "ETag": f'"{self._digest}-gzip"' if packs else f'"{self._digest}"',
            "Cache-Control": "private, no-cache",
            "Vary": f"{self.headers.get('Vary', 'Authorization, Cookie')}, Accept-Encoding",
        }
        if self._digest in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=told)
        if packs:
            told["Content-Encoding"] = "gzip"
        content = self._packed if packs else self.content
        return Response(content, headers=told, media_type=self.media_type)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:32]

    @cached_property
    def _packed(self) -> bytes:
        return gzip.compress(self.content, 6, mtime=0)


def _takes_gzip(accepts: str) -> bool:
    """Whether a request's Accept-Encoding names it, and not with the weight 0."""
    names = dict(
        part.replace(" ", "").casefold().partition(";")[::2] for part in accepts.split(",")
    )
    return "gzip" in names and not re.fullmatch(r"q=0(\.0*)?", names["gzip"])


def share(request: Request, answer: Answer) -> Answer:
    """Say of the answer to a request that everyone who asks without an account gets the same, and
    that it changes with the boards only: `response_cache` sends it to the next one too."""
    request.state.shared = answer
    return answer
