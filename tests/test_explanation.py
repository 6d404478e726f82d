from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import grader
from grader.explanation import MAX_COLUMNS, MAX_LINES, explain
from grader.report import CaseResult, Mismatch, Report, Rule, Verdict

MakeReport = Callable[..., Report]


def case(name: str, status: Any = "passed", kind: Any = "test", **more: Any) -> CaseResult:
    params = {"rows": 4, "cols": 7, "dtype": "bf16"}
    return CaseResult(name=name, kind=kind, params=params, status=status, **more)


def a_mismatch(**more: Any) -> Mismatch:
    values: dict[str, Any] = {
        "argument": "out",
        "shape": [4, 7],
        "index": [1, 6],
        "expected": 0.5,
        "got": 0.25,
        "wrong_elements": 1200,
        "total_elements": 4096,
        "worst_slice": "row 1",
    }
    return Mismatch(**values | more)


def test_a_wrong_answer(make_report: MakeReport) -> None:
    wrong = case("ragged", "wrong_answer", reason="out is off", mismatch=a_mismatch())
    others = [case(f"other{n}", "wrong_answer") for n in range(8)]
    report = make_report(
        verdict="wrong_answer",
        reason="out is off",
        score_us=None,
        cases=[case("a"), wrong, *others],
    )
    text = explain(report)
    assert text.splitlines()[:3] == [
        "softmax: kernel.py on NVIDIA H100 80GB HBM3",
        "wrong_answer: out is off",
        "reached: tests; 1 of 10 tests passed",
    ]
    assert "test ragged (4×7 bf16): wrong_answer: out is off" in text
    assert "out[1, 6] should be 0.5 and is 0.25; 1,200 of 4,096 elements are wrong" in text
    assert "also failed: other0, other1, other2, other3, other4 and 3 more" in text
    assert "Other cases passed (4×7 bf16)" in text
    assert "mask the last tile" in text
    assert "WHAT LIMITS THE TIME" not in text


def test_the_likely_cause(make_report: MakeReport) -> None:
    wrong = case("a", "wrong_answer", mismatch=a_mismatch(looks_like="bf16"))
    text = explain(make_report(verdict="wrong_answer", score_us=None, cases=[wrong]))
    assert "as large as rounding to bf16" in text
    fails = case("big", "wrong_answer", "benchmark")
    text = explain(make_report(verdict="wrong_answer", score_us=None, cases=[case("a"), fails]))
    assert "It passed every test, and failed where it is timed" in text
    for rule in Rule:
        text = explain(make_report(verdict="rejected", rule=rule, score_us=None))
        assert f"rule broken: {rule}" in text
        assert "LIKELY CAUSE" in text


def test_a_log_shows_its_end(make_report: MakeReport) -> None:
    log = "\n".join(f"line {number}" for number in range(99))
    text = explain(make_report(verdict="compile_error", score_us=None, cases=[], log=log))
    assert "  line 98" in text.splitlines()
    assert "  line 89" in text.splitlines()
    assert "line 88" not in text
    assert "reached: compile; 0 of 0 tests passed" in text


def test_a_slow_kernel(make_report: MakeReport) -> None:
    cases = [
        case("a"),
        case("near", kind="benchmark", time_us=50.0, sol=0.8, gb_per_s=2684.0),
        case("far", kind="benchmark", time_us=5.0, sol=0.2, tflop_per_s=3.5),
    ]
    text = explain(make_report(cases=cases), "memory")
    assert "time: 50.00 µs, 1.25× eager (1.24 to 1.26), 40 % of the roofline" in text
    far, near = (line for line in text.splitlines() if "of the roofline, " in line[2:])
    assert far == "  far (4×7 bf16): 5.000 µs, 20 % of the roofline, 3.5 TFLOP/s"
    assert near.endswith("2,684 GB/s")
    assert "Calls below 10 µs are mostly the launch" in text
    assert "Memory traffic limits this problem" in text
    assert "Memory traffic" not in explain(make_report(cases=cases))


def test_little_is_left_to_gain(make_report: MakeReport) -> None:
    assert "It is near the roofline" in explain(make_report())
    untimed = make_report(score_us=None, score_ci_us=None, speedup={}, cases=[case("a")])
    assert "It was not timed" in explain(untimed)


@pytest.mark.parametrize("verdict", [Verdict.JUDGE_ERROR, None])
def test_a_fault_of_the_judge_advises_nothing(
    make_report: MakeReport, verdict: Verdict | None
) -> None:
    text = explain(make_report(verdict=verdict, reason="no sandbox starts", score_us=None))
    assert "This says nothing about the submission." in text
    assert "WHAT TO TRY" not in text


@pytest.mark.parametrize("verdict", [None, *Verdict])
def test_it_is_one_screen(make_report: MakeReport, verdict: Verdict | None) -> None:
    long = "word " * 60
    bad = [
        case(f"{'n' * 80}{number}", "wrong_answer", reason=long, mismatch=a_mismatch(argument=long))
        for number in range(50)
    ]
    timed = [case("t" * 90, kind="benchmark", time_us=1.0, sol=0.1, gb_per_s=1.0)] * 50
    report = make_report(
        verdict=verdict,
        rule="time_claim" if verdict is Verdict.REJECTED else None,
        reason=long,
        cases=[*bad, *timed],
        log="x" * 16_000 + "\n" + "y\n" * 500,
        submission_name="k" * 100,
        speedup={"b" * 200: 1.0},
    )
    lines = explain(report, "compute").splitlines()
    assert len(lines) <= MAX_LINES == 40
    assert max(map(len, lines)) <= MAX_COLUMNS == 100
    assert grader.explain(report, "compute").splitlines() == lines
