"""Batches, under `/api/v1`: many files for one problem, graded behind users' submissions.

A batch is its user's and the admins'; for all others it does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ValidationError

from grader.board.store import MAX_ID
from grader.fleet import Batch, Ledger, State
from grader.fleet.job import BatchResult
from grader.server.api.schemas import (
    BatchList,
    BatchQueued,
    BatchRequest,
    BatchState,
    BatchStatus,
)
from grader.server.http.auth import CompetitorUser, ServicesDep
from grader.server.http.errors import error_responses, fail
from grader.server.http.fields import IdempotencyKey
from grader.server.http.submit import submit_batch
from grader.server.services import visibility
from grader.server.services.accounts import User
from grader.server.services.container import Services

router = APIRouter(prefix="/batches", tags=["batches"])

MAX_RESULTS = 1000
"""The most results in one answer."""

RESULTS_READ = 20
"""Results that are read and sent at a time. Reports take up to a few hundred kilobytes."""

BatchNumber = Annotated[int, Path(description="A batch's number.")]


async def _raw_body(request: Request) -> bytes:
    """The body, which the route parses in its thread: it may have megabytes."""
    return await request.body()


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model whose references are replaced by what they refer to."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, list):
            return [inlined(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inlined(definitions[value["$ref"].rpartition("/")[2]])
        return {key: inlined(inner) for key, inner in value.items()}

    found: dict[str, Any] = inlined(schema)
    return found


@router.post(
    "",
    status_code=202,
    response_model=BatchQueued,
    responses=error_responses(404, 409, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _inlined(BatchRequest)}},
        }
    },
    summary="Submit a batch",
)
def submit(
    request: Request,
    response: Response,
    services: ServicesDep,
    caller: CompetitorUser,
    body: Annotated[bytes, Depends(_raw_body)],
    idempotency_key: IdempotencyKey = None,
) -> BatchQueued:
    """Store many files for one problem and queue them for grading, all or none.

    They are graded behind all submissions, do not rank, and show on no board.
    """
    try:
        asked = BatchRequest.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_context=False, include_url=False)
        located = [one | {"loc": ("body", *one["loc"])} for one in found]
        raise RequestValidationError(located) from None
    items = asked.batch_items()
    number = submit_batch(
        request, services, caller, asked.problem, items, asked.gpu, idempotency_key
    )
    response.headers["Location"] = _url(request, number)
    return BatchQueued(
        id=number,
        items=len(items),
        url=_url(request, number),
        results_url=_url(request, number, "api_batch_results"),
    )


@router.get(
    "", response_model=BatchList, responses=error_responses(), summary="List one's own batches"
)
def get_batches(
    request: Request,
    services: ServicesDep,
    caller: CompetitorUser,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(description="Only lower numbers, for paging.")] = None,
) -> BatchList:
    """The caller's newest batches, newest first."""
    found = services.ledger.batches(caller.name, limit, before)
    return BatchList(
        batches=[_status(request, batch) for batch in found],
        before=found[-1].id if len(found) == limit else None,
    )


@router.get(
    "/{number}",
    response_model=BatchStatus,
    name="api_batch",
    responses=error_responses(404),
    summary="How far a batch is",
)
def get_batch(
    request: Request, services: ServicesDep, caller: CompetitorUser, number: BatchNumber
) -> BatchStatus:
    """The number of items in each state."""
    return _status(request, _batch_or_404(services, caller, number))


@router.get(
    "/{number}/results",
    response_class=StreamingResponse,
    name="api_batch_results",
    responses=error_responses(404, 410)
    | {
        200: {
            "content": {"application/jsonl": {"schema": {"type": "string"}}},
            "description": "A JSON object on each line, with `place`, `key`, and a `report` or an "
            "`error`.",
        }
    },
    summary="The results of a batch",
)
def get_results(
    services: ServicesDep,
    caller: CompetitorUser,
    number: BatchNumber,
    after: Annotated[int, Query(ge=0, le=MAX_ID, description="Only higher places.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_RESULTS)] = MAX_RESULTS,
) -> StreamingResponse:
    """What has ended so far, in the order in which items ended.

    Continue with `after`, the last `place` that you have; places may have gaps. An item with an
    `error` could not be graded, which says nothing about it. It may get a report, with another
    place, if an admin removes the cause. Cancelled items have no line.
    """
    batch = _batch_or_404(services, caller, number)
    if batch.removed_at is not None:
        fail(
            410,
            "results_removed",
            f"the results of batch {number} were removed on {batch.removed_at:%Y-%m-%d}, since it "
            "was old",
        )
    lines = _lines(services.ledger, number, after, limit)
    return StreamingResponse(lines, media_type="application/jsonl")


@router.delete(
    "/{number}", status_code=204, responses=error_responses(404, 409), summary="Cancel a batch"
)
def cancel(services: ServicesDep, caller: CompetitorUser, number: BatchNumber) -> None:
    """Cancel the items that wait or are graded. Results that are there stay."""
    _batch_or_404(services, caller, number)
    if not services.ledger.cancel_batch(number, caller.name):
        fail(409, "not_running", f"no item of batch {number} waits or is graded any more")


def _batch_or_404(services: Services, caller: User, number: int) -> Batch:
    """A batch of the caller, or for an admin any. Raises `Refusal`."""
    batch = services.ledger.batch(number)
    if batch is None or visibility.relation(caller, batch.user) == "public":
        fail(404, "no_such_batch", f"you have no batch {number}")
    return batch


def _status(request: Request, batch: Batch) -> BatchStatus:
    counts = {state: batch.states.get(state, 0) for state in State}
    return BatchStatus(
        id=batch.id,
        items=batch.items,
        url=_url(request, batch.id),
        results_url=_url(request, batch.id, "api_batch_results"),
        problem=batch.problem,
        gpu=batch.gpu,
        state=_state(batch),
        counts=counts,
        ended=counts[State.DONE] + counts[State.HELD] + counts[State.CANCELLED],
        submitted_at=batch.created_at,
        ended_at=batch.closed_at,
        removed_at=batch.removed_at,
    )


def _state(batch: Batch) -> BatchState:
    if batch.closed_at is not None:
        return "done" if batch.cancelled_by is None else "cancelled"
    return "queued" if batch.states.get(State.QUEUED) == batch.items else "running"


def _lines(ledger: Ledger, number: int, after: int, limit: int) -> Iterator[bytes]:
    """The lines of at most `limit` results, read a few at a time."""
    while limit > 0:
        found = ledger.batch_results(number, after, min(limit, RESULTS_READ))
        yield from map(_line, found)
        if len(found) < RESULTS_READ:
            return
        after, limit = found[-1].place, limit - len(found)


def _line(result: BatchResult) -> bytes:
    line: dict[str, Any] = {"place": result.place, "key": result.key}
    if result.report is not None:
        report = json.loads(result.report)
        for name in ("id", "rank", "seed"):  # it is on no board, and servers keep seeds secret
            report.pop(name, None)
        line["report"] = report | {"worker": result.worker}
    else:
        line["error"] = result.error or "no reason was given"
    return json.dumps(line).encode() + b"\n"


def _url(request: Request, number: int, route: str = "api_batch") -> str:
    return str(request.url_for(route, number=number))
