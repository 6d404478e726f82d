"""The arithmetic of `benchmarks/forgery.py`, and the numbers of the clock in its forgeries."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

from benchmarks.forgery import (
    FOLDER,
    UNFORGED,
    WRAPPED,
    Honest,
    Table,
    Try,
    chosen,
    compare,
    honest_times,
    repeat,
    row,
    submission_of,
    within_limit,
    worst_gain,
)
from grader.judge.timing.plan import POLICY
from grader.report import CaseResult, Report, Rule, Verdict
from tests.waiting import until

HONEST = Honest(60.0, {"small": 12.0, "large": 300.0})


def accepted(small_us: float, large_us: float, score_us: float = 60.0) -> Try:
    return Try("accepted", score_us, {"small": small_us, "large": large_us})


REJECTED = Try("rejected (time_claim)")


def report(verdict: Verdict, rule: Rule | None = None, score_us: float | None = None) -> Report:
    case = CaseResult(name="small", kind="benchmark", params={}, status="passed", time_us=score_us)
    return Report(
        problem="softmax",
        problem_digest="",
        submission_sha256="",
        submission_name="",
        language="python",
        verdict=verdict,
        rule=rule,
        reason="",
        device="cuda",
        sandbox="process",
        ranked=True,
        score_us=score_us,
        cases=[case],
        seed=0,
    )


@pytest.mark.parametrize(
    ("small_us", "large_us", "case", "share"),
    [
        (9.0, 300.0, "small", 1.0),  # a short call may gain 3 µs
        (12.0, 294.0, "large", 1.0),  # a long one 2 %
        (12.0, 288.0, "large", 2.0),
        (6.0, 294.0, "small", 2.0),
        (13.2, 303.0, "small", -0.4),  # both are slower
    ],
)
def test_a_gain_is_relative_to_its_allowance(
    small_us: float, large_us: float, case: str, share: float
) -> None:
    gain = worst_gain(HONEST, [accepted(small_us, large_us)])
    assert gain is not None
    assert gain.case == case
    assert gain.share == pytest.approx(share)


def test_the_largest_gain_of_all_tries_counts() -> None:
    tries = [accepted(12.0, 300.0), REJECTED, accepted(12.0, 280.0), accepted(11.9, 301.0)]
    gain = worst_gain(HONEST, tries)
    assert gain is not None
    assert (gain.case, gain.gained_us) == ("large", 20.0)
    assert not within_limit(HONEST, tries)


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([accepted(9.01, 294.1)], True),
        ([accepted(8.9, 300.0)], False),
        ([accepted(12.0, 293.9)], False),
        ([REJECTED, REJECTED], True),
        ([REJECTED, Try("judge_error", judge_failed=True)], False),
        ([], False),
    ],
)
def test_within_the_limit(tries: list[Try], expected: bool) -> None:
    assert within_limit(HONEST, tries) is expected


def test_no_forgery_is_within_the_limit_without_an_honest_time() -> None:
    assert honest_times([REJECTED]) is None
    assert not within_limit(None, [accepted(12.0, 300.0)])
    assert within_limit(None, [REJECTED]), "nothing to compare"


def test_honest_times_are_medians_of_accepted_tries() -> None:
    tries = [accepted(12, 300, 60), REJECTED, accepted(13, 301, 62), accepted(15, 299, 61)]
    assert honest_times(tries) == Honest(61, {"small": 13, "large": 300})


OK = report(Verdict.ACCEPTED, score_us=12.0)
FORGED = report(Verdict.REJECTED, Rule.TIME_CLAIM)
WRONG = report(Verdict.WRONG_ANSWER)


@pytest.mark.parametrize(
    ("reports", "made"),
    [
        ([OK] * 5, 5),
        ([WRONG] * 5, 2),
        ([FORGED] * 5, 5),
        ([WRONG, FORGED, WRONG, OK, OK], 3),
        ([OK, WRONG, WRONG, WRONG, WRONG], 5),
        ([OK, FORGED, FORGED, FORGED, FORGED], 5),
        ([FORGED, OK, FORGED, FORGED, FORGED], 5),
    ],
)
def test_tries_stop_early_only_without_chance(reports: list[Report], made: int) -> None:
    assert len(list(repeat(partial(next, iter(reports)), 5))) == made


def test_a_failure_of_the_judge_is_reported_and_proves_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> Report:
        raise OSError("no sandbox")

    def tried(name: str, tries: int) -> list[Try]:
        return list(repeat(fail if name.startswith("rejected") else lambda: OK, tries))

    names = {"rejected/forged_claim.py": "accepted/torch_softmax.py"}
    with ThreadPoolExecutor(1) as executor:
        assert compare(executor, tried, names, 3, Table(None)) == 0
    out, error = capsys.readouterr()
    assert "the judge failed: OSError × 2; stopped after 2" in out
    assert "no sandbox" in error


def test_a_process_that_dies_costs_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    def tried(name: str, tries: int) -> list[Try]:
        if name == "a.py":
            raise BrokenProcessPool("it died")
        return list(repeat(lambda: report(Verdict.REJECTED), tries))

    names = {"a.py": "honest.py", "b.py": "honest.py"}
    with ThreadPoolExecutor(1) as executor:
        compare(executor, tried, names, 2, Table(None))
    out = capsys.readouterr().out
    assert "| ✘ | `a.py` | the judge's process died × 1; stopped after 1 |" in out
    assert "| `b.py` | rejected × 2 |" in out


def test_the_table_is_written_row_by_row(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    reports = {
        "honest.py": [OK, OK, OK],
        "a.py": [OK, report(Verdict.ACCEPTED, score_us=8.5)],
        "b.py": [FORGED, FORGED],
    }

    def tried(name: str, tries: int) -> list[Try]:
        if name == "honest.py":  # the last one: a row without an accepted try is written before it
            until(lambda: out.exists() and len(out.read_text().splitlines()) == 1)
        return list(repeat(partial(next, iter(reports[name])), tries))

    names = {"a.py": "honest.py", "b.py": "honest.py"}
    with ThreadPoolExecutor(1) as executor:
        assert compare(executor, tried, names, 2, Table(out)) == 1
    rejected, honest, accepted = out.read_text().splitlines()
    assert rejected == "| ✔ | `b.py` | rejected (time_claim) × 2 | – | – | – | – | – |"
    assert "`honest.py` | accepted × 3" in honest
    assert accepted == (
        "| ✘ | `a.py` | accepted × 2 | 8.50 | 12.00 | +29.2% | small | +3.50 of 3.00 |"
    )


def test_a_row_shows_that_tries_were_left_out() -> None:
    assert "rejected (time_claim) × 2; stopped after 2" in row("x", HONEST, [REJECTED] * 2, 10)


def test_honest_kernels_are_graded_only_for_accepted_forgeries() -> None:
    graded: list[str] = []

    def tried(name: str, tries: int) -> list[Try]:
        graded.append(name)
        return [REJECTED] * tries

    with ThreadPoolExecutor(1) as executor:
        assert compare(executor, tried, {"a.py": "honest.py"}, 2, Table(None)) == 1
    assert graded == ["a.py"]


def test_every_rejected_submission_is_a_forgery() -> None:
    rejected = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/rejected/*.*")}
    assert rejected - set(WRAPPED) == set()


def test_every_forgery_is_an_example_submission() -> None:
    names = {name.removesuffix(UNFORGED) for name in {*WRAPPED, *WRAPPED.values()}}
    assert [name for name in names if not (FOLDER / name).exists()] == []


def test_a_forgery_without_its_last_line_is_honest() -> None:
    forged = [name for name in WRAPPED.values() if name.endswith(UNFORGED)]
    assert forged
    for name in forged:
        whole = submission_of(name.removesuffix(UNFORGED), 1 << 20).source.decode()
        left = submission_of(name, 1 << 20).source.decode()
        assert whole == left + "Server._timed = instead\n"
        assert "Server._timed =" not in left


def test_only_selects_by_part_of_a_path() -> None:
    assert set(chosen(("native", "stale_graph"))) == {
        "softmax/rejected/native_timer.py",
        "softmax/wrong_answer/hostile_stale_graph.py",
    }
    assert chosen(()) == WRAPPED


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("accepted/hostile_shaves_to_the_limit.py", "LIMIT_US"),
        ("accepted/hostile_shaves_to_the_limit.py", "LIMIT_SHARE"),
        ("accepted/hostile_shaves_to_the_limit.py", "SLACK_US"),
        ("rejected/all_at_once.py", "LIMIT_US"),
        ("rejected/all_at_once.py", "LIMIT_SHARE"),
        ("rejected/all_at_once.py", "SLACK_US"),
    ],
)
def test_forgeries_have_the_clock_policys_numbers(file: str, name: str) -> None:
    text = (FOLDER / "softmax" / file).read_text()
    found = re.search(rf"^{name} = ([\d.]+)", text, re.MULTILINE)
    assert found is not None
    assert float(found[1]) == getattr(POLICY, name.lower())
