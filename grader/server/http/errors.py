"""Errors as HTTP answers: the exception that handlers raise, and the JSON form of all errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from grader.report import one_line

NO_TOKEN = "this needs a token: `grade login`, or the header 'Authorization: Bearer TOKEN'"


class ErrorText(BaseModel):
    """The error."""

    code: str
    """For programs. It stays the same from version to version."""
    message: str
    """One line for a person, which says what to do."""


class ErrorReply(BaseModel):
    """Every answer with a status of 400 or above."""

    error: ErrorText


class Refusal(HTTPException):
    """A request that is answered with an error. `fail` raises it."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code


def fail(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> NoReturn:
    """Raise a `Refusal`. `message` is one line that says what to do."""
    raise Refusal(status, code, message, headers)


def banned(reason: str) -> Refusal:
    """The refusal of a banned user."""
    return Refusal(403, "banned", one_line(f"you are banned: {reason or 'no reason given'}"))


def too_often(what: str, wait_s: int) -> Refusal:
    """The refusal of a caller who exceeds a rate limit."""
    return Refusal(
        429, "too_often", f"{what}; try again in {wait_s} s", {"Retry-After": str(wait_s)}
    )


def too_many_wrong_tokens(wait_s: int) -> Refusal:
    """The refusal of a wrong token from an address that sent too many."""
    return too_often("too many tokens that are not valid from this address", wait_s)


def unavailable() -> Refusal:
    """The refusal while the database cannot be used."""
    message = "the server's database does not answer; try again soon"
    return Refusal(503, "unavailable", message, {"Retry-After": "5"})


def disk_full() -> Refusal:
    """The refusal of a change for which the database's disk has no room."""
    message = "the server's disk is full, so nothing was stored; try again later, or tell its admin"
    return Refusal(507, "disk_full", message, {"Retry-After": "300"})


def error_response(refusal: Refusal) -> JSONResponse:
    """A refusal as JSON, in the form of `ErrorReply`."""
    body = {"error": {"code": refusal.code, "message": refusal.detail}}
    return JSONResponse(body, refusal.status_code, refusal.headers)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route in the OpenAPI document: these statuses and the common ones.

    They refer to `error_schemas`. Naming the model instead would have FastAPI build it once per
    route and status, which takes half a second of the server's start.
    """
    common = {400, 401, 403, 408, 413, 422, 429, 500, 503}
    schema = {"$ref": _REFERENCE.format(model=ErrorReply.__name__)}
    return {
        status: {
            "description": _DESCRIPTIONS[status],
            "content": {"application/json": {"schema": schema}},
        }
        for status in sorted(common | set(statuses))
    }


def error_schemas() -> dict[str, Any]:
    """The schemas of the OpenAPI document that `error_responses` refers to."""
    schema = ErrorReply.model_json_schema(mode="serialization", ref_template=_REFERENCE)
    return {**schema.pop("$defs"), ErrorReply.__name__: schema}


_REFERENCE = "#/components/schemas/{model}"


_DESCRIPTIONS = {
    400: "The request cannot be parsed.",
    401: "The token is not valid, or is missing where one is needed.",
    403: "This user may not do that, or is banned.",
    404: "It does not exist, or this user may not see it.",
    408: "The body took too long to arrive.",
    409: "Its state does not allow this.",
    410: "It was removed.",
    413: "The body or the file is too large.",
    415: "The file's extension is of no known language.",
    422: "A value is not valid; the message says which.",
    429: "Too many requests; Retry-After says when to try again.",
    500: "The server has a fault, and has logged it.",
    503: "The server cannot do this now; Retry-After says when to try again.",
    507: "The server's disk is full, or nearly so.",
}
