"""The sites whose accounts users sign in with: GitHub, and OpenID providers.

Authlib speaks the protocols: the authorization code flow with PKCE (RFC 7636), and the checks of
OpenID Connect Core 1.0, section 3.1.3.7: signature, issuer, audience, expiry and nonce.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import generate_token
from authlib.integrations.starlette_client import OAuth
from joserfc.errors import JoseError

from grader.report import one_line
from grader.server.services.sign_in import Person, is_subject
from grader.server.settings import GITHUB, ProviderSettings

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""How long a provider may take for one answer."""

LEEWAY_S = 60
"""By how much a provider's clock may differ from ours."""

ALGORITHMS = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
)
"""Signatures that only the provider can make. ``none`` and those of a shared secret are refused."""


class ProviderFailed(Exception):
    """A provider did not answer, or its answer is not valid. The text is one line for the log."""


class IdentityProvider:
    """One provider, as its operator set it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        self._client = _client(settings)

    async def begin(self, redirect_uri: str) -> tuple[str, dict[str, str]]:
        """The provider's address to send the browser to, and what `person` needs afterwards.

        Raises `ProviderFailed`.
        """
        # Authlib makes the nonce and the PKCE verifier, and reads the provider's endpoints once.
        try:
            await self._check_metadata()
            made = await self._client.create_authorization_url(
                redirect_uri, state=generate_token(32)
            )
        except _FAILURES as error:
            raise self._failed(error) from None
        kept = {name: made[name] for name in ("state", "code_verifier", "nonce") if name in made}
        return made["url"], kept | {"redirect_uri": redirect_uri}

    async def person(self, code: str, details: Mapping[str, str]) -> Person:
        """Exchange a code for the person who signed in. Raises `ProviderFailed`.

        details: what `begin` returned for the same sign-in.
        """
        try:
            await self._check_metadata()
            token = await self._client.fetch_access_token(
                code=code,
                code_verifier=details["code_verifier"],
                redirect_uri=details["redirect_uri"],
            )
            if self.settings.is_github:
                subject, name = await self._github_user(token)
            else:
                subject, name = await self._openid_user(token, details["nonce"])
        except _FAILURES as error:
            raise self._failed(error) from None
        if not is_subject(subject):
            raise ProviderFailed(f"{self.settings.name}: it names no person")
        is_name = isinstance(name, str) and name.isprintable()
        return Person(self.settings.issuer, subject, name[:200] if is_name else "")

    async def _check_metadata(self) -> None:
        """Read what an OpenID provider says of itself, and refuse another one's word."""
        if self.settings.is_github:
            return
        metadata = await self._client.load_server_metadata()
        issuer = str(metadata.get("issuer", ""))
        if issuer.rstrip("/") != self.settings.issuer:
            self._client = _client(self.settings)  # so that the next sign-in reads it again
            raise ValueError(f"its issuer is {issuer}")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = sorted(ALGORITHMS.intersection(offered))
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if "client_secret_basic" not in methods:
            self._client.client_kwargs["token_endpoint_auth_method"] = "client_secret_post"

    async def _openid_user(self, token: dict[str, Any], nonce: str) -> tuple[Any, Any]:
        if "id_token" not in token:
            raise ValueError("its answer has no id_token")
        claims = await self._client.parse_id_token(token, nonce=nonce, leeway=LEEWAY_S)
        return claims.get("sub"), claims.get("preferred_username") or claims.get("name")

    async def _github_user(self, token: dict[str, Any]) -> tuple[Any, Any]:
        answer = await self._client.get("user", token=token)
        answer.raise_for_status()
        user = answer.json()
        # The number stays when a login is renamed, and is not given to another account.
        return str(int(user["id"])), user.get("login")

    def _failed(self, error: Exception) -> ProviderFailed:
        reason = str(error) or type(error).__name__
        return ProviderFailed(one_line(f"{self.settings.name}: {reason}"))


_FAILURES = (
    AuthlibBaseError,
    JoseError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    # An answer of another form than the standards have.
    AttributeError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _client(settings: ProviderSettings) -> Any:
    """Authlib's client of a provider."""
    options: dict[str, Any] = {"code_challenge_method": "S256", "timeout": TIMEOUT_S}
    if settings.is_github:
        is_public = settings.issuer == GITHUB
        api = "https://api.github.com/" if is_public else f"{settings.issuer}/api/v3/"
        endpoints = {
            "authorize_url": f"{settings.issuer}/login/oauth/authorize",
            "access_token_url": f"{settings.issuer}/login/oauth/access_token",
            "api_base_url": api,
        }
        options["token_endpoint_auth_method"] = "client_secret_post"
    else:
        discovery = f"{settings.issuer}/.well-known/openid-configuration"
        endpoints = {"server_metadata_url": discovery}
        options["scope"] = "openid profile"
    return OAuth().register(
        settings.name,
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        client_kwargs=options,
        **endpoints,
    )
