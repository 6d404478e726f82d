"""Answers with an ETag, which a client may keep and revalidate, and with gzip."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

_REGION = re.compile(rb"(?s)<!--([a-z][a-z0-9_-]*)-->(.*?)<!--/\1-->")

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The content of If-None-Match."}
}
"""The `responses` that a `CacheableResponse` adds to a route in the OpenAPI document."""


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
    def pieces(self) -> Pieces:
        """The content, split at its regions."""
        return split_regions(self.content)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:32]

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self.content, 6, mtime=0)


VersionName = Literal["boards", "queue"]
"""What many shared answers depend on: the leaderboards, or these and the jobs in flight."""

Version = VersionName | Callable[[], object]
"""What a shared answer depends on. A function has a value that differs after each change of it, and
may raise `BoardError`."""

Regions = Mapping[str, str]
"""Region of a page → its HTML for one caller."""


class Shared(NamedTuple):
    """An answer that is the same for every caller without an account."""

    response: CacheableResponse
    version: Version
    regions: Callable[[Request], Regions | None] | None
    """The regions of the page that differ for a signed-in caller who is no admin. The function
    returns None for a caller whose page differs elsewhere; without it, all of their pages do. It is
    called in the event loop, so it must be fast and read no database."""


def share(
    request: Request,
    response: CacheableResponse,
    version: Version = "boards",
    regions: Callable[[Request], Regions | None] | None = None,
) -> CacheableResponse:
    """Let `response_cache` send this answer to other callers; see `Shared`.

    It must change only when `version` changes. An answer to a signed-in caller is not sent to
    others, but says that there is a shared one.
    """
    request.state.shared = Shared(response, version, regions)
    return response


def personal_content(content: bytes, regions: Regions) -> bytes:
    """A shared page with a caller's own regions."""
    return fill_regions(split_regions(content), regions)


class Pieces(NamedTuple):
    """A page, split at its regions."""

    first: bytes
    """All before the first region."""
    others: list[tuple[str, bytes, bytes]]
    """Each region's name, its content, and what is between it and the next."""


def split_regions(content: bytes) -> Pieces:
    """Split a page at its regions.

    A region is all between ``<!--name-->`` and ``<!--/name-->``, which no escaped text contains.
    """
    first, *others = _REGION.split(content)
    return Pieces(
        first,
        [
            (name.decode(), region, b"<!--/%b-->%b" % (name, after))
            for name, region, after in zip(*(others[n::3] for n in range(3)), strict=True)
        ],
    )


def fill_regions(pieces: Pieces, regions: Regions) -> bytes:
    """The page with other content in those of its regions that are in `regions`."""
    parts = [pieces.first]
    for name, region, after in pieces.others:
        own = regions.get(name)
        parts += (f"<!--{name}-->".encode(), region if own is None else own.encode(), after)
    return b"".join(parts)


def _accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, with a weight above 0."""
    weights = dict(
        part.replace(" ", "").casefold().partition(";")[::2] for part in accept_encoding.split(",")
    )
    return "gzip" in weights and not re.fullmatch(r"q=0(\.0*)?", weights["gzip"])
