"""The routes of the caller's own tokens, which `grade token` calls. Workers' tokens are made by
admins."""

from __future__ import annotations

from fastapi import APIRouter

from grader.server.api.admin_schemas import IssuedToken, NewToken, RevokedCount, TokenList
from grader.server.http.auth import CompetitorUser, ServicesDep
from grader.server.http.errors import error_responses
from grader.server.http.fields import TokenNumber

router = APIRouter(prefix="/me/tokens", tags=["users"])


@router.get(
    "", response_model=TokenList, responses=error_responses(), summary="List your own tokens"
)
def list_own_tokens(services: ServicesDep, caller: CompetitorUser) -> TokenList:
    """The numbers, labels and times of the tokens."""
    return TokenList(tokens=services.accounts.tokens(caller.name))


@router.post(
    "",
    status_code=201,
    response_model=IssuedToken,
    responses=error_responses(409),
    summary="Make another token for yourself",
)
def add_own_token(services: ServicesDep, caller: CompetitorUser, new: NewToken) -> IssuedToken:
    """The token is shown only in this answer."""
    token = services.accounts.new_own_token(caller.name, new.label)
    return IssuedToken(name=caller.name, token=token)


@router.post(
    "/{number}/rotate",
    response_model=IssuedToken,
    responses=error_responses(404),
    summary="Replace one of your tokens",
)
def rotate_own_token(
    services: ServicesDep, caller: CompetitorUser, number: TokenNumber
) -> IssuedToken:
    """A new token with the same label, shown only in this answer. The old one and the sessions that
    it opened end."""
    token = services.accounts.rotate(number, by=caller.name, owner=caller.name)
    return IssuedToken(name=caller.name, token=token)


@router.delete(
    "/{number}",
    response_model=RevokedCount,
    responses=error_responses(404, 409),
    summary="Revoke one of your tokens",
)
def revoke_own_token(
    services: ServicesDep, caller: CompetitorUser, number: TokenNumber
) -> RevokedCount:
    """The sessions that it opened end with it."""
    ended = services.accounts.revoke(number, by=caller.name, owner=caller.name)
    return RevokedCount(ended=ended)
