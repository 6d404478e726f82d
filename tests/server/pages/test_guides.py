"""The pages that explain: the rules and the API; and what a link to a page shows elsewhere."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from html import unescape

import pytest

from grader.format import VERDICTS
from grader.report import Rule
from grader.server.app import create_app
from grader.server.pages.api_views import GROUPS, operations
from grader.server.services.container import Services
from tests.server.conftest import World
from tests.server.examples import ATTACK_NAME
from tests.server.site import Site, words
from tests.server.site import site as site


def test_rules_name_every_rule_verdict_and_limit(site: Site) -> None:
    text = words(site.page("/rules"))
    for rule in Rule:
        assert rule.replace("_", " ").capitalize() in text
    for verdict in VERDICTS.values():
        assert verdict in text
    limits = text.split("Limits")[-1]
    for limit in ("1,024 KiB", "120 s", "20 s", "600 s", "8 GiB", "16 GiB", "64 MiB"):
        assert limit in limits
    assert "not graded yet 10" in limits
    for name in (None, "ada"):
        assert '<a href="/rules">' in site.page("/", name)


def test_the_api_page_has_every_route_with_its_parameters(site: Site) -> None:
    page = site.page("/api", "ada")
    text = words(page)
    document = site.world.app.openapi()
    for path, methods in document["paths"].items():
        for method, schema in methods.items():
            assert f"{method.upper()} {path} " in text
            assert schema["summary"] in text
    assert "limit query integer, optional How many entries at most." in text
    assert "problem body string The problem's name." in text
    assert "-F problem=softmax -F file=@kernel.py" in text
    assert f"SITE={site.world.url}" in text
    headings = re.findall(r"<h2 id=.([a-z]+).>", page)
    assert headings == list(GROUPS)


def test_the_examples_of_reading_work(site: Site) -> None:
    """As they are shown, but for the numbers, which another server has too."""
    world = site.world
    number, client = site.marks["best"], world.client("root")
    found = [one for some in operations(world.app.openapi()).values() for one in some]
    read = [one for one in found if one.method == "GET" and "/events" not in one.path]
    assert len(read) > 12
    for one in read:
        address = shlex.split(one.example)[-1].removeprefix("$SITE")
        answer = client.get(address.replace("/submissions/17", f"/submissions/{number}"))
        if "rejudges/17" in address or "batches/17" in address:
            assert answer.json()["error"]["code"] in ("not_found", "no_such_batch")
        elif "/teams/" in address:
            assert answer.json()["error"]["code"] == "no_such_team"
        elif address.endswith("/problems/reload"):  # this server has no folder of problems
            assert answer.json()["error"]["code"] == "conflict"
        else:
            assert answer.status_code == 200, (address, answer.text)
        assert ("$GRADE_TOKEN" in one.example) == (one.token == "needed")


def test_examples_of_bodies_have_what_is_required() -> None:
    app = create_app(Services.open("sqlite://", {}))
    found = {f"{one.method} {one.path}": one for some in operations(app.openapi()).values()
             for one in some}  # fmt: skip
    ban = found["POST /api/v1/admin/users/{name}/ban"]
    assert "/users/ada/ban" in ban.example
    start = found["POST /api/v1/admin/rejudges"]
    for one in start.parameters:
        assert not one.required or f'"{one.name}"' in start.example


@pytest.mark.parametrize(
    ("path", "title", "description"),
    [
        ("/", "Boards", "A leaderboard for GPU kernels, judged from outside"),
        ("/rules", "Rules", "What a kernel may do"),
        ("/problems/softmax", "Softmax over rows", "Softmax along the last axis"),
        ("/leaderboards/softmax", "Softmax over rows, leaderboard", "katherine leads on NVIDIA"),
        ("/users/ada", "ada", "Ranks, best times and submissions of ada."),
    ],
)
def test_a_link_shows_title_and_description(
    site: Site, path: str, title: str, description: str
) -> None:
    page = site.page(path)
    shown = dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)">', page))
    assert shown["og:title"] == title
    assert description in unescape(shown["og:description"])
    assert shown["description"] == shown["og:description"]
    has_image = "og:image" in shown
    assert has_image == (path not in ("/rules", "/users/ada"))
    assert shown["twitter:card"] == ("summary_large_image" if has_image else "summary")


def test_a_description_gives_away_no_hidden_result_and_escapes_names(world: World) -> None:
    number = world.graded("ada")
    site = Site(world, {})
    page = site.page(f"/submissions/{number}")
    start = f'content="Submission {number} by ada to softmax.'
    assert f'{start} Accepted, 50.00\N{NO-BREAK SPACE}µs."' in page
    site.set_board(deadline=world.clock() + timedelta(days=1))
    assert f'{start}"' in site.page(f"/submissions/{number}")
    assert world.services.accounts.add_user("bert")
    page = Site(world, {}).page("/leaderboards/flash_attention")
    assert "No ranked result yet" in page.split("</head>")[0]


def test_a_hostile_name_stays_text_in_the_head(site: Site) -> None:
    head = site.page(f"/users/{ATTACK_NAME}".replace("<", "%3C").replace(">", "%3E"))
    head = head.split("</head>")[0]
    assert "<img" not in head
    assert head.count("&lt;img src=x onerror=alert(4)&gt;") == 4
