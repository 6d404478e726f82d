"""Signing in with an account of another site, against a provider on a socket."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage
from sqlalchemy import select
from starlette.testclient import TestClient
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from grader.db.tables import identities, sign_ins, tokens
from grader.server.services.container import Services
from grader.server.services.sign_in import SIGN_IN_LIFETIME, Person
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server import provider as site
from tests.server.browser import chromium as chromium
from tests.server.conftest import World, every_problem
from tests.server.pages.test_admin_pages import Browser as AdminBrowser
from tests.server.provider import Provider
from tests.server.site import check
from tests.waiting import PATIENCE_S

LIMITS: dict[str, Any] = {"requests_per_minute": 10_000}


@pytest.fixture
def settings() -> Settings:
    return Settings(**LIMITS, sign_up="open")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def services(settings: Settings, database: str, provider: Provider) -> Iterator[Services]:
    offered = {name: provider.settings(name) for name in ("university", "github")}
    migrate_by_copy(database)
    opened = Services.open(database, every_problem(), settings, Clock(), offered)
    yield opened
    opened.close()


def browser(world: World) -> httpx.Client:
    client = world.client()
    client.headers.update({"Accept": "text/html", "Origin": world.url})
    return client


def go(client: httpx.Client, path: str) -> httpx.Response:
    """Follow the redirects of a sign-in, over the provider and back."""
    return client.get(path, follow_redirects=True)


def answer_of(client: httpx.Client, name: str = "university") -> str:
    """The provider's answer to a new sign-in, as the address that it sends the browser to."""
    to_provider = client.get(f"/login/with/{name}").headers["location"]
    return httpx.get(to_provider).headers["location"]


def me(client: httpx.Client) -> str | None:
    """The user of the browser's session."""
    reply = client.get("/api/v1/me")
    return reply.json()["name"] if reply.status_code == 200 else None


def sign_up(client: httpx.Client, name: str, where: str = "university") -> httpx.Response:
    go(client, f"/login/with/{where}")
    return client.post("/login/name", data={"name": name})


def error_of(reply: httpx.Response) -> str:
    return " ".join(re.sub("<[^>]*>", " ", reply.text).split()).lower()


@pytest.mark.parametrize("name", ["university", "github"])
def test_a_stranger_chooses_a_name_and_is_known_from_then_on(
    world: World, provider: Provider, name: str
) -> None:
    client = browser(world)
    form = go(client, f"/login/with/{name}?to=/queue")
    assert form.url.path == "/login/name"
    check(form.text)
    assert 'value="jane"' in form.text
    assert me(client) is None
    done = client.post("/login/name", data={"name": "Jane"})
    assert (done.status_code, done.headers["location"]) == (303, "/queue")
    cookie = next(one for one in done.headers.get_list("set-cookie") if "grade_session=" in one)
    assert {"HttpOnly", "SameSite=strict", "Max-Age=43200"} <= set(cookie.split("; "))
    assert me(client) == "Jane"
    assert "grade_sign_in" not in client.cookies

    provider.name = "renamed"
    again = browser(world)
    landed = go(again, f"/login/with/{name}?to=/queue")
    check(landed.text)
    assert 'content="0; url=/queue"' in landed.text
    assert me(again) == "Jane"
    provider.subject = "2"
    other = browser(world)
    assert go(other, f"/login/with/{name}").url.path == "/login/name"
    assert me(other) is None


def test_the_request_has_state_nonce_and_a_pkce_challenge(world: World, provider: Provider) -> None:
    sign_up(browser(world), "jane")
    sign_up(browser(world), "again")
    first, second = provider.requests
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 20
        assert first[name] != second[name]
    assert first["redirect_uri"] == f"{world.url}/login/with/university/callback"
    assert first["scope"].split() == ["openid", "profile"]
    assert site.CLIENT_SECRET not in str(first)


