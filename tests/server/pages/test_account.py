"""A user's own page: tokens."""

from __future__ import annotations

import re

import httpx

from grader.server.services.accounts import MAX_OWN_TOKENS
from tests.server.conftest import World
from tests.server.site import Site, check, words
from tests.server.site import site as site


def browser(site: Site, name: str) -> httpx.Client:
    client = site.browser(name)
    client.headers["Origin"] = site.world.url
    return client


def csrf_of(client: httpx.Client, name: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', client.get(f"/users/{name}").text)
    assert found is not None
    return found[1]


def test_own_tokens_are_shown_to_their_user_only(site: Site) -> None:
    site.world.services.accounts.new_token("ada", "on the laptop")
    assert "on the laptop" in words(site.page("/users/ada", "ada"))
    for name in (None, "bob"):
        shown = site.page("/users/ada", name)
        assert "on the laptop" not in shown
        assert "Your tokens" not in shown
    assert "Your tokens" not in site.page("/users/wilma", "wilma"), "admins make workers' tokens"


def test_a_token_is_made_and_shown_once(site: Site) -> None:
    client = browser(site, "ada")
    csrf = csrf_of(client, "ada")
    refused = client.post("/account/tokens", data={"label": "x"})
    assert refused.status_code == 403, "no CSRF token"
    shown = client.post("/account/tokens", data={"label": "laptop", "csrf": csrf})
    check(shown.text)
    assert shown.headers["cache-control"] == "no-store"
    [token] = re.findall(r"grade_[\w-]{43}", shown.text)
    me = site.world.client(token=token).get("/api/v1/me").json()
    assert me["name"] == "ada"
    assert token not in client.get("/users/ada").text
    number = site.world.services.accounts.tokens("ada")[-1].id
    rotated = client.post(f"/account/tokens/{number}/rotate", data={"csrf": csrf}).text
    [new] = re.findall(r"grade_[\w-]{43}", rotated)
    assert site.world.client(token=token).get("/api/v1/me").status_code == 401
    number = site.world.services.accounts.tokens("ada")[-1].id
    done = client.post(f"/account/tokens/{number}/revoke", data={"csrf": csrf})
    assert (done.status_code, done.headers["location"]) == (303, "/users/ada")
    assert site.world.client(token=new).get("/api/v1/me").status_code == 401
    acts = [(act.actor, act.action) for act in site.world.services.admin.audit(3)]
    assert acts == [("ada", "token revoke"), ("ada", "token rotate"), ("ada", "token new")]


def test_tokens_of_others_are_not_found(site: Site) -> None:
    client = browser(site, "ada")
    csrf = csrf_of(client, "ada")
    (bobs,) = site.world.services.accounts.tokens("bob")
    for action in ("rotate", "revoke"):
        reply = client.post(f"/account/tokens/{bobs.id}/{action}", data={"csrf": csrf})
        assert reply.status_code == 404
    assert site.world.client("bob").get("/api/v1/me").status_code == 200


def test_a_user_has_so_many_tokens(world: World) -> None:
    ada = world.client("ada")
    for _ in range(MAX_OWN_TOKENS - 1):
        assert ada.post("/api/v1/me/tokens", json={}).status_code == 201
    reply = ada.post("/api/v1/me/tokens", json={})
    assert reply.status_code == 409
    assert "revoke one" in reply.json()["error"]["message"]
    number = ada.get("/api/v1/me/tokens").json()["tokens"][-1]["id"]
    assert ada.delete(f"/api/v1/me/tokens/{number}").json() == {"ended": 1}
    assert ada.post("/api/v1/me/tokens", json={}).status_code == 201
    assert world.services.accounts.new_token("ada"), "an admin makes more"
