"""Accessibility of every page, as axe-core finds it in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from grader.server.services.container import Services
from grader.server.settings import Settings
from tests.db.conftest import migrate_by_copy
from tests.fleet.conftest import Clock
from tests.server.browser import Watched
from tests.server.browser import chromium as chromium
from tests.server.conftest import World, every_problem
from tests.server.provider import Provider
from tests.server.site import Site, everywhere
from tests.server.site import site as site
from tests.server.test_access import API, TABLE
from tests.server.test_editor import SCHEMES

AXE = Path(__file__).parent / "axe/node_modules/axe-core/axe.min.js"

RUN = """
async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`);
}
"""

FRAGMENTS = ("/submissions/{number}/state",)
"""Addresses of parts of pages."""

pytestmark = [pytest.mark.chromium, pytest.mark.axe]


def faults(page: Page) -> list[str]:
    """The serious and critical violations on a page, with all its parts unfolded."""
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(RUN)
    return found


@pytest.fixture
def watched(chromium: Browser, world: World) -> Iterator[Watched]:
    """A page without a content policy: axe-core uses inline styles."""
    context = chromium.new_context(bypass_csp=True)
    found = Watched(context.new_page(), world.url)
    yield found
    context.close()
    assert found.faults == []


def every_page(world: World) -> list[str]:
    """The address of each page of the table of routes, as an admin may open it."""
    found = []
    for row in TABLE:
        is_page = row.method == "GET" and not row.path.startswith((API, "/static"))
        if not is_page or row.statuses[-1] != 200 or row.path in FRAGMENTS:
            continue
        number = str(row.prepare(world))
        found.append(row.path.format(**{"number": number, "other": number} | (row.fill or {})))
    return found


def test_axe_finds_a_fault(world: World, watched: Watched) -> None:
    watched.go("/login")
    assert faults(watched.page) == []
    watched.page.evaluate("document.documentElement.removeAttribute('lang')")
    watched.page.evaluate("document.querySelector('h1').style.color = '#bbb'")
    assert [one.split(":")[0] for one in faults(watched.page)] == [
        "color-contrast",
        "html-has-lang",
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_no_page_has_a_serious_fault(
    site: Site, watched: Watched, scheme: Literal["light", "dark"], width: int
) -> None:
    page = watched.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    found: dict[str, list[str]] = {}
    code = site.world.services.invitations.add(None, 1, None, "root")
    for path in ("/login", f"/join/{code}"):
        watched.go(path)
        found[path] = faults(page)
    seen: set[str] = set()
    for name in ("ada", "root"):
        if name == "root":
            page.get_by_role("button", name="Log out").click()
        watched.log_in(site.world.tokens[name])
        paths = [f"/join/{code}", *everywhere(site)]
        paths += every_page(site.world) if name == "root" else []
        for path in dict.fromkeys(paths):
            answer = page.goto(watched.url + path)
            assert answer is not None
            if not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            main = page.locator("main").inner_html()
            if main not in seen:  # some pages are the same for both but for their header
                seen.add(main)
                found[f"{name} {path}"] = faults(page)
    assert len(found) > 40
    assert {path: one for path, one in found.items() if one} == {}


def test_the_editor_with_its_search_has_no_serious_fault(world: World, watched: Watched) -> None:
    watched.log_in(world.tokens["ada"])
    watched.go("/submit?problem=softmax")
    page = watched.page
    page.locator(".cm-editor").wait_for()  # until then "Source" is a plain field without search
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.get_by_role("textbox", name="Source").press("Control+f")
        page.get_by_role("textbox", name="Find").fill("def")
        assert faults(page) == []


class TestWhoSignsInWithAnotherSite:
    """The pages on which a stranger chooses a name, and has a token made."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(requests_per_minute=10_000, sign_up="open")

    @pytest.fixture
    def provider(self) -> Iterator[Provider]:
        with Provider() as running:
            yield running

    @pytest.fixture
    def services(self, settings: Settings, database: str, provider: Provider) -> Iterator[Services]:
        offered = {"university": provider.settings("university")}
        migrate_by_copy(database)
        opened = Services.open(database, every_problem(), settings, Clock(), offered)
        yield opened
        opened.close()

    def test_no_page_has_a_serious_fault(self, watched: Watched, provider: Provider) -> None:
        page = watched.page
        watched.go("/login")
        found = {"log in": both_schemes(page)}
        page.get_by_role("link", name="University").click()
        page.wait_for_url("**/login/name")
        found["choose a name"] = both_schemes(page)
        page.get_by_label("Name").fill("jane")
        page.get_by_role("button", name="Make the account").click()
        page.wait_for_url("**/")
        watched.go("/users/jane")
        found["own page"] = both_schemes(page)
        page.get_by_role("button", name="New token").click()
        page.get_by_role("heading", name="New token").wait_for()
        found["token"] = both_schemes(page)
        assert {name: one for name, one in found.items() if one} == {}
        # The provider is another site, and the only one that the browser went to.
        requests = [one.partition("?")[0] for one in watched.faults]
        assert requests == [f"request to {provider.url}/authorize"]
        watched.faults.clear()


def both_schemes(page: Page) -> list[str]:
    """The faults of a page in light and in dark."""
    found = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found += faults(page)
    return found
