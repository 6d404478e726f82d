"""Authentication of a request by its bearer token or its session cookie."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from grader.board import BoardError
from grader.server.http.auth import COOKIE
from grader.server.http.errors import Refusal, banned, too_many_wrong_tokens, unavailable
from grader.server.http.throttle import Throttle
from grader.server.services.accounts import Accounts, Banned, User

log = logging.getLogger(__name__)

MAX_TOKEN_CHARS = 200
"""Longer tokens are not looked up. Our own are shorter."""


class Authenticator:
    """Finds the user of a token, and throttles addresses that guess tokens.

    A valid token is let in whatever else its address sends: a token is 256 random bits, so guesses
    need to be kept cheap, not rare.
    """

    def __init__(self, accounts: Accounts, throttle: Throttle) -> None:
        self._lookups = _Lookups(accounts)
        self._throttle = throttle

    async def by_token(self, address: str, authorization: str) -> User:
        """The user of an Authorization header. Raises `Refusal` if it is not valid."""
        scheme, _, token = authorization.partition(" ")
        caller = None
        if scheme.casefold() == "bearer":
            caller = await self._look_up(address, token.strip())
        if caller is None:
            if (wait_s := self._throttle.failure(address, token.strip())) is not None:
                raise too_many_wrong_tokens(wait_s)
            raise Refusal(
                401,
                "bad_token",
                "this token is not valid or was revoked; ask an admin for another one",
                {"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
        return caller

    async def by_session(self, scope: Scope, address: str, headers: Headers) -> User | None:
        """The user of the session cookie; None without a valid one.

        Raises `Refusal` if the user is banned, and if the address sent too many wrong tokens. Sets
        `stale_session` in the request's state if the cookie is to be deleted: when the session has
        ended, and when a banned user has been shown the reason.
        """
        token = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        if not token:
            return None
        try:
            caller = await self._look_up(address, token)
        except Refusal as refusal:
            scope["state"]["stale_session"] = refusal.code == "banned"
            raise
        if caller is None:
            scope["state"]["stale_session"] = True
            if (wait_s := self._throttle.failure(address, token)) is not None:
                raise too_many_wrong_tokens(wait_s)
        return caller

    async def _look_up(self, address: str, token: str) -> User | None:
        if not is_plausible(token) or self._throttle.is_known_wrong(address, token):
            return None
        if (wait_s := self._throttle.lookup_wait_s(address, token)) is not None:
            raise too_many_wrong_tokens(wait_s)
        try:
            caller = await self._lookups.user(token)
        except BoardError as error:
            log.error("%s", error)
            raise unavailable() from None
        if caller is not None:
            self._throttle.success(token)
        if isinstance(caller, Banned):
            raise banned(caller.reason)
        return caller


def is_plausible(token: str) -> bool:
    """Whether a token may be one of ours, so that it is worth a look-up."""
    return 0 < len(token) <= MAX_TOKEN_CHARS and token.isascii()


class _Lookups:
    """Looks up tokens. Those that arrive during one query wait for the next, and share it.

    So a crowd of users costs few queries, and a token is never valid longer than in the database.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._tokens: set[str] = set()
        self._running: asyncio.Future[Mapping[str, User | Banned]] | None = None
        self._pending: asyncio.Future[Mapping[str, User | Banned]] | None = None

    async def user(self, token: str) -> User | Banned | None:
        """The user of a token, by a query that begins after this call. Raises `BoardError`."""
        self._tokens.add(token)
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._read_after(self._running))
        return (await asyncio.shield(self._pending)).get(token)

    async def _read_after(
        self, running: asyncio.Future[Mapping[str, User | Banned]] | None
    ) -> Mapping[str, User | Banned]:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._pending = self._pending, None  # calls from now on share a later query
        wanted, self._tokens = self._tokens, set()
        return await run_sync(self._accounts.users_of, wanted)
