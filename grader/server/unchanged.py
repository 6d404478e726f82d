"""Answers that a client may keep, and asks each time whether they are still right."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastapi import Request, Response


def tag_of(content: bytes) -> str:
    """What tells one content from another."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def kept(
    request: Request, content: bytes, tag: str, media_type: str, headers: Mapping[str, str] = {}
) -> Response:
    """The content, or a word that it is still what the client has."""
    told = {**headers, "ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=told)
    return Response(content, headers=told, media_type=media_type)
