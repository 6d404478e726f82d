"""The pages in a real browser: Chromium, driven by Playwright, against a server on a socket."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from grader.fleet import State
from grader.fleet.dispatch import Dispatcher
from grader.fleet.job import Worker
from grader.fleet.local_engine import LocalEngine
from grader.judge import Progress
from tests.server.browser import Watched
from tests.server.browser import chromium as chromium
from tests.server.browser import watched as watched
from tests.server.conftest import H100, PROBLEMS, World
from tests.server.examples import accepted, finish, queue_submission
from tests.server.site import Site, everywhere
from tests.server.site import site as site

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "submissions/softmax/accepted/torch_softmax.py"
WRONG = ROOT / "submissions/softmax/wrong_answer/wrong_axis.py"

pytestmark = pytest.mark.chromium


def test_submit_follow_the_progress_and_see_the_rank(site: Site, watched: Watched) -> None:
    world, ledger = site.world, site.world.services.ledger
    for number in (site.marks["waiting"], site.marks["waiting_attack"]):
        ledger.cancel(number, "root")
    watched.disable_polling()
    watched.log_in(world.tokens["ada"])
    watched.go("/submit?problem=softmax")
    page = watched.page
    page.get_by_label("File").set_input_files(KERNEL)
    page.get_by_role("main").get_by_role("button", name="Submit").click()
    page.get_by_text("next in the queue").wait_for()
    assert page.url.endswith("/submit?problem=softmax")

    [job] = ledger.queue()
    lease = ledger.claim("w", lease_s=60)
    assert lease is not None
    ledger.begin(lease)
    ledger.heartbeat(lease, 60, Progress("test", "one_hot", 9, 22, None))
    page.get_by_text("Testing: one_hot").wait_for()
    halfway = float(page.get_by_role("progressbar").get_attribute("value") or 0)
    ledger.heartbeat(lease, 60, Progress("benchmark", "square", 1, 6, None))
    page.get_by_text("Timing: square").wait_for()
    assert float(page.get_by_role("progressbar").get_attribute("value") or 0) > halfway > 0.2

    best = accepted(world.problem, 0.95)
    ledger.finish(lease, world.report(lease, **best))
    page.get_by_text("Accepted").wait_for()
    page.get_by_text("Rank 1").wait_for()
    page.get_by_role("link", name=f"Open submission {job.submission_id}").click()
    page.get_by_role("heading", name="Accepted").wait_for()
    watched.go("/leaderboards/softmax")
    first = page.locator("table.standings tbody tr").first
    assert first.get_attribute("class") == "first me"


def test_a_submission_page_reloads_when_it_is_done(site: Site, watched: Watched) -> None:
    watched.disable_polling()
    watched.go(f"/submissions/{site.marks['waiting']}")
    watched.page.get_by_text("next in the queue").wait_for()
    finish(site.world.services.ledger, site.world.clock, accepted(site.world.problem, 0.5))
    watched.page.get_by_role("heading", name="Accepted").wait_for()
    watched.page.get_by_role("heading", name="Times").wait_for()


def test_a_refused_file_shows_an_alert(site: Site, watched: Watched, tmp_path: Path) -> None:
    watched.log_in(site.world.tokens["ada"])
    watched.go("/submit")
    file = tmp_path / "<img src=x onerror=alert(9)>.txt"
    file.write_text("x")
    watched.page.get_by_label("File").set_input_files(file)
    watched.page.get_by_role("main").get_by_role("button", name="Submit").click()
    alert = watched.page.get_by_role("alert")
    alert.wait_for()
    assert "files end in .py and .cu" in alert.inner_text()


def test_the_queue_page_updates_itself(site: Site, watched: Watched) -> None:
    watched.go("/queue")
    watched.page.get_by_text("0 being graded, 2 waiting").wait_for()
    site.world.services.ledger.announce(Worker("w", "local", "cuda", H100, 1))
    assert site.world.services.ledger.claim("w", lease_s=60) is not None
    watched.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    watched.page.get_by_text("1 being graded, 1 waiting. 1 slot on NVIDIA H100").wait_for()


def test_a_hidden_queue_page_asks_for_nothing(site: Site, watched: Watched) -> None:
    watched.page.add_init_script(
        "window.seen = 0; const later = window.setTimeout;"
        "window.setTimeout = (call, ms, ...rest) => {"
        "  const isPoll = 8000 <= ms && ms <= 12000; if (isPoll) window.seen += 1;"
        "  return later(call, isPoll ? 50 : ms, ...rest); };"
    )
    asked: list[str] = []
    watched.go("/queue")
    watched.page.on("request", lambda request: asked.append(request.url))
    while watched.page.evaluate("window.seen") < 4:
        watched.page.wait_for_timeout(50)
    assert len(asked) >= 2, "with short pauses, the page asks again and again"
    watched.page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    watched.page.wait_for_timeout(200)  # for requests that are on their way
    asked.clear()
    seen = watched.page.evaluate("window.seen")
    while watched.page.evaluate("window.seen") < seen + 4:
        watched.page.wait_for_timeout(50)
    assert asked == []


def test_hostile_text_is_not_executed(site: Site, watched: Watched) -> None:
    watched.log_in(site.world.tokens["root"])
    for path in everywhere(site):
        watched.go(path)
        watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        injected = watched.page.locator("main img, main script, main [onload], main [onerror]")
        assert injected.count() == 0, path
        wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, path


def test_no_page_is_wider_than_a_phone(site: Site, watched: Watched) -> None:
    watched.page.set_viewport_size({"width": 360, "height": 740})
    watched.log_in(site.world.tokens["root"])
    for path in [*everywhere(site), "/", "/problems/flash_attention", "/problems/int4_matmul"]:
        watched.go(path)
        wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, path


@pytest.mark.parametrize("width", [500, 700, 900, 1280])
def test_a_submission_with_many_parameters_needs_no_scrolling(
    world: World, watched: Watched, width: int
) -> None:
    sizes = {"batch": 1, "heads": 16, "kv_heads": 16, "queries": 16384, "keys": 16384, "dim": 128}
    many = {**sizes, "dtype": "bf16", "layout": "bhsd", "distribution": "peaked", "causal": True}
    number = queue_submission(world.services.ledger, world.problem, "ada")
    fields = accepted(world.problem, 0.5)
    fields["cases"] = [case.model_copy(update={"params": many}) for case in fields["cases"]]
    finish(world.services.ledger, world.clock, fields)
    watched.page.set_viewport_size({"width": width, "height": 900})
    watched.go(f"/submissions/{number}")
    watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tables = watched.page.locator(".scroll")
    assert tables.count() == 2
    hidden = tables.evaluate_all("all => all.map(e => e.scrollWidth - e.clientWidth)")
    assert hidden == [0, 0]


def test_the_theme_is_remembered(site: Site, watched: Watched) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    watched.page.emulate_media(color_scheme="light")
    watched.go("/")
    light = watched.page.evaluate(background)
    watched.page.get_by_role("button", name="Light or dark").click()
    dark = watched.page.evaluate(background)
    assert dark != light
    watched.go("/queue")
    assert watched.page.evaluate(background) == dark
    watched.page.get_by_role("button", name="Light or dark").click()
    watched.page.emulate_media(color_scheme="dark")
    watched.go("/")
    assert watched.page.evaluate(background) == light


def test_everything_can_be_reached_by_keyboard(site: Site, watched: Watched) -> None:
    watched.log_in(site.world.tokens["ada"])
    for path in ("/submit", "/leaderboards/softmax", f"/submissions/{site.marks['best']}"):
        watched.go(path)
        page = watched.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        wanted = page.evaluate(
            "[...document.querySelectorAll('a[href], button, input, select, summary')]"
            ".filter(e => e.type !== 'hidden' && e.checkVisibility()).length"
        )
        reached = set()
        for _ in range(3 * wanted):
            reached.add(page.evaluate(
                "[...document.querySelectorAll('*')].indexOf(document.activeElement)"
            ))  # fmt: skip
            page.keyboard.press("Tab")
        assert len(reached) >= wanted, path
    page.keyboard.press("Control+Home")


def test_focus_is_visible(site: Site, watched: Watched) -> None:
    watched.go("/leaderboards/softmax")
    for _ in range(4):
        watched.page.keyboard.press("Tab")
        outline = watched.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_submitting_works_without_scripts(site: Site, chromium: Browser) -> None:
    context = chromium.new_context(java_script_enabled=False)
    watched = Watched(context.new_page(), site.world.url)
    watched.log_in(site.world.tokens["bob"])
    watched.go("/submit?problem=softmax")
    watched.page.get_by_label("File").set_input_files(KERNEL)
    watched.page.get_by_role("main").get_by_role("button", name="Submit").click()
    watched.page.get_by_role("heading", name="In progress").wait_for()
    assert watched.page.get_by_role("button", name="Copy").count() == 0
    context.close()
    assert watched.faults == []


def test_an_admin_adds_a_user_sets_a_board_and_releases_a_grading(
    world: World, watched: Watched
) -> None:
    number = world.submitted("ada")
    for _ in range(3):
        assert world.services.ledger.fail(world.lease(), "no GPU")
        world.clock.move(100)
    page = watched.page
    watched.log_in(world.tokens["root"])
    page.get_by_role("link", name="Admin").click()
    sections = page.get_by_role("navigation", name="Administration")
    sections.get_by_role("link", name="Held").click()
    page.get_by_role("button", name=f"Release submission {number}").click()
    page.get_by_text("Nothing is held").wait_for()

    sections.get_by_role("link", name="Boards").click()
    page.get_by_role("link", name="Softmax over rows").click()
    page.get_by_label("Deadline, UTC").fill("2031-05-01T21:59")
    page.get_by_label("Hide the board").check()
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    assert page.get_by_label("Deadline, UTC").input_value() == "2031-05-01T21:59"
    assert world.services.admin.board("softmax").hidden

    sections.get_by_role("link", name="Users").click()
    page.get_by_label("Name").fill("grace")
    page.get_by_role("button", name="Add user").click()
    page.get_by_text("shown only this once").wait_for()
    token = page.locator(".command code").inner_text()
    assert world.client(token=token).get("/api/v1/me").json()["name"] == "grace"


@pytest.mark.parametrize("width", [360, 1400])
def test_no_page_of_admins_is_wider_than_the_window(
    site: Site, watched: Watched, width: int
) -> None:
    world = site.world
    digest = world.problem.digest
    world.services.admin.rejudges.start("softmax", digest, "best", reason="x", by="root")
    world.services.admin.hold("wilma", by="root")
    watched.page.set_viewport_size({"width": width, "height": 800})
    watched.log_in(world.tokens["root"])
    sections = ("", "/held", "/boards", "/boards/softmax", "/users", "/users/ada", "/workers")
    for section in (*sections, "/rejudges", "/rejudges/1", "/announcements", "/audit"):
        watched.go(f"/admin{section}")
        wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, section


@pytest.mark.slow
def test_a_real_worker_grades_an_uploaded_file(world: World, watched: Watched) -> None:
    """On a CPU slot: a wrong kernel's verdict and error chart."""
    folders = {"softmax": PROBLEMS / "softmax"}
    engine = LocalEngine(1, "cpu", "process")
    dispatcher = Dispatcher(world.services.ledger, engine, folders, "here")
    stop = threading.Event()
    ticking = threading.Thread(target=_tick, args=(world, stop), daemon=True)
    ticking.start()
    dispatcher.start()
    try:
        watched.log_in(world.tokens["ada"])
        watched.go("/submit?problem=softmax")
        watched.page.get_by_label("File").set_input_files(WRONG)
        watched.page.get_by_role("main").get_by_role("button", name="Submit").click()
        watched.page.get_by_role("link", name="Open submission").wait_for()
        watched.page.get_by_role("link", name="Open submission").click()
        watched.page.wait_for_url("**/submissions/*")
        assert watched.page.get_by_role("heading", level=1).inner_text() == "Wrong answer"
        watched.page.get_by_text("First wrong").wait_for()
        assert watched.page.locator("svg.errors rect").count() >= 1
        assert world.services.submissions.states()[State.DONE] == 1
    finally:
        stop.set()
        ticking.join()
        dispatcher.drain(0)
        engine.close(0)


def _tick(world: World, stop: threading.Event) -> None:
    """Advance the fixture's clock, which leases need."""
    while not stop.is_set():
        time.sleep(0.25)
        world.clock.move(0.25)