def test_behind_a_proxy_the_provider_answers_to_its_address(world: World) -> None:
    app: Any = world.app  # uvicorn and starlette name the types of applications differently
    behind: Any = ProxyHeadersMiddleware(app, trusted_hosts="testclient")
    with TestClient(behind, base_url="http://board.example.org:8443") as client:
        reply = client.get(
            "/login/with/university", headers={"X-Forwarded-Proto": "https"}, follow_redirects=False
        )
    asked = parse_qs(urlsplit(reply.headers["location"]).query)
    address = "https://board.example.org:8443/login/with/university/callback"
    assert asked["redirect_uri"] == [address]
    cookie = reply.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=lax", "Path=/login", "Max-Age=600", "Secure"} <= set(cookie)


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "x"])
def test_a_sign_in_leads_to_no_other_site(world: World, to: str) -> None:
    client = browser(world)
    sign_up(client, "jane")
    landed = client.get("/login/with/university", params={"to": to}, follow_redirects=True)
    assert 'content="0; url=/"' in landed.text
    assert "evil" not in landed.text


def test_no_secret_of_a_sign_in_is_logged(
    world: World, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    client = browser(world)
    with caplog.at_level(logging.INFO):
        sign_up(client, "jane")
        provider.sign = site.sign_not
        go(client, "/login/with/university")
    shown = "\n".join(
        f"{record.getMessage()} {record.__dict__}"
        for record in caplog.records
        if record.name.startswith(("grade", "authlib", "httpx2"))  # not the test's own browser
    )
    assert "/login/with/university/callback" in shown
    assert "sign-in failed: university" in shown
    secrets = {site.CLIENT_SECRET, client.cookies["grade_session"]}
    for sent in (*provider.requests, *provider.exchanged):
        names = ("state", "nonce", "code", "code_verifier")
        secrets |= {sent[name] for name in names if name in sent}
    assert len(secrets) == 10
    assert [secret for secret in secrets if secret in shown] == []


def test_a_wrong_state_is_refused_and_ends_the_sign_in(world: World) -> None:
    client = browser(world)
    answer = httpx.URL(answer_of(client))
    code = answer.params["code"]
    for state in ("", "x" * 32, answer.params["state"]):
        reply = client.get(answer.path, params={"code": code, "state": state})
        assert reply.status_code == 422
        assert "expired, or began in another browser" in error_of(reply)
    assert me(client) is None


def test_an_answer_to_another_browser_is_refused(world: World, provider: Provider) -> None:
    attacker, victim = browser(world), browser(world)
    answer = answer_of(attacker)
    assert victim.get(answer).status_code == 422
    answer_of(victim)  # its own sign-in has another secret
    assert victim.get(answer).status_code == 422
    assert provider.exchanged == []


def test_an_answer_is_taken_once(world: World, provider: Provider) -> None:
    client = browser(world)
    answer = answer_of(client)
    assert client.get(answer).headers["location"] == "/login/name"
    assert client.get(answer).status_code == 422
    assert len(provider.exchanged) == 1
    # A code that was used already, in a sign-in of its own, is refused by the provider.
    used = httpx.URL(answer).params["code"]
    fresh = httpx.URL(answer_of(client)).copy_set_param("code", used)
    reply = client.get(fresh)
    assert reply.status_code == 403
    assert "the sign-in with university failed" in error_of(reply)
    assert me(client) is None


def test_an_answer_of_another_provider_is_refused(world: World) -> None:
    client = browser(world)
    answer = answer_of(client, "github").replace("/github/", "/university/")
    assert client.get(answer).status_code == 422


def test_an_answer_at_another_address_of_the_server_is_refused(
    world: World, provider: Provider
) -> None:
    client = browser(world)
    answer = httpx.URL(answer_of(client))
    reply = client.get(answer, headers={"Host": "evil.example"})
    assert reply.status_code == 422
    assert "another address of this server" in error_of(reply)
    assert provider.exchanged == []


def test_a_sign_in_expires(world: World) -> None:
    client = browser(world)
    answer = answer_of(client)
    world.clock.move(SIGN_IN_LIFETIME.total_seconds() + 1)
    assert client.get(answer).status_code == 422
    go(client, "/login/with/university")
    world.clock.move(SIGN_IN_LIFETIME.total_seconds() + 1)
    assert client.get("/login/name").status_code == 422
    assert client.post("/login/name", data={"name": "jane"}).status_code == 422
    with world.services.ledger.board._engine.connect() as connection:
        assert len(connection.execute(select(sign_ins)).all()) == 1, "the next one removes it"
    go(client, "/login/with/university")
    with world.services.ledger.board._engine.connect() as connection:
        [row] = connection.execute(select(sign_ins)).all()
    assert client.cookies["grade_sign_in"] not in repr(row)


def test_a_sign_in_in_progress_makes_no_user(world: World) -> None:
    client = browser(world)
    client.get("/login/with/university")
    assert client.post("/login/name", data={"name": "jane"}).status_code == 422
    assert world.services.accounts.user("jane") is None


def minutes(count: int) -> int:
    return int(time.time()) + 60 * count


@pytest.mark.parametrize(
    "change",
    [
        lambda claims: claims | {"nonce": "x" * 20},
        lambda claims: {k: v for k, v in claims.items() if k != "nonce"},
        lambda claims: claims | {"aud": "another-client"},
        lambda claims: claims | {"aud": [site.CLIENT_ID, "another-client"]},
        lambda claims: {k: v for k, v in claims.items() if k != "aud"},
        lambda claims: claims | {"iat": minutes(-20), "exp": minutes(-10)},
        lambda claims: {k: v for k, v in claims.items() if k != "exp"},
        lambda claims: claims | {"iss": "https://evil.example"},
        lambda claims: claims | {"iss": claims["iss"] + "/"},
        lambda claims: {k: v for k, v in claims.items() if k != "sub"},
        lambda claims: claims | {"sub": ""},
        lambda claims: claims | {"sub": 17},
        lambda claims: claims | {"sub": "a" * 256},
        lambda claims: claims | {"sub": "a\u0000b"},
    ],
)
def test_an_id_token_that_is_not_for_this_sign_in_is_refused(
    world: World, provider: Provider, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    provider.change = change
    refused(world, provider)


@pytest.mark.parametrize(
    "sign",
    [
        site.sign_with_another_key,
        site.sign_with_the_secret,
        site.sign_with_the_public_key,
        site.sign_not,
        lambda claims: site.sign(claims)[:-20],
        lambda claims: "no token",
        lambda claims: "",
        lambda claims: {"not": "text"},
    ],
)
def test_an_id_token_that_the_provider_did_not_sign_is_refused(
    world: World, provider: Provider, sign: Callable[[dict[str, Any]], str]
) -> None:
    provider.sign = sign
    refused(world, provider)


def refused(world: World, provider: Provider) -> None:
    """Assert that the provider's answer lets nobody in, and that the same without the lie would."""
    client = browser(world)
    reply = go(client, "/login/with/university")
    assert reply.status_code == 403, reply.text
    assert "the sign-in with university failed; try again" in error_of(reply)
    assert len(provider.exchanged) == 1
    provider.change, provider.sign = lambda claims: claims, site.sign
    assert go(client, "/login/with/university").url.path == "/login/name"


def test_a_provider_with_another_issuer_is_refused(world: World, provider: Provider) -> None:
    provider.issuer = "https://evil.example"
    client = browser(world)
    reply = client.get("/login/with/university")
    assert reply.status_code == 503
    assert "university cannot be reached" in error_of(reply)
    provider.issuer = None
    assert client.get("/login/with/university").status_code == 303, "it is asked again"


def test_a_person_who_says_no_is_not_logged_in(world: World, provider: Provider) -> None:
    provider.refuses = True
    reply = go(browser(world), "/login/with/university")
    assert reply.status_code == 403
    assert "university did not sign you in" in error_of(reply)


def test_a_provider_that_is_down(world: World, provider: Provider) -> None:
    provider.__exit__()
    reply = browser(world).get("/login/with/university")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
    assert browser(world).get("/login/with/nobody").status_code == 404


def test_names_are_checked_at_sign_up(world: World) -> None:
    client = browser(world)
    go(client, "/login/with/university")
    for name, why in (("", "printable"), ("ADA", "is taken"), ("аda", "script"), ("add\u0430", "")):
        reply = client.post("/login/name", data={"name": name})
        assert reply.status_code in (409, 422)
        assert why in reply.text
    bill = world.services.accounts.add_user("bill")
    reply = client.post("/login/name", data={"name": "biIl"})
    assert "looks like bill" in reply.text
    check(reply.text)
    assert client.post("/login/name", data={"name": "jane"}).status_code == 303
    assert me(client) == "jane"
    assert bill not in reply.text
    assert client.post("/login/name", data={"name": "joan"}).status_code == 422, "used up"


def test_a_sign_up_form_of_another_site_is_refused(world: World) -> None:
    client = browser(world)
    go(client, "/login/with/university")
    reply = client.post(
        "/login/name", data={"name": "jane"}, headers={"Origin": "https://evil.example"}
    )
    assert reply.status_code == 403
    assert world.services.accounts.user("jane") is None


def test_a_user_links_an_account_and_unlinks_it(world: World, provider: Provider) -> None:
    client = browser(world)
    client.post("/login", data={"token": world.tokens["ada"]})
    page = client.get("/users/ada").text
    check(page)
    assert "Link GitHub" in page
    csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]
    assert client.post("/login/with/university").status_code == 403, "no CSRF token"
    onward = client.post("/login/with/university", data={"csrf": csrf})
    check(onward.text)
    away = re.findall(r'content="0; url=([^"]+)"', onward.text)[0].replace("&amp;", "&")
    # The provider's answer is a request from another site: without the session's cookie.
    session = client.cookies.pop("grade_session")
    landed = client.get(httpx.get(away).headers["location"])
    assert "The account is linked" in landed.text
    assert 'content="0; url=/users/ada"' in landed.text
    client.cookies.set("grade_session", session)
    assert provider.subject in client.get("/users/ada").text
    assert provider.subject not in browser(world).get("/users/ada").text

    other = browser(world)
    go(other, "/login/with/university")
    assert me(other) == "ada"
    [identity] = world.services.sign_ins.identities("ada")
    assert identity.provider == provider.url
    path = f"/account/identities/{identity.id}/unlink"
    assert other.post(path).status_code == 403
    assert client.post(path, data={"csrf": csrf}).status_code == 303
    assert (me(other), me(client)) == (None, "ada"), "the session of the sign-in has ended"
    assert go(other, "/login/with/university").url.path == "/login/name"
    assert client.post(path, data={"csrf": csrf}).status_code == 404


def test_an_account_belongs_to_one_user(world: World, provider: Provider) -> None:
    services = world.services
    person = Person(provider.url, provider.subject)
    ada = services.accounts.user("ada")
    assert ada is not None
    services.sign_ins.link(ada.id, person)
    client = browser(world)
    client.post("/login", data={"token": world.tokens["bob"]})
    csrf = re.findall(r'name="csrf" value="(\w+)"', client.get("/users/bob").text)[0]
    onward = client.post("/login/with/university", data={"csrf": csrf}).text
    away = re.findall(r'content="0; url=([^"]+)"', onward)[0].replace("&amp;", "&")
    reply = client.get(httpx.get(away).headers["location"])
    assert reply.status_code == 409
    assert "linked to a user already" in error_of(reply)
    assert services.sign_ins.identities("bob") == []


def test_the_last_way_in_is_kept(world: World) -> None:
    client = browser(world)
    sign_up(client, "jane")
    page = client.get("/users/jane").text
    csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]
    [identity] = world.services.sign_ins.identities("jane")
    reply = client.post(f"/account/identities/{identity.id}/unlink", data={"csrf": csrf})
    assert reply.status_code == 409
    assert "make a token first" in error_of(reply)
    assert me(client) == "jane"
    strangers = browser(world)
    strangers.post("/login", data={"token": world.tokens["ada"]})
    csrf = re.findall(r'name="csrf" value="(\w+)"', strangers.get("/users/ada").text)[0]
    path = f"/account/identities/{identity.id}/unlink"
    assert strangers.post(path, data={"csrf": csrf}).status_code == 404


