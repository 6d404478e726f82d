from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from grader.cli.output.render import LOG_ROWS, interval, micros, render, speedup
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


def test_the_rule_follows_the_reason(make_report: MakeReport) -> None:
    """A beginner knows what it means to write into an input, and not the name of the rule."""
    reason = "case 'one': your kernel wrote into 'x', which is an input"
    text = shown(make_report(verdict="rejected", rule="memory_tampered", reason=reason))
    assert 0 < text.index(reason) < text.index("memory_tampered")


def test_a_drawn_case_is_named_once_in_its_line(make_report: MakeReport) -> None:
    drawn = failing(name="drawn_1", reason="case 'drawn_1' (n=7): 2 elements are off")
    text = shown(make_report(verdict="wrong_answer", cases=[failing(), drawn]))
    assert "✘ drawn_1  (n=7): 2 elements are off" in text


def test_every_wrong_output_and_the_format_are_shown(make_report: MakeReport) -> None:
    others = ["3 of 4 elements of 'state' are off"]
    mismatch = failing().mismatch
    assert mismatch is not None
    told = mismatch.model_copy(update={"looks_like": "bf16", "others": others})
    cases = [failing(mismatch=told), failing(name="second", mismatch=told)]
    report = make_report(verdict="wrong_answer", cases=cases, seed=4711, problem="double", id=None)
    text = shown(report)
    assert "as large as rounding to bf16 leaves them" in text
    assert "also wrong   3 of 4 elements of 'state' are off" in text
    assert "✘ second  4099 elements are off\n    also 3 of 4 elements of 'state' are off" in text
    assert "grade practice double FILE --case prime --seed 4711" in text


def test_a_problem_of_another_set_is_run_again_by_its_path(make_report: MakeReport) -> None:
    report = make_report(
        verdict="wrong_answer", cases=[failing()], seed=1, problem="kernelbot_sort_py", id=None
    )
    assert "grade practice kernelbot:PATH FILE --case prime --seed 1" in shown(report)


def test_the_first_failure_is_the_one_shown(make_report: MakeReport) -> None:
    cases = [failing(name="a"), failing(name="b"), failing(name="c", status="not_run")]
    text = shown(make_report(verdict="wrong_answer", cases=cases))
    assert "test a: wrong answer" in text
    assert "test b: wrong answer" not in text
    assert "also failed\n  ✘ b  4099 elements are off\n" in text
    assert "✘ c" not in text
    assert "1 more case was not run" in text


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_output_fits_the_terminal(make_report: MakeReport, width: int) -> None:
    cases = [*make_report().cases, failing()]
    text = shown(make_report(cases=cases, log="a long line " * 50), width)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [1, 4, 5])
def test_a_very_narrow_terminal_is_no_error(make_report: MakeReport, width: int) -> None:
    assert shown(make_report(log="a line\n" * 50), width)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (100, []),
        (60, ["4096×4096", "█"]),
        (50, ["4096×4096", "2,684", "█"]),
        (30, ["1.25", "± 1.00%", "90%", "4096×4096", "█"]),
    ],
)
def test_columns_dropped_in_a_narrow_terminal(
    make_report: MakeReport, width: int, left_out: list[str]
) -> None:
    case = make_report().cases[1].model_copy(update={"baseline_us": {"eager": 62.5}})
    text = shown(make_report(verdict=None, cases=[case], speedup={}, score_us=None), width)
    assert "…" not in text
    wanted = ["✔", "square", "50.00 µs", "1.25", "± 1.00%", "90%", "4096×4096", "2,684", "█"]
    assert [word for word in wanted if word not in text] == left_out


