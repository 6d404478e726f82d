"""Answers that a client may keep, and asks each time whether they are still right."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response


@dataclass(frozen=True)
class Answer:
    """What a client may keep."""

    content: bytes
    tag: str
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def to(self, request: Request) -> Response:
        """The content, or a word that it is still what the client has."""
        told = {**self.headers, "ETag": self.tag, "Cache-Control": "private, no-cache"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=told)
        return Response(self.content, headers=told, media_type=self.media_type)


def tag_of(content: bytes) -> str:
    """What tells one content from another."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def share(request: Request, answer: Answer) -> Answer:
    """Say of the answer to a request that everyone who asks without an account gets the same, and
    that it changes with the boards only: `grader.server.front` sends it to the next one too."""
    request.state.shared = answer
    return answer
