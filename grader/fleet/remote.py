"""A ledger at the other end of HTTP: where `grade worker` gets its jobs from."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from grader.db.engine import BoardError
from grader.fleet.job import Lease, Ticket, Worker
from grader.fleet.worker_protocol import (
    Answer,
    Failure,
    Finish,
    Finished,
    Heartbeat,
    Hold,
    Leased,
    Presence,
    Welcome,
    Wish,
)
from grader.judge import Progress
from grader.report import Report, one_line
from grader.submission import Language

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""For each step of a request. A lease outlives two that fail."""

Reply = TypeVar("Reply", bound=BaseModel)


class RemoteLedger:
    """What a worker does with a ledger, over HTTP; a `Source` for a dispatcher.

    Every method raises `BoardError` when the server cannot be reached or does not let us, and
    ValueError when it says that the message makes no sense. Safe to use from several threads.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        if not (token.isascii() and token.isprintable() and len(token.split()) == 1):
            raise BoardError("this is no token; `grade admin user add` prints one")
        try:
            parsed = httpx.URL(self._url)
        except httpx.InvalidURL as error:
            raise BoardError(f"{url!r} is no server: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise BoardError(f"{url!r} is no server; write https://host or http://host:port")
        self._told: dict[str, str] = {}
        """The server's versions that we have said we lack."""
        # A redirect is not followed: it would carry the token to who knows whom.
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v1/work/",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=TIMEOUT_S,
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        problems: Mapping[str, str],
        gpu: str | None,
        languages: Collection[str] | None,
    ) -> Lease | None:
        """Lease the next job of `problems` (name → digest), like `Ledger.claim`."""
        wish = Wish(
            worker=worker,
            gpu=gpu,
            problems=dict(problems),
            languages=None if languages is None else cast(list[Language], list(languages)),
            lease_s=lease_s,
        )
        response = self._post("claim", wish)
        return None if response.status_code == 204 else self._read(Leased, response).lease()

    def begin(self, lease: Ticket) -> bool:
        """Start to grade. False when the lease is no longer ours, here and below."""
        return self._say(lease, "begin", Hold(token=lease.token))

    def heartbeat(self, lease: Ticket, lease_s: float, progress: Progress | None = None) -> bool:
        """Keep the lease for `lease_s` seconds from now, and tell where the grading is."""
        message = Heartbeat(token=lease.token, lease_s=lease_s, progress=progress)
        return self._say(lease, "heartbeat", message)

    def finish(self, lease: Ticket, report: Report) -> int | None:
        """Hand in a result: its number on the board, None when the lease is no longer ours."""
        message = Finish(token=lease.token, report=report)
        response = self._post(f"{lease.submission_id}/finish", message)
        return self._read(Finished, response).result_id

    def fail(self, lease: Ticket, reason: str) -> bool:
        """The judge failed: the job is to be tried again."""
        return self._say(lease, "fail", Failure(token=lease.token, reason=one_line(reason)))

    def give_back(self, lease: Ticket) -> bool:
        """Queue the job again, since we stop."""
        return self._say(lease, "give-back", Hold(token=lease.token))

    def seen(self, worker: Worker) -> None:
        """Say that we are there. What the server has in another version than we is logged, once."""
        ours = None if worker.problems is None else dict(worker.problems)
        presence = Presence(
            worker=worker.name,
            device=worker.device,
            gpu=worker.gpu,
            slots=worker.slots,
            problems=ours,
        )
        theirs = self._read(Welcome, self._post("seen", presence)).problems
        if ours is not None:
            self._compare(ours, theirs)

    def _compare(self, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        for problem, digest in theirs.items():
            if digest in (ours.get(problem), self._told.get(problem)):
                continue
            self._told[problem] = digest
            what = (
                "the server has another version of it than this folder"
                if problem in ours
                else "the server has it, and this folder has not"
            )
            log.warning("problem %s: %s, so no work of it is taken here", problem, what)

    def _say(self, lease: Ticket, what: str, message: Hold) -> bool:
        return self._read(Answer, self._post(f"{lease.submission_id}/{what}", message)).ok

    def _post(self, path: str, message: BaseModel) -> httpx.Response:
        try:
            response = self._client.post(path, content=message.model_dump_json())
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise BoardError(f"the server {self._url} cannot be reached: {what}") from None
        if response.is_success:
            return response
        why = f"the server {self._url} answered {response.status_code}: {_message(response)}"
        if response.status_code in (413, 422):
            raise ValueError(why)
        raise BoardError(why)

    def _read(self, kind: type[Reply], response: httpx.Response) -> Reply:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError:
            raise BoardError(f"{self._url} does not answer like a grade server") from None


def _message(response: httpx.Response) -> str:
    """The one line of an error of ours; of another's answer, its beginning."""
    try:
        return one_line(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return one_line(response.text, 100)
