"""Preview images: what they show, to whom, and what text in them does."""

from __future__ import annotations

import re
from datetime import timedelta
from io import BytesIO

import pytest
from PIL import Image, ImageFont

from grader import format
from grader.server.pages import preview_image
from grader.server.pages.preview_image import COLOURS, FONTS, HEIGHT, WIDTH, Preview, Row, draw
from grader.server.pages.templates import STATIC
from tests.server.conftest import H100
from tests.server.examples import ATTACK, accepted, finish, queue_submission, wrong
from tests.server.site import Site
from tests.server.site import site as site


def image(site: Site, path: str, name: str | None = None) -> bytes:
    """The image at an address."""
    answer = site.browser(name).get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    return answer.content


def clear_queue(site: Site) -> None:
    for job in site.world.services.ledger.queue():
        site.world.services.ledger.cancel(job.submission_id, "root")


def graded(site: Site, fields: dict[str, object], user: str = "ada") -> int:
    """The number of a new submission with such a report."""
    world = site.world
    number = queue_submission(world.services.ledger, world.problem, user)
    finish(world.services.ledger, world.clock, fields)
    return number


def test_a_page_links_to_its_image(site: Site) -> None:
    number = site.marks["best"]
    found = {}
    for path in (
        "/", "/problems/softmax", "/leaderboards/softmax", f"/submissions/{number}",
        f"/leaderboards/softmax?gpu={H100}&version=1",
    ):  # fmt: skip
        page = site.page(path)
        address = re.search(r'property="og:image" content="([^"]+)"', page)
        assert address is not None, path
        assert address[1].startswith(site.world.url + "/")
        assert 'name="twitter:card" content="summary_large_image"' in page
        content = image(site, address[1].replace("&amp;", "&"))
        with Image.open(BytesIO(content)) as opened:
            assert opened.format == "PNG"
            assert opened.size == (WIDTH, HEIGHT)
        assert len(content) < 100_000
        found[path] = content
    assert len(set(found.values())) == 4  # there is one GPU with most users, and one version
    for path in ("/queue", "/rules", "/login"):
        assert "og:image" not in site.page(path)
    assert 'og:title" content="Softmax over rows, leaderboard"' in site.page(
        "/leaderboards/softmax"
    )


def test_a_boards_image_shows_its_first_ranks(site: Site) -> None:
    clear_queue(site)
    path = "/leaderboards/softmax/preview.png"
    before = image(site, path)
    graded(site, accepted(site.world.problem, 0.95))
    services, problem = site.world.services, site.world.problem
    leaderboard = next(
        one for one in services.standings.snapshot()(problem.digest, None) if one.gpu == H100
    )
    first = leaderboard.standings[:5]
    assert first[0].user == "ada"
    rows = tuple(Row(str(one.rank), one.user, format.micros(one.score_us)) for one in first)
    note = f"{len(leaderboard.standings)} ranked"
    shown = draw(Preview(problem.spec.title, H100, rows=rows, note=note))
    for name in (None, "bob", "root", None):
        assert image(site, path, name) == shown != before


def test_a_submissions_image_shows_verdict_and_score(site: Site) -> None:
    clear_queue(site)
    problem = site.world.problem
    fields = accepted(problem, 0.97)
    number = graded(site, fields)
    name, ratio = next(iter(fields["speedup"].items()))
    rows = (
        Row("", "Time", format.micros(fields["score_us"])),
        Row("", "Rank", "1"),
        Row("", f"Speedup over {name}", format.ratio(ratio)),
    )
    who = f"Submission {number} by ada"
    shown = Preview(problem.spec.title, who, "Accepted", "good", rows, H100)
    assert image(site, f"/submissions/{number}/preview.png") == draw(shown)
    page = site.page(f"/submissions/{number}")
    assert f"Accepted, {format.micros(fields['score_us'])}." in page

    number = graded(site, wrong(problem, "a reason of its author"))
    who = f"Submission {number} by ada"
    shown = Preview(problem.spec.title, who, "Wrong answer", "bad", note=H100)
    for reader in (None, "ada", "root"):  # its author too gets what everybody may see
        assert image(site, f"/submissions/{number}/preview.png", reader) == draw(shown)


