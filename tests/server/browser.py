"""Chromium, driven by Playwright, and a page of it that records what must not happen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

from tests.chromium import CHROMIUM
from tests.server.conftest import World
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page that records errors, dialogs and foreign requests."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.answers: list[bool] = []
        """The answers to the dialogs that a test expects, in their order."""
        page.set_default_timeout(PATIENCE_S * 1e3)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        # The console also reports expected answers, such as a 401.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def _on_dialog(self, dialog: Dialog) -> None:
        if self.answers:
            dialog.accept() if self.answers.pop(0) else dialog.dismiss()
            return
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"request to {request.url}")

    def disable_polling(self) -> None:
        """Disable the poll every 10 s from the next page on, so that only events update it."""
        self.page.add_init_script(
            "const later = window.setTimeout;"
            "window.setTimeout = (call, ms, ...rest) =>"
            " ms === 10000 ? 0 : later(call, ms, ...rest);"
        )

    def go(self, path: str) -> None:
        """Load a page of the server."""
        self.page.goto(self.url + path)

    def log_in(self, token: str) -> None:
        """Log in with the form."""
        self.go("/login")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("main").get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name="Log out").wait_for()


@pytest.fixture
def watched(chromium: Browser, world: World) -> Iterator[Watched]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    found = Watched(context.new_page(), world.url)
    yield found
    context.close()
    assert found.faults == [], found.faults
    assert found.answers == [], "a dialog did not appear"