@pytest.mark.parametrize("width", [30, 60, 80, 100])
def test_a_case_takes_one_row_and_no_cell_is_cut(make_report: MakeReport, width: int) -> None:
    params = {"rows": 100003, "cols": 257, "dtype": "fp32", "values": "normal"}
    cases = [
        failing(name="tile_plus_one", params=params, rel_l2=0.25, worst_slice_rel_l2=0.5),
        failing(name="widest", params=params, status="passed", error_budget_used=0.18),
    ]
    text = shown(make_report(verdict="wrong_answer", cases=cases), width)
    first, second = (
        line for line in text.splitlines() if re.match("[✔✘]  (tile_plus_one|widest) ", line)
    )
    assert "…" not in text
    assert "✘" in first
    assert ">999%" in first
    assert "✔" in second
    assert "18%" in second
    assert ("100003×257 fp32 normal" in first, "7.0e-01" in first) == (width > 30,) * 2
    assert ("2.5e-01" in first, "5.0e-01" in first) == (width > 60,) * 2
    assert ("█" in first) == (width > 80)


def test_the_error_budget_is_shown_if_passed_or_exceeded(make_report: MakeReport) -> None:
    cases = [
        failing(name="slice", error_budget_used=0.003),
        failing(name="spent", error_budget_used=1.5),
    ]
    text = shown(make_report(verdict="wrong_answer", cases=cases))
    of = {line.split()[1]: line for line in text.splitlines() if line.startswith("✘")}
    assert "%" not in of["slice"]
    assert "150%" in of["spent"]


def test_an_unmeasured_worst_slice_is_a_dash(make_report: MakeReport) -> None:
    cases = [
        failing(name="short", rel_l2=1.0, worst_slice_rel_l2=None),
        failing(name="exact", status="passed", rel_l2=0.0, worst_slice_rel_l2=0.0),
    ]
    text = shown(make_report(verdict="wrong_answer", cases=cases))
    of = {line.split()[1]: line for line in text.splitlines() if line[:1] in ("✔", "✘")}
    assert "0.0e+00" not in of["short"]
    assert of["exact"].count("0.0e+00") == 2


def test_times_and_ratios_that_did_not_converge_are_marked(
    make_report: MakeReport,
) -> None:
    changes = {"converged": False, "baseline_us": {"eager": 62.5}}
    case = make_report().cases[1].model_copy(update=changes)
    text = shown(make_report(cases=[case]))
    assert "~50.00 µs" in text
    assert "~1.25 " in text
    assert "~1.25× eager" in text
    assert "had not converged" in text


def test_only_the_end_of_a_long_log_is_shown(make_report: MakeReport) -> None:
    text = shown(make_report(log="".join(f"line {i}\n" for i in range(40))))
    assert "last 12 rows of its output; --json has more" in text
    assert "line 39" in text
    assert "line 27" not in text


@pytest.mark.parametrize(
    "note",
    [
        "not ranked: the time of wide did not converge; submit it again",
        "not ranked: the score is known to ±0.31% only; submit it again",
        "not ranked: graded in the process sandbox, which suits only one's own code",
    ],
)
def test_the_reason_for_not_ranking_comes_from_the_note(make_report: MakeReport, note: str) -> None:
    report = make_report(device="cuda", ranked=False, notes=["something else", note])
    lines = shown(report, 120).splitlines()
    (ranked,) = [line for line in lines if " ranked " in line and "no, " in line]
    assert note.removeprefix("not ranked: ").split(";")[0] in ranked


def test_long_log_lines_count_by_terminal_rows(make_report: MakeReport) -> None:
    log = "".join(f"{i:03}\t" + "x" * 215 + "\n" for i in range(40)) + "ValueError: end\n"
    text = shown(make_report(log=log), 60)
    rows = text[text.index("--json has more ─") :].split("╰")[0].splitlines()
    assert len(rows) == 1 + LOG_ROWS
    assert "ValueError: end" in rows[-1]


@pytest.mark.parametrize(
    ("time_us", "expected"),
    [
        (0.5, "0.5000 µs"),
        (48.213, "48.21 µs"),
        (999.94, "999.9 µs"),
        (999.96, "1.000 ms"),
        (3472.0, "3.472 ms"),
        (999_960, "1.000 s"),
        (2.5e6, "2.500 s"),
    ],
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
        ((1, 900), "  did not converge"),
    ],
)
def test_an_interval_is_shown_by_its_longer_half(
    ci_us: tuple[float, float] | None, shown: str
) -> None:
    assert interval(10, ci_us) == shown
