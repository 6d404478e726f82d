"""Charts: well-formed SVG without styles, for any values."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grader.server.pages.charts.error_map import error_histogram, error_location
from grader.server.pages.charts.record_history import record, sparkline
from grader.server.pages.charts.svg import overlaps, text_box
from grader.server.pages.charts.timing import distribution, roofline_bar, strip
from grader.server.services.standings import RecordStep
from tests.server.examples import ATTACK

START = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = st.text(min_size=1, max_size=40)
TIMES = st.floats(1e-3, 1e9)


def parse(svg: str, user: str = "") -> ElementTree.Element:
    """A chart, after asserting that it is well-formed, accessible and within the content policy.

    user: a name that its text may have, such as ``inf``.
    """
    tree = ElementTree.fromstring(str(svg))
    assert tree.get("role") == "img"
    assert tree.get("aria-label")
    for element in tree.iter():
        assert element.tag in {"svg", "path", "circle", "rect", "line", "text", "title"}
        for name, value in element.items():
            assert name != "style"
            assert not name.startswith("on")
            words = set(value.split()) - set(user.split() if name == "aria-label" else [])
            assert not {"nan", "inf", "-inf"} & words, (name, value)
    return tree


def record_steps(*times_us: float) -> list[RecordStep]:
    return [
        RecordStep(START + timedelta(days=day), time_us, f"user{day}")
        for day, time_us in enumerate(times_us)
    ]


def test_record_has_a_step_and_a_name_per_improvement() -> None:
    tree = parse(record(record_steps(100, 80, 79), START + timedelta(days=9), {"eager": 90}))
    path = next(e for e in tree.iter("path")).get("d") or ""
    heights = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    assert heights == sorted(heights)
    assert len(heights) == 2
    named = [text.text for text in tree.iter("text") if "name" in (text.get("class") or "")]
    assert sorted(str(name) for name in named) == ["user0", "user1", "user2"]
    assert "eager" in [text.text for text in tree.iter("text")]


def test_labels_of_a_crowded_record_do_not_overlap() -> None:
    steps = record_steps(*(1000 * 0.97**n for n in range(120)))
    tree = parse(record(steps, steps[-1].at, {}))
    boxes = []
    for text in tree.iter("text"):
        if "name" in (text.get("class") or ""):
            anchor = "end" if "end" in (text.get("class") or "") else ""
            x, y = float(text.get("x") or 0), float(text.get("y") or 0)
            boxes.append(text_box(x, y, str(text.text), anchor))
    assert len(boxes) > 5
    assert not [1 for n, box in enumerate(boxes) if overlaps(box, boxes[n + 1 :])]
    assert len(list(tree.iter("circle"))) == 120


def test_a_baseline_far_from_the_record_is_left_out() -> None:
    tree = parse(record(record_steps(100, 90), START + timedelta(days=2), {"slow": 1e6}))
    assert "slow" not in [text.text for text in tree.iter("text")]


@pytest.mark.parametrize(
    ("hours", "shown"),
    [
        (9, ["00:00", "04:30", "09:00"]),
        (26, ["1 Jan, 00:00", "1 Jan, 13:00", "2 Jan, 02:00"]),
        (96, ["1 Jan", "3 Jan", "5 Jan"]),
    ],
)
def test_time_axis_labels_have_a_date_if_the_record_spans_days(
    hours: int, shown: list[str]
) -> None:
    tree = parse(record(record_steps(100), START + timedelta(hours=hours), {}))
    lowest = max(float(text.get("y") or 0) for text in tree.iter("text"))
    assert [text.text for text in tree.iter("text") if float(text.get("y") or 0) == lowest] == shown


@given(st.lists(TIMES, min_size=1, max_size=20, unique=True), NAMES, st.floats(0, 1e4), TIMES)
@example([1.0], "inf", 0.0, 1.0)
def test_record_accepts_any_times(
    times: list[float], user: str, days: float, baseline_us: float
) -> None:
    steps = [
        RecordStep(START + timedelta(days=n * days), time_us, user)
        for n, time_us in enumerate(sorted(times, reverse=True))
    ]
    parse(_printable(record(steps, steps[-1].at, {user: baseline_us})), user)


def _printable(svg: str) -> str:
    # XML forbids control characters; HTML does not.
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", str(svg))


@pytest.mark.parametrize(
    ("share", "width"), [(0.5, "50.00%"), (1.7, "100.00%"), (0.0, None), (None, None)]
)
def test_bar_is_as_long_as_the_share(share: float | None, width: str | None) -> None:
    tree = parse(roofline_bar(share, {"eager": 0.25, "off": 1.5}))
    fills = [rect.get("width") for rect in tree.iter("rect") if rect.get("class") == "fill"]
    assert fills == ([width] if width else [])
    assert [r.get("x") for r in tree.iter("rect") if r.get("class") == "mark"] == ["25.00%"]


@given(st.lists(TIMES, min_size=1, max_size=30))
def test_sparkline_accepts_any_times(times: list[float]) -> None:
    parse(sparkline(times))


def test_distribution_counts_every_round() -> None:
    tree = parse(distribution([10.0] * 50 + [11.0] * 50, (10.0, 11.0)))
    columns = [rect for rect in tree.iter("rect") if rect.get("class") == "fill"]
    assert len(columns) == 2
    assert "100 rounds" in (tree.get("aria-label") or "")


@given(st.lists(TIMES, min_size=1, max_size=200))
def test_distribution_accepts_any_rounds(times: list[float]) -> None:
    parse(distribution(times, None))
    parse(distribution(times, (min(times), max(times))))
    parse(strip(times, None))
    parse(strip(times, (min(times), max(times))))


def test_a_strip_is_darkest_where_most_rounds_are() -> None:
    tree = parse(strip([10.0] * 90 + [11.0] * 10, (10.0, 10.1)))
    bins = [e for e in tree.iter("rect") if e.get("class") == "fill"]
    assert [e.get("fill-opacity") for e in bins] == ["1.00", "0.33"]
    assert bins[0].get("x") == "0.0"
    assert [text.text for text in tree.iter("text")] == ["10.00\xa0µs", "11.00\xa0µs"]


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
def test_error_location_marks_the_worst_slice(
    worst: str | None, box: tuple[int, ...] | None
) -> None:
    tree = parse(error_location([10, 10], [5, 9], worst, width=104))
    bad = [rect for rect in tree.iter("rect") if rect.get("class") == "bad"]
    assert len(bad) == (box is not None)
    if box:
        found = [float(bad[0].get(name) or 0) for name in ("x", "y", "width", "height")]
        assert found == [2 + 10 * box[0], 2 + 10 * box[1], 10 * box[2], 10 * box[3]]


def test_error_location_flattens_leading_dimensions_into_rows() -> None:
    tree = parse(error_location([2, 3, 4, 5], [1, 2, 3, 4], None))
    assert "row 23 of 24, column 4 of 5" in (tree.get("aria-label") or "")
    assert error_location([], [], None) == ""
    assert error_location([3, 0], [0, 0], None) == ""


def test_error_histogram_has_a_bar_per_decade() -> None:
    tree = parse(error_histogram([("exact", 10), ("1e-3", 5), (ATTACK, 1)]))
    assert [rect.get("class") for rect in tree.iter("rect")] == ["fill", "bad", "bad"]


@pytest.mark.parametrize("index", [(0, 0), (99, 256), (0, 256)])
def test_the_circle_of_the_first_wrong_element_stays_within_the_chart(
    index: tuple[int, int],
) -> None:
    drawn = str(error_location((100, 257), index, None))
    circle = re.search(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', drawn)
    sheet = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert circle is not None
    assert sheet is not None
    x, y, radius = map(float, circle.groups())
    assert radius < x < float(sheet[1]) - radius
    assert radius < y < float(sheet[2]) - radius
