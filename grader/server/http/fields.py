"""Types of request fields that several routes take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path
from pydantic import AfterValidator, Field


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable characters")
    return text


PrintableText = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
"""Text in a request. Databases refuse some characters that none of our names contains."""

SubmissionNumber = Annotated[int, Path(description="A submission's number.")]

TokenNumber = Annotated[int, Path(description="A token's number.")]

IdempotencyKey = Annotated[
    PrintableText | None,
    Header(
        min_length=1,
        max_length=100,
        description="Any text of the client's choice. A repeated request with the same key is "
        "answered with what the first one submitted.",
    ),
]