def test_a_banned_user_gets_the_reason(world: World) -> None:
    client = browser(world)
    sign_up(client, "jane")
    world.services.admin.ban("jane", "sold the answers", "root")
    reply = go(browser(world), "/login/with/university")
    assert reply.status_code == 403
    assert "you are banned: sold the answers" in error_of(reply)
    assert me(client) is None


def test_an_admin_ends_what_a_sign_in_opened(world: World) -> None:
    client = browser(world)
    sign_up(client, "jane")
    assert world.services.accounts.revoke("jane", by="root") == 1
    assert me(client) is None


def test_a_session_of_a_sign_in_lasts_twelve_hours(world: World) -> None:
    client = browser(world)
    sign_up(client, "jane")
    world.clock.move(timedelta(hours=12).total_seconds() - 1)
    assert me(client) == "jane"
    world.clock.move(2)
    assert me(client) is None
    with world.services.ledger.board._engine.connect() as connection:
        labels = connection.scalars(select(tokens.c.opened_by).where(tokens.c.kind == "session"))
        assert list(labels) == [None]


class TestClosed:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(**LIMITS)

    def test_strangers_are_not_let_in(self, world: World) -> None:
        client = browser(world)
        reply = go(client, "/login/with/university")
        assert reply.status_code == 403
        assert "log in with your token and link it" in error_of(reply)
        assert client.post("/login/name", data={"name": "jane"}).status_code == 422
        with world.services.ledger.board._engine.connect() as connection:
            assert connection.execute(select(identities)).all() == []

    def test_one_whom_an_admin_linked_is_let_in(self, world: World, provider: Provider) -> None:
        root = world.client("root")
        path = "/api/v1/admin/users/ada/identities"
        body = {"provider": "university", "subject": provider.subject}
        assert root.post(path, json=body | {"provider": "x"}).status_code == 404
        assert root.post(path, json=body).status_code == 204
        assert root.post(path, json=body).status_code == 409
        client = browser(world)
        go(client, "/login/with/university")
        assert me(client) == "ada"
        [found] = root.get(path).json()["identities"]
        assert (found["provider"], found["subject"]) == (provider.url, provider.subject)
        assert root.delete(f"{path}/{found['id']}").status_code == 204
        assert me(client) is None

    def test_an_admin_links_and_unlinks_on_the_users_page(
        self, world: World, provider: Provider
    ) -> None:
        root = AdminBrowser(world)
        linking = {"provider": "university", "subject": f" {provider.subject} "}
        assert provider.subject in root.done("/admin/users/ada/identities", **linking)
        root.refused(409, "/admin/users/bob/identities", **linking)
        root.refused(404, "/admin/users/bob/identities", provider="x", subject="1")
        client = browser(world)
        go(client, "/login/with/university")
        assert me(client) == "ada"
        [found] = world.services.sign_ins.identities("ada")
        root.refused(404, f"/admin/users/bob/identities/{found.id}/unlink")
        page = root.done(f"/admin/users/ada/identities/{found.id}/unlink")
        assert provider.subject not in page
        assert me(client) is None

    def test_the_login_page_offers_each_provider(self, world: World) -> None:
        page = browser(world).get("/login?to=/queue").text
        check(page)
        assert 'href="/login/with/github?to=/queue"' in page
        assert "Sign in with University" in page
        assert site.CLIENT_SECRET not in page


@pytest.mark.chromium
def test_sign_up_sign_in_and_link_in_a_browser(
    world: World, provider: Provider, chromium: Browser
) -> None:
    """The provider is another site, so the browser sends it and us only what the cookies allow."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1e3)
    faults: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{world.url}/login?to=/queue")
    page.get_by_role("link", name="Sign in with University").click()
    page.get_by_label("Name").fill("jane")
    page.get_by_role("button", name="Make the account").click()
    page.wait_for_url("**/queue")
    page.get_by_role("link", name="jane").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("link", name="Log in").click()
    page.get_by_role("link", name="Sign in with University").click()
    page.wait_for_url(f"{world.url}/")
    page.get_by_role("link", name="jane").click()
    provider.subject = "17"
    page.get_by_role("button", name="Link GitHub").click()
    page.wait_for_url("**/users/jane")
    page.get_by_text("17", exact=True).wait_for()
    linked = [one.subject for one in world.services.sign_ins.identities("jane")]
    assert linked == ["248289761001", "17"]
    [session] = [one for one in context.cookies() if one["name"] == "grade_session"]
    assert (session["sameSite"], session["httpOnly"]) == ("Strict", True)
    context.close()
    assert faults == []
