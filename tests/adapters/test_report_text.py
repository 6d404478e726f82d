from __future__ import annotations

from collections.abc import Callable

from grader.adapters.report_text import report_text
from grader.report import CaseResult, Mismatch, Report

Make = Callable[..., Report]


def test_an_accepted_report(make_report: Make) -> None:
    assert report_text(make_report()) == (
        "accepted: all 2 cases passed\n"
        "softmax on NVIDIA H100 80GB HBM3: 1 of 1 tests passed\n"
        "score: 50.00 µs, 1.25 × eager\n"
        "  square: 50.00 µs, 90% of the roofline"
    )


def test_a_wrong_report_says_where(make_report: Make) -> None:
    mismatch = Mismatch(
        argument="out", shape=[2, 7], index=[1, 3], expected=0.5, got=0.0, wrong_elements=3,
        total_elements=14,
    )  # fmt: skip
    wrong = CaseResult(
        name="tiny", kind="test", params={"rows": 2}, status="wrong_answer", reason="too far off",
        mismatch=mismatch,
    )  # fmt: skip
    text = report_text(
        make_report(verdict="wrong_answer", reason="no", score_us=None, cases=[wrong])
    )
    assert "0 of 1 tests passed" in text
    assert "test tiny (rows=2): too far off" in text
    assert "out[1, 3]: expected 0.5, got 0; 3 of 14 elements are wrong" in text


def test_it_is_one_screen_of_safe_text(make_report: Make) -> None:
    failed = [
        CaseResult(
            name=f"case{n}", kind=kind, params={}, status="wrong_answer", reason="r" * 5000,
            time_us=1.0,
        )
        for kind in ("test", "benchmark")
        for n in range(50)
    ]  # fmt: skip
    text = report_text(make_report(verdict="rejected", rule="time_claim", cases=failed,
                                   log="\x1b[2J\n" * 3000))  # fmt: skip
    assert len(text.splitlines()) <= 40
    assert len(text) < 10_000
    assert "\x1b" not in text
    assert "rule broken: time_claim" in text