def test_before_the_deadline_an_image_shows_no_verdict(site: Site) -> None:
    clear_queue(site)
    world = site.world
    site.set_board(deadline=world.clock() + timedelta(hours=1))
    number = graded(site, accepted(world.problem, 0.9))
    title, who = world.problem.spec.title, f"Submission {number} by ada"
    note = "Others’ results are shown after the deadline."
    path = f"/submissions/{number}/preview.png"
    for name in (None, "ada", "root"):
        assert image(site, path, name) == draw(Preview(title, who, "Graded", "soft", note=note))
    assert "Accepted," not in site.page(f"/submissions/{number}")
    world.clock.move(3601)
    assert image(site, path) != draw(Preview(title, who, "Graded", "soft", note=note))


def test_an_unfinished_submission_is_in_progress_until_it_is_done(site: Site) -> None:
    clear_queue(site)
    world = site.world
    number = queue_submission(world.services.ledger, world.problem, "ada")
    path = f"/submissions/{number}/preview.png"
    title, who = world.problem.spec.title, f"Submission {number} by ada"
    assert image(site, path) == draw(Preview(title, who, "In progress", "soft"))
    finish(world.services.ledger, world.clock, accepted(world.problem, 0.9))
    assert image(site, path) != draw(Preview(title, who, "In progress", "soft"))


def test_what_is_hidden_has_no_image(site: Site) -> None:
    paths = [
        "/problems/softmax/preview.png",
        "/leaderboards/softmax/preview.png",
        f"/submissions/{site.marks['best']}/preview.png",
    ]
    home = image(site, "/preview.png")
    for path in paths:
        image(site, path)
    site.set_board(hidden=True)
    for path in paths:
        for name in (None, "ada", "root"):
            assert site.browser(name).get(path).status_code == 404, (path, name)
    assert image(site, "/preview.png") != home
    assert site.browser().get("/submissions/99999/preview.png").status_code == 404
    assert site.browser().get("/leaderboards/none/preview.png").status_code == 404
    site.set_board()
    assert site.browser().get("/leaderboards/softmax/preview.png?gpu=x").status_code == 404


def test_an_unchanged_image_is_not_drawn_or_sent_again(site: Site) -> None:
    client = site.browser()
    answer = client.get("/leaderboards/softmax/preview.png")
    drawn = draw.cache_info().misses
    headers = {"If-None-Match": answer.headers["etag"]}
    for _ in range(3):
        again = client.get("/leaderboards/softmax/preview.png", headers=headers)
        assert again.status_code == 304
    assert site.browser("ada").get("/leaderboards/softmax/preview.png").content == answer.content
    assert draw.cache_info().misses == drawn


@pytest.mark.parametrize(
    "text",
    [ATTACK, "x" * 100_000, "多" * 300, "a\nb\x00\x1b[31m\u202e", "", "é" * 300, "\ud800"],
    ids=["html", "long", "no glyph", "controls", "empty", "accents", "surrogate"],
)
def test_any_text_is_drawn(text: str) -> None:
    preview = Preview(text, text, text, "bad", (Row(text, text, text),) * 9, text)
    with Image.open(BytesIO(draw(preview))) as opened:
        assert opened.size == (WIDTH, HEIGHT)
        margin = opened.convert("RGB").crop((WIDTH - preview_image.MARGIN + 4, 0, WIDTH, HEIGHT))
        assert margin.getcolors() == [(margin.width * margin.height, (251, 250, 247))]


def test_a_long_name_is_cut_before_its_time() -> None:
    def pixels(name: str) -> Image.Image:
        row = Row("1", name, "12.34 µs")
        with Image.open(BytesIO(draw(Preview("t", rows=(row,))))) as opened:
            return opened.convert("RGB")

    one, other = pixels("m" * 100), pixels("m" * 150)
    assert one.tobytes() == other.tobytes()
    assert one.tobytes() != pixels("m" * 10).tobytes()
    time = (WIDTH - 72 - 170, 200, WIDTH, 300)
    assert one.crop(time).tobytes() == pixels("m").crop(time).tobytes()


def test_the_fonts_have_what_times_and_names_need() -> None:
    for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"):
        font = ImageFont.truetype(FONTS / name, 40)
        missing = bytes(font.getmask("\uffff"))
        assert [one for one in "µ×…%–’ąñΩж" if bytes(font.getmask(one)) == missing] == []
    assert "Bitstream" in (FONTS / "LICENSE").read_text()


def test_the_colours_are_those_of_the_style_sheet() -> None:
    css = (STATIC / "grade.css").read_text()
    light = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}), #\w{6}\)", css))
    assert {name: light[name] for name in COLOURS} == COLOURS
