from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from grader.cli.render import interval, micros, render, speedup
from grader.report import CaseResult, Mismatch, Report

MakeReport = Callable[..., Report]


def shown(report: Report, width: int = 110) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, markup=False)
    console.print(render(report, width))
    return console.export_text()


def failing(**changes: object) -> CaseResult:
    fields: dict[str, object] = {
        "name": "prime",
        "kind": "test",
        "params": {"rows": 7, "cols": 4099, "dtype": "bf16", "causal": True},
        "status": "wrong_answer",
        "reason": "4099 elements are off",
        "max_abs_err": 0.7,
        "error_budget_used": 1234.0,
        "mismatch": Mismatch(
            argument="out",
            shape=[7, 4099],
            index=[3, 17],
            expected=1 / 3,
            got=float("nan"),
            wrong_elements=4099,
            total_elements=28693,
            histogram=[("1e-8", 20000), ("1e-7", 0), ("1", 4)],
            worst_slice="row 3",
        ),
    }
    return CaseResult.model_validate(fields | changes)


def test_a_failure_shows_where_and_how(make_report: MakeReport) -> None:
    text = shown(make_report(verdict="wrong_answer", cases=[failing()], seed=4711, id=17))
    for expected in (
        "✘ wrong answer",
        "test prime",
        "rows=7 cols=4099 dtype=bf16 causal=True",
        "7×4099 bf16 causal",
        "4711",
        "out, 7 × 4099",
        "[3, 17]",
        "0.333333333",
        "nan",
        "4,099 of 28,693 (14.29%)",
        "row 3",
        ">999%",
        "grade replay 17",
    ):
        assert expected in text
    bars = {line.split()[2]: line.count("▇") for line in text.splitlines() if " 1e-8 " in line}
    assert list(bars.values()) == [24]


def test_the_first_failure_is_the_one_shown(make_report: MakeReport) -> None:
    cases = [failing(name="a"), failing(name="b"), failing(name="c", status="not_run")]
    text = shown(make_report(verdict="wrong_answer", cases=cases))
    assert "test a: wrong answer" in text
    assert "test b: wrong answer" not in text
    assert "1 more were not run" in text


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_it_fits_the_terminal(make_report: MakeReport, width: int) -> None:
    cases = [*make_report().cases, failing()]
    text = shown(make_report(cases=cases, log="a long line " * 50), width)
    assert max(map(len, text.splitlines())) <= width


def test_rates_go_where_there_is_no_room(make_report: MakeReport) -> None:
    assert "GB/s" in shown(make_report(), 120)
    assert "GB/s" not in shown(make_report(), 80)
    assert "90%" in shown(make_report(), 80)


def test_a_time_that_did_not_settle_is_marked(make_report: MakeReport) -> None:
    case = make_report().cases[1].model_copy(update={"converged": False})
    text = shown(make_report(cases=[case]))
    assert "~50.00 µs" in text
    assert "had not settled" in text


def test_only_the_end_of_a_long_log(make_report: MakeReport) -> None:
    text = shown(make_report(log="".join(f"line {i}\n" for i in range(40))))
    assert "last 12 of 40 lines" in text
    assert "line 39" in text
    assert "line 27" not in text


@pytest.mark.parametrize(
    ("time_us", "expected"),
    [(0.5, "0.5000 µs"), (48.213, "48.21 µs"), (3472.0, "3.472 ms"), (2.5e6, "2.500 s")],
)
def test_micros(time_us: float, expected: str) -> None:
    assert micros(time_us) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"), [(12.34, "12.3"), (1.254, "1.25"), (0.98, "0.980"), (0.0042, "0.0042")]
)
def test_speedup(ratio: float, expected: str) -> None:
    assert speedup(ratio) == expected


@pytest.mark.parametrize(
    ("ci_us", "shown"),
    [
        (None, ""),
        ((9.9, 10.2), " ± 2.00%"),
        ((0.5, 19.9), " ± 99.00%"),
        ((1, 900), "  did not settle"),
    ],
)
def test_an_interval_is_told_by_its_longer_arm(
    ci_us: tuple[float, float] | None, shown: str
) -> None:
    assert interval(10, ci_us) == shown
