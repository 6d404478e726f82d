"""The pictures, the statements, the words and the colours of the pages."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import format
from grader.server.http.ttl_cache import Fresh
from grader.server.pages import charts, markdown
from grader.server.pages.charts import Step
from tests.server.examples import ATTACK, SOURCE
from tests.waiting import PATIENCE_S

START = datetime(2030, 1, 1, tzinfo=UTC)
CSS = Path(charts.__file__).parent / "static/grade.css"
NAMES = st.text(min_size=1, max_size=40)
TIMES = st.floats(1e-3, 1e9)


def parse(svg: str) -> ElementTree.Element:
    """The picture, which is well-formed and has words for those who cannot see it."""
    tree = ElementTree.fromstring(str(svg))
    assert tree.get("role") == "img"
    assert tree.get("aria-label")
    for element in tree.iter():
        assert element.tag in {"svg", "path", "circle", "rect", "line", "text", "title"}
        for name, value in element.items():
            assert name != "style"
            assert not name.startswith("on")
            assert not {"nan", "inf", "-inf"} & set(value.split()), (name, value)
    return tree


# Pictures ----------------------------------------------------------------------------------------


def falling(*times_us: float) -> list[Step]:
    return [
        Step(START + timedelta(days=day), time_us, f"user{day}")
        for day, time_us in enumerate(times_us)
    ]


def test_record_falls_step_by_step() -> None:
    tree = parse(charts.record(falling(100, 80, 79), START + timedelta(days=9), {"eager": 90}))
    path = next(e for e in tree.iter("path")).get("d") or ""
    heights = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    assert heights == sorted(heights)
    assert len(heights) == 2
    named = [text.text for text in tree.iter("text") if "name" in (text.get("class") or "")]
    assert sorted(str(name) for name in named) == ["user0", "user1", "user2"]
    assert "eager" in [text.text for text in tree.iter("text")]


def test_labels_of_a_crowded_record_do_not_overlap() -> None:
    steps = falling(*(1000 * 0.97**n for n in range(120)))
    tree = parse(charts.record(steps, steps[-1].at, {}))
    boxes = []
    for text in tree.iter("text"):
        if "name" in (text.get("class") or ""):
            place = "end" if "end" in (text.get("class") or "") else ""
            x, y = float(text.get("x") or 0), float(text.get("y") or 0)
            boxes.append(charts._box(x, y, str(text.text), place))
    assert len(boxes) > 5
    assert not [1 for n, box in enumerate(boxes) if charts._hits(box, boxes[n + 1 :])]
    assert len(list(tree.iter("circle"))) == 120


def test_a_yardstick_far_away_is_left_out() -> None:
    tree = parse(charts.record(falling(100, 90), START + timedelta(days=2), {"slow": 1e6}))
    assert "slow" not in [text.text for text in tree.iter("text")]


@pytest.mark.parametrize(
    ("hours", "shown"),
    [
        (9, ["00:00", "04:30", "09:00"]),
        (26, ["1 Jan, 00:00", "1 Jan, 13:00", "2 Jan, 02:00"]),
        (96, ["1 Jan", "3 Jan", "5 Jan"]),
    ],
)
def test_times_of_a_record_that_crosses_midnight_have_their_day(
    hours: int, shown: list[str]
) -> None:
    tree = parse(charts.record(falling(100), START + timedelta(hours=hours), {}))
    lowest = max(float(text.get("y") or 0) for text in tree.iter("text"))
    assert [text.text for text in tree.iter("text") if float(text.get("y") or 0) == lowest] == shown


def test_a_class_that_places_text_draws_no_line() -> None:
    rules = re.findall(r"svg (\.[\w-]+) \{([^}]*)\}", CSS.read_text())
    anchors = {name for name, rule in rules if "text-anchor" in rule}
    assert anchors == {".end", ".middle"}
    assert not [name for name, rule in rules if "stroke" in rule and name in anchors]


@given(st.lists(TIMES, min_size=1, max_size=20, unique=True), NAMES, st.floats(0, 1e4), TIMES)
def test_record_takes_any_times(times: list[float], who: str, days: float, yard: float) -> None:
    steps = [
        Step(START + timedelta(days=n * days), time_us, who)
        for n, time_us in enumerate(sorted(times, reverse=True))
    ]
    parse(_printable(charts.record(steps, steps[-1].at, {who: yard})))


def _printable(svg: str) -> str:
    # XML has no place for control characters; HTML reads them.
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", str(svg))


@pytest.mark.parametrize(
    ("share", "width"), [(0.5, "50.00%"), (1.7, "100.00%"), (0.0, None), (None, None)]
)
def test_bar_is_as_long_as_the_share(share: float | None, width: str | None) -> None:
    tree = parse(charts.bar(share, {"eager": 0.25, "off": 1.5}))
    fills = [rect.get("width") for rect in tree.iter("rect") if rect.get("class") == "fill"]
    assert fills == ([width] if width else [])
    assert [r.get("x") for r in tree.iter("rect") if r.get("class") == "mark"] == ["25.00%"]


@given(st.lists(TIMES, min_size=1, max_size=30))
def test_sparkline_takes_any_times(times: list[float]) -> None:
    parse(charts.sparkline(times))


def test_distribution_shows_every_round_once() -> None:
    tree = parse(charts.distribution([10.0] * 50 + [11.0] * 50, (10.0, 11.0)))
    columns = [rect for rect in tree.iter("rect") if rect.get("class") == "fill"]
    assert len(columns) == 2
    assert "100 rounds" in (tree.get("aria-label") or "")


@given(st.lists(TIMES, min_size=1, max_size=200))
def test_distribution_takes_any_rounds(times: list[float]) -> None:
    parse(charts.distribution(times, None))
    parse(charts.distribution(times, (min(times), max(times))))


@pytest.mark.parametrize(
    ("worst", "box"),
    [
        ("row 5", (0, 5, 10, 1)),
        ("column 9", (9, 0, 1, 10)),
        ("the 64×64 tile at row 0, column 0", (0, 0, 10, 10)),
        ("row 10", None),
        ("the one on the left", None),
        (None, None),
    ],
)
def test_place_marks_the_worst_slice(worst: str | None, box: tuple[int, ...] | None) -> None:
    tree = parse(charts.place([10, 10], [5, 9], worst, width=104))
    bad = [rect for rect in tree.iter("rect") if rect.get("class") == "bad"]
    assert len(bad) == (box is not None)
    if box:
        found = [float(bad[0].get(name) or 0) for name in ("x", "y", "width", "height")]
        assert found == [2 + 10 * box[0], 2 + 10 * box[1], 10 * box[2], 10 * box[3]]


def test_place_of_an_output_of_four_dimensions_counts_rows() -> None:
    tree = parse(charts.place([2, 3, 4, 5], [1, 2, 3, 4], None))
    assert "row 23 of 24, column 4 of 5" in (tree.get("aria-label") or "")
    assert charts.place([], [], None) == ""
    assert charts.place([3, 0], [0, 0], None) == ""


def test_errors_show_every_decade() -> None:
    tree = parse(charts.errors([("exact", 10), ("1e-3", 5), (ATTACK, 1)]))
    assert [rect.get("class") for rect in tree.iter("rect")] == ["fill", "bad", "bad"]


# Statements and code -----------------------------------------------------------------------------


def test_math_becomes_mathml() -> None:
    page = markdown.render("# Title\n\nWith $e^x$:\n\n$$\\frac{a}{b}$$\n")
    assert "Title" not in page
    assert '<math display="inline"><mrow><msup>' in page
    assert '<math display="block"><mrow><mfrac>' in page


@pytest.mark.parametrize(
    "latex",
    [
        r"\text{<img src=x onerror=alert(1)>}",
        r"\href{javascript:alert(1)}{x}",
        r"\style{color:red}{x}",
        r"\class{a' onload=alert(1)}{x}",
        r"\frac{a}{",
        r"\begin{aligned} a &= b",
        "</math><script>alert(1)</script>",
    ],
)
def test_formulas_cannot_smuggle_markup(latex: str) -> None:
    shown = str(markdown.math(latex))
    for tag in re.findall(r"<[^>]*>", shown):
        assert not re.search(r"\b(on\w+|style|href|class)\s*=", tag.replace('class="right"', ""))
    assert "<script" not in shown
    assert "<img" not in shown


@given(st.text(max_size=60))
def test_any_formula_gives_something(latex: str) -> None:
    shown = str(markdown.math(latex))
    assert shown.startswith(("<math", "<code"))


def test_statements_cannot_smuggle_markup() -> None:
    page = markdown.render(f"{ATTACK}\n\n[x](javascript:alert(1))\n\n```\n{ATTACK}\n```\n")
    assert "<script" not in page
    assert "<img" not in page
    assert 'href="javascript' not in page


def test_a_prototype_is_wrapped_and_a_program_is_not() -> None:
    page = markdown.render("```cpp\nvoid softmax();\n```\n\n```python\na = 1\nb = 2\n```\n")
    assert re.findall(r'<pre class="([^"]*)"', page) == ["code line", "code"]


def test_code_is_coloured_and_whole() -> None:
    for language in ("python", "cuda", "no such language", ""):
        shown = markdown.highlight(SOURCE + ATTACK, language)
        assert "<script" not in shown
        assert "<img" not in shown
        assert shown.striptags().split() == (SOURCE + ATTACK).split()
    assert '<span class="k">def</span>' in markdown.highlight(SOURCE, "python")


# Words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [(0.5, "0.5000 µs"), (78.03, "78.03 µs"), (999.94, "999.9 µs"), (999.99, "1.000 ms"),
     (1234.5, "1.234 ms"), (2.5e6, "2.500 s")],
)  # fmt: skip
def test_micros(time_us: float, shown: str) -> None:
    assert format.micros(time_us) == shown.replace(" ", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "now"), (0.2, "now"), (59, "59 s ago"), (3600, "1 h ago"), (86400 * 400, "400 d ago")],
)
def test_age(seconds: float, shown: str) -> None:
    then = START - timedelta(seconds=seconds)
    assert format.age(then, START) == shown.replace(" ", "\N{NO-BREAK SPACE}", 1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0"), (3.14159, "3.142"), (999.94, "999.9"), (999.96, "1,000"),
     (1234.5, "1,234"), (16384, "16,384"), (1e-5, "1e-05"), (float("inf"), "inf")],
)  # fmt: skip
def test_number(value: float | None, shown: str) -> None:
    assert format.number(value) == shown


def test_parameters_put_sizes_first() -> None:
    params = {"dtype": "fp16", "rows": 4, "causal": True, "cols": 5, "gap": False}
    assert format.parameters(params) == "4×5 fp16 causal"


# What is kept for a moment -----------------------------------------------------------------------


def test_values_are_made_once_until_they_are_old_or_change() -> None:
    now = [0.0]
    made = iter(range(10))
    kept: Fresh[int] = Fresh(1.0, lambda: now[0])
    assert [kept.get("a", made.__next__, 1) for _ in range(3)] == [0, 0, 0]
    now[0] = 1.5
    assert [kept.get("a", made.__next__, 1) for _ in range(2)] == [1, 1]
    assert kept.get("b", made.__next__, 1) == 2
    assert [kept.get("a", made.__next__, 2) for _ in range(2)] == [3, 3]


@pytest.mark.parametrize("changed", [False, True])
def test_while_one_makes_a_value_the_others_have_the_old_one_if_it_is_only_old(
    changed: bool,
) -> None:
    now = [0.0]
    kept: Fresh[str] = Fresh(1.0, lambda: now[0])
    kept.get("a", lambda: "old", 1)
    now[0] = 2.0
    version = 2 if changed else 1
    begun, go = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go.wait(PATIENCE_S)
        return "new"

    maker = threading.Thread(target=kept.get, args=("a", slow, version))
    maker.start()
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.2, go.set).start()
    assert kept.get("a", lambda: "never", version) == ("new" if changed else "old")
    maker.join()
    assert kept.get("a", lambda: "never", version) == "new"


def test_a_failure_is_not_kept() -> None:
    kept: Fresh[int] = Fresh(1.0)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 7) == 7


# Colours -----------------------------------------------------------------------------------------


def palette() -> list[dict[str, str]]:
    """The colours by name: those of light, and those of dark."""
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS.read_text())
    return [{name: light for name, light, _ in found}, {name: dark for name, _, dark in found}]


def luminance(colour: str) -> float:
    """Of WCAG 2.2: relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_can_be_read_on_every_ground(scheme: int) -> None:
    colours = palette()[scheme]
    for text in ("ink", "soft", "accent", "good", "bad", "odd"):
        for ground in ("paper", "panel", "sunk"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for text in ("ink", "soft"):
        assert contrast(colours[text], colours["wash"]) >= 4.5
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    assert contrast(colours["accent"], colours["rail"]) >= 3


def test_style_sheet_loads_nothing() -> None:
    assert "url(" not in CSS.read_text()
    assert "@import" not in CSS.read_text()


@pytest.mark.parametrize("index", [(0, 0), (99, 256), (0, 256)])
def test_the_first_wrong_element_is_circled_whole(index: tuple[int, int]) -> None:
    drawn = str(charts.place((100, 257), index, None))
    circle = re.search(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', drawn)
    sheet = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert circle is not None
    assert sheet is not None
    x, y, radius = map(float, circle.groups())
    assert radius < x < float(sheet[1]) - radius
    assert radius < y < float(sheet[2]) - radius
