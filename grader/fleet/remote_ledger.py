"""The ledger of a server over HTTP: the job source of `grade worker`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from grader.db.engine import BoardError
from grader.fleet.job import Lease, LeaseKey, Worker
from grader.fleet.worker_protocol import (
    ClaimReply,
    ClaimRequest,
    FailRequest,
    FinishReply,
    FinishRequest,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    ServerProblems,
    WorkerPresence,
)
from grader.judge import Progress
from grader.report import Report, one_line
from grader.submission import Language

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""For each phase of a request: connect, send and receive. A lease outlives two timeouts."""

Reply = TypeVar("Reply", bound=BaseModel)


class ServerUnavailable(BoardError):
    """The server did not answer, or only that it cannot now; the same call may succeed later."""


class RemoteLedger:
    """A `JobSource` that calls a server's worker API.

    Every method raises `BoardError` if the server cannot be reached or refuses access, and
    ValueError if it rejects the message as invalid. Safe to use from several threads.
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
        self._warned: dict[str, str] = {}
        """Problem → server version for which a mismatch was logged."""
        # Redirects are not followed: they could send the token to another host.
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v1/work/",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=TIMEOUT_S,
        )

    def close(self) -> None:
        """Close the connection."""
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
        """Lease the next job of `problems` (name → digest); see `Ledger.claim`."""
        request = ClaimRequest(
            worker=worker,
            gpu=gpu,
            problems=dict(problems),
            languages=None if languages is None else cast(list[Language], list(languages)),
            lease_s=lease_s,
        )
        response = self._post("claim", request)
        return None if response.status_code == 204 else self._read(ClaimReply, response).lease()

    def begin(self, key: LeaseKey) -> bool:
        """Mark the job as running. This and the methods below return False if the lease is lost."""
        return self._send(key, "begin", LeaseRequest(token=key.token))

    def heartbeat(self, key: LeaseKey, lease_s: float, progress: Progress | None = None) -> bool:
        """Extend the lease to `lease_s` seconds from now, and report the grading's progress."""
        message = HeartbeatRequest(token=key.token, lease_s=lease_s, progress=progress)
        return self._send(key, "heartbeat", message)

    def finish(self, key: LeaseKey, report: Report) -> int | None:
        """Send a result. Returns its id on the board, or None if the lease is lost."""
        message = FinishRequest(token=key.token, report=report)
        response = self._post(f"{key.submission_id}/finish", message)
        return self._read(FinishReply, response).result_id

    def fail(self, key: LeaseKey, reason: str) -> bool:
        """Report a judge error; the job will be tried again."""
        return self._send(key, "fail", FailRequest(token=key.token, reason=one_line(reason)))

    def give_back(self, key: LeaseKey) -> bool:
        """Queue the job again, as the worker stops."""
        return self._send(key, "give-back", LeaseRequest(token=key.token))

    def announce(self, worker: Worker) -> None:
        """Announce a worker. Logs once each problem that the server has in another version."""
        ours = None if worker.problems is None else dict(worker.problems)
        presence = WorkerPresence(
            worker=worker.name,
            device=worker.device,
            gpu=worker.gpu,
            slots=worker.slots,
            problems=ours,
        )
        theirs = self._read(ServerProblems, self._post("seen", presence)).problems
        if ours is not None:
            self._warn_of_mismatches(ours, theirs)

    def _warn_of_mismatches(self, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        for problem, digest in theirs.items():
            if digest in (ours.get(problem), self._warned.get(problem)):
                continue
            self._warned[problem] = digest
            mismatch = (
                f"the server has version {digest[:12]} of it, and this worker {ours[problem][:12]}"
                if problem in ours
                else "the server has it, and this worker does not"
            )
            log.warning("problem %s: %s, so this worker takes no job of it", problem, mismatch)

    def _send(self, key: LeaseKey, action: str, message: LeaseRequest) -> bool:
        return self._read(LeaseReply, self._post(f"{key.submission_id}/{action}", message)).ok

    def _post(self, path: str, message: BaseModel) -> httpx.Response:
        try:
            response = self._client.post(path, content=message.model_dump_json())
        except httpx.HTTPError as error:
            cause = str(error) or type(error).__name__
            text = f"the server {self._url} cannot be reached: {cause}"
            raise ServerUnavailable(text) from None
        if response.is_success:
            return response
        text = f"the server {self._url} answered {response.status_code}: {_message(response)}"
        if response.status_code in (413, 422):
            raise ValueError(text)
        if response.status_code >= 500 or response.status_code == 429:
            raise ServerUnavailable(text)
        raise BoardError(text)

    def _read(self, model: type[Reply], response: httpx.Response) -> Reply:
        try:
            return model.model_validate_json(response.content)
        except ValidationError:
            raise BoardError(f"{self._url} does not answer like a grade server") from None


def _message(response: httpx.Response) -> str:
    """The message of a grade server's error, or the start of any other response."""
    try:
        return one_line(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return one_line(response.text, 100)
