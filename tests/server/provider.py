"""A site whose accounts users sign in with: an OpenID provider, and GitHub's protocol.

It follows the standards strictly: a code is used once, by the client that it was issued to, with
the redirect URI and the PKCE verifier of its request. Tests make it lie by its attributes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from grader.server.settings import ProviderSettings
from tests.waiting import PATIENCE_S

CLIENT_ID = "grade-client"
CLIENT_SECRET = "the-secret-of-the-client"

KEY = RSAKey.generate_key(2048, {"kid": "first"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "first"})


class Provider:
    """A provider on a socket of this process, within a context. Everyone is logged in there as
    `subject`, and agrees."""

    def __init__(self) -> None:
        self.subject = "248289761001"
        self.name = "jane"
        self.refuses = False
        self.issuer: str | None = None
        """What it says its issuer is, if not its address."""
        self.change: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
        """Changes the claims of an id_token."""
        self.sign: Callable[[dict[str, Any]], str] = sign
        self.requests: list[dict[str, str]] = []
        """The queries of the requests for authorization."""
        self.exchanged: list[dict[str, str]] = []
        """The forms of the requests for tokens."""
        self._codes: dict[str, dict[str, str]] = {}
        self._tokens: set[str] = set()
        routes = [
            Route("/.well-known/openid-configuration", self._discovery),
            Route("/jwks", self._jwks),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/login/oauth/authorize", self._authorize),
            Route("/login/oauth/access_token", self._token, methods=["POST"]),
            Route("/api/v3/user", self._user),
        ]
        config = uvicorn.Config(Starlette(routes=routes), port=0, log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Provider:
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://localhost:{port}"  # to a browser, another site than 127.0.0.1
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)

    def settings(self, name: str = "university") -> ProviderSettings:
        """What an operator sets to use it."""
        return ProviderSettings(name, CLIENT_ID, CLIENT_SECRET, self.url)

    async def _discovery(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.issuer or self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            }
        )

    async def _jwks(self, _request: Request) -> Response:
        return JSONResponse({"keys": [KEY.as_dict(private=False)]})

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        self.requests.append(query)
        assert query["client_id"] == CLIENT_ID
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        if self.refuses:
            answer = {"error": "access_denied", "state": query["state"]}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = query
            answer = {"code": code, "state": query["state"]}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(answer)}", 302)

    async def _token(self, request: Request) -> Response:
        form = {name: one[0] for name, one in parse_qs((await request.body()).decode()).items()}
        self.exchanged.append(form)
        asked = self._codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        by_form = (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
        if not by_form and request.headers.get("authorization") != f"Basic {basic}":
            return JSONResponse({"error": "invalid_client"}, 401)
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or asked["code_challenge"] != challenge
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        token = secrets.token_urlsafe(16)
        self._tokens.add(token)
        answer = {"access_token": token, "token_type": "Bearer"}
        if "nonce" in asked:
            now = int(time.time())
            claims = {
                "iss": self.url, "sub": self.subject, "aud": CLIENT_ID, "iat": now,
                "exp": now + 300, "nonce": asked["nonce"], "preferred_username": self.name,
            }  # fmt: skip
            answer["id_token"] = self.sign(self.change(claims))
        return JSONResponse(answer)

    async def _user(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self._tokens:
            return JSONResponse({"message": "Bad credentials"}, 401)
        return JSONResponse({"id": int(self.subject), "login": self.name})


def sign(claims: dict[str, Any]) -> str:
    """An id_token with the provider's key."""
    return jwt.encode({"alg": "RS256", "kid": "first"}, claims, KEY)


def sign_with_another_key(claims: dict[str, Any]) -> str:
    """An id_token that another key of the same name signed."""
    return jwt.encode({"alg": "RS256", "kid": "first"}, claims, OTHER_KEY)


def sign_with_the_secret(claims: dict[str, Any]) -> str:
    """An id_token with an HMAC of the client's secret, which others than the provider know."""
    head, body = _part({"alg": "HS256", "kid": "first"}), _part(claims)
    return f"{head}.{body}.{_hmac(CLIENT_SECRET.encode(), f'{head}.{body}')}"


def sign_with_the_public_key(claims: dict[str, Any]) -> str:
    """An id_token with an HMAC whose secret is the provider's public key."""
    head, body = _part({"alg": "HS256", "kid": "first"}), _part(claims)
    return f"{head}.{body}.{_hmac(KEY.as_pem(private=False), f'{head}.{body}')}"


def sign_not(claims: dict[str, Any]) -> str:
    """An id_token that says that it needs no signature."""
    return f"{_part({'alg': 'none', 'kid': 'first'})}.{_part(claims)}."


def _hmac(key: bytes, text: str) -> str:
    mac = hmac.digest(key, text.encode(), "sha256")
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
