"""Tokens that arrive together are looked up together, and are never valid for too long."""

from __future__ import annotations

import asyncio

import httpx

from tests.server.conftest import World, statements
from tests.waiting import PATIENCE_S


def test_a_crowd_of_users_costs_few_queries(world: World) -> None:
    names = [f"user{number:02}" for number in range(40)]
    tokens = [world.services.accounts.add_user(name) for name in names]

    async def crowd() -> list[str]:
        async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE_S) as client:
            headers = [{"Authorization": f"Bearer {token}"} for token in [*tokens, "grade_wrong"]]
            requests = (client.get("/api/v1/me", headers=one) for one in headers)
            *answers, refused = await asyncio.gather(*requests)
        assert refused.status_code == 401
        return [str(answer.json()["name"]) for answer in answers]

    assert asyncio.run(crowd()) == names  # notes the first use of each token
    with statements(world) as seen:
        assert asyncio.run(crowd()) == names
    assert sum("FROM tokens" in one for one in seen) <= len(names) / 2
    assert not any(one.startswith("UPDATE") for one in seen)


def test_a_revoked_token_ends_at_once(world: World) -> None:
    client = world.client("ada")
    for _ in range(3):
        assert client.get("/queue").status_code == 200
    world.services.accounts.revoke("ada")
    assert client.get("/queue").status_code == 401
