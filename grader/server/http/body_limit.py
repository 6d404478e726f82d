"""A limit on the size of a request's body and on the time that it may take to arrive."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from grader.server.http.errors import Refusal

MAX_DISCARDED_BYTES = 64 << 20
"""Bytes of a body that is too large that are read and discarded, so that the client reads our
answer and does not see a broken connection."""


def limited_receive(
    receive: Receive, limit_bytes: int, limit_s: float, declared_bytes: int
) -> Receive:
    """`receive`, but it raises `Refusal` for a body that is too large or too slow.

    `declared_bytes` is the Content-Length, 0 without one.
    """
    received_bytes = 0
    deadline: float | None = None
    is_complete = False

    async def counted() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        return message

    async def limited() -> Message:
        nonlocal deadline, is_complete
        if is_complete:
            return await receive()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                message = await counted()
                is_large = max(received_bytes, declared_bytes) > limit_bytes
                while (
                    is_large and message.get("more_body") and received_bytes < MAX_DISCARDED_BYTES
                ):
                    message = await counted()
        except TimeoutError:
            text = f"the body took more than {limit_s:g} s"
            raise Refusal(408, "too_slow", text, {"Connection": "close"}) from None
        if is_large:
            text = f"the body is larger than {limit_bytes:,} bytes"
            raise Refusal(413, "too_large", text, {"Connection": "close"})
        is_complete = not message.get("more_body")
        return message

    return limited
