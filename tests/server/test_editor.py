"""The editor of the submit page, in Chromium."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, expect

from grader.problem.scaffold import scaffold
from grader.server.pages.templates import STATIC
from grader.submission import Submission
from tests.server.browser import Watched
from tests.server.browser import chromium as chromium
from tests.server.browser import watched as watched
from tests.server.conftest import World
from tests.server.site import Site
from tests.server.site import site as site

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "scripts/editor/package-lock.json"


def test_the_bundle_is_small_and_has_the_licences_of_what_is_in_it() -> None:
    assert (STATIC / "vendor/codemirror.min.js").stat().st_size < 400_000
    locked = {
        path.removeprefix("node_modules/"): entry
        for path, entry in json.loads(LOCK.read_text())["packages"].items()
    }
    text = (STATIC / "vendor/codemirror.LICENSE").read_text()
    found = re.findall(r"^(@?[\w/-]+) (\d+\.\d+\.\d+)$", text, re.MULTILINE)
    assert {"@codemirror/view", "@lezer/common", "style-mod"} <= {name for name, _ in found}
    for name, version in found:
        assert (name, version) == (name, locked[name]["version"])
        assert locked[name]["license"] == "MIT"


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


class Editor:
    """The submit page of softmax, with its editor."""

    def __init__(
        self, watched: Watched, world: World, path: str = "/submit?problem=softmax"
    ) -> None:
        self.watched, self.page, self.world = watched, watched.page, world
        watched.log_in(world.tokens["ada"])
        watched.go(path)

    @property
    def content(self) -> Locator:
        return self.page.get_by_role("textbox", name="Source")

    def text(self) -> str:
        lines: list[str] = self.page.locator(".cm-line").all_inner_texts()
        return "\n".join("" if line == "\n" else line for line in lines)

    def shows(self, text: str) -> None:
        """Wait until the editor begins with the first line of a text."""
        expect(self.page.locator(".cm-line").first).to_have_text(text.splitlines()[0])

    def starter(self, language: str) -> str:
        return scaffold(self.world.problem, language)

    def choose(self, language: str) -> None:
        self.page.get_by_label("Language").select_option(language)

    def write(self, text: str) -> None:
        """Replace all text, as by pasting it."""
        self.content.focus()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    @property
    def status(self) -> Locator:
        return self.page.locator("[data-editor-status]")

    def is_kept(self) -> None:
        expect(self.status).to_have_text("The draft is kept in this browser.")

    def drop(self, name: str, text: str) -> None:
        dropped = self.page.evaluate_handle(
            "([name, text]) => { const all = new DataTransfer();"
            " all.items.add(new File([text], name)); return all; }",
            [name, text],
        )
        self.content.dispatch_event("drop", {"dataTransfer": dropped})

    def submit(self) -> Submission:
        """Submit; what was stored."""
        with self.page.expect_response("**/submit") as answer:
            self.page.get_by_role("main").get_by_role("button", name="Submit").click()
        found = re.search(r"/submissions/(\d+)/events", answer.value.text())
        assert found is not None
        number = int(found[1])
        self.page.locator(f'#progress a[href="/submissions/{number}"]').wait_for()
        summary = self.world.services.submissions.summary(number)
        source = self.world.services.submissions.source(number)
        assert summary is not None
        assert source is not None
        return Submission(summary.name, summary.language, source)


@pytest.fixture
def editor(world: World, watched: Watched) -> Editor:
    return Editor(watched, world)


pytestmark = pytest.mark.chromium


def test_the_switch_loads_the_starter_of_each_language(editor: Editor) -> None:
    for language in ("triton", "cuda", "torch", "triton"):
        editor.choose(language)
        starter = editor.starter(language)
        editor.shows(starter)
        assert starter.startswith(editor.text()[:200])
    assert editor.page.get_by_role("textbox", name="Source").count() == 1


def test_long_lines_make_no_page_wider_than_a_phone(editor: Editor) -> None:
    editor.page.set_viewport_size({"width": 360, "height": 740})
    editor.shows(editor.starter("triton"))
    editor.write("x" * 500)
    editor.is_kept()
    assert editor.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_text_is_submitted_unchanged(editor: Editor) -> None:
    editor.shows(editor.starter("triton"))
    editor.write("a = 1\n\n# µ\n")
    found = editor.submit()
    assert found == Submission("submission.py", "python", "a = 1\n\n# µ\n".encode())
    editor.choose("cuda")
    editor.shows(editor.starter("cuda"))
    assert editor.submit().name == "submission.cu"


def test_drafts_are_kept_by_problem_and_language(editor: Editor) -> None:
    editor.shows(editor.starter("triton"))
    editor.write("mine = 1")
    editor.choose("cuda")
    editor.shows(editor.starter("cuda"))
    editor.write("// mine")
    editor.is_kept()
    editor.page.reload()
    editor.shows("mine = 1")
    editor.choose("cuda")
    editor.shows("// mine")
    editor.page.get_by_label("Problem").select_option("gelu")
    editor.shows(scaffold(editor.world.services.problems["gelu"], "cuda"))
    editor.page.get_by_label("Problem").select_option("softmax")
    editor.shows("// mine")
    editor.watched.answers = [False, True]
    for shown in ("// mine", editor.starter("cuda")):
        editor.page.get_by_role("button", name="Start over").click()
        editor.shows(shown)
    editor.page.reload()
    editor.shows("mine = 1")


def test_leaving_warns_if_no_draft_can_be_kept(editor: Editor) -> None:
    editor.page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full'); }")
    editor.page.reload()
    editor.shows(editor.starter("triton"))
    editor.write("mine = 1")
    expect(editor.status).to_contain_text("This browser keeps no draft")
    editor.watched.answers = [False, True]
    editor.choose("cuda")
    editor.shows("mine = 1")
    assert editor.page.get_by_label("Language").input_value() == "triton"
    editor.page.evaluate("location.href = '/queue'")
    editor.page.wait_for_url("**/queue")


def test_a_dropped_file_is_opened(editor: Editor) -> None:
    editor.shows(editor.starter("triton"))
    editor.drop("fast.cu", "// dropped\nint x;\n")
    editor.shows("// dropped")
    assert editor.page.get_by_label("Language").input_value() == "cuda"
    editor.watched.answers = [False, True]
    editor.drop("other.cu", "// other\n")
    editor.drop("last.cu", "// last\n")
    editor.shows("// last")
    assert editor.submit() == Submission("last.cu", "cuda", b"// last\n")
    editor.drop("notes.txt", "x")
    expect(editor.status).to_contain_text("files end in .py and .cu")


def test_a_chosen_file_stands_for_the_text(editor: Editor) -> None:
    editor.shows(editor.starter("triton"))
    content = b"\xff\r\n"
    file = FilePayload(name="odd.py", mimeType="text/plain", buffer=content)
    editor.page.get_by_label("File").set_input_files(file)
    expect(editor.content).to_be_hidden()
    assert editor.submit() == Submission("odd.py", "python", content)
    editor.page.get_by_role("button", name="Edit a text instead").click()
    expect(editor.content).to_be_visible()
    assert editor.submit().source.decode() == editor.starter("triton")


def test_tab_passes_the_editor_until_something_is_typed(editor: Editor) -> None:
    active = "document.activeElement.className || document.activeElement.id"
    editor.shows(editor.starter("triton"))
    editor.page.get_by_role("button", name="Start over").focus()
    editor.page.keyboard.press("Tab")
    assert editor.page.evaluate(active) == "editor"
    editor.page.keyboard.press("Tab")
    assert editor.page.evaluate(active) == "file"
    editor.write("x")
    editor.page.keyboard.press("Tab")
    editor.page.keyboard.insert_text("y")
    editor.shows("x    y")
    editor.page.keyboard.press("Escape")
    editor.page.keyboard.press("Tab")
    assert editor.page.evaluate(active) == "file"


def test_the_source_is_coloured_in_both_themes(editor: Editor) -> None:
    editor.shows(editor.starter("triton"))
    page = editor.page
    word = page.locator(".cm-line span", has_text=re.compile("^def$")).first
    colours = set()
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        colour = word.evaluate("one => getComputedStyle(one).color")
        assert colour != editor.content.evaluate("one => getComputedStyle(one).color")
        ground = page.locator(".cm-editor").evaluate("one => getComputedStyle(one).backgroundColor")
        colours |= {colour, ground}
    assert len(colours) == 4
    editor.content.focus()
    page.keyboard.press("Control+f")
    expect(page.get_by_role("textbox", name="Find")).to_be_focused()


def test_stages_cancel_and_resubmit_on_the_page(editor: Editor) -> None:
    editor.shows(editor.starter("triton"))
    editor.write("# first\n")
    editor.submit()
    page = editor.page
    page.get_by_text("Next in the queue").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    page.get_by_role("link", name="Edit and resubmit").click()
    page.wait_for_url("**/submit?from=*")
    editor.shows("# first")
    editor.write("# second\n")
    editor.is_kept()
    assert editor.submit().source == b"# second\n"
    page.reload()
    editor.shows("# second")
    editor.watched.go("/submit?problem=softmax")
    editor.shows("# first")


def test_the_submission_page_cancels_without_scripts(site: Site, chromium: Browser) -> None:
    context = chromium.new_context(java_script_enabled=False)
    watched = Watched(context.new_page(), site.world.url)
    watched.log_in(site.world.tokens["ada"])
    watched.go("/submit?problem=softmax")
    page = watched.page
    page.get_by_label("Language").select_option("cuda")
    page.get_by_label("Source").fill("// typed\n")
    page.get_by_role("main").get_by_role("button", name="Submit").click()
    page.get_by_role("heading", name="In progress").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    page.get_by_role("link", name="Edit and resubmit").click()
    assert page.get_by_label("Source").input_value() == "// typed\n"
    context.close()
    assert watched.faults == []
