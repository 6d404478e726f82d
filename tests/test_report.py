from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from grader.report import (
    MAX_MARKS,
    CaseResult,
    Report,
    Verdict,
    escape,
    one_line,
    provenance,
)

ACUTE, RING = "\u0301", "\u20dd"


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "tab\tand\nline",
        "déjà vu, Tiếng Việt, Łódź",
        "ภาษาไทย ที่นี่",
        "हिन्दी में",
        "שָׁלוֹם",
        "한국어 日本語",
        "1\ufe0f\u20e3",
        f"e{ACUTE}" * 9,
    ],
)
def test_ordinary_text_is_not_escaped(text: str) -> None:
    assert escape(text, 100) == text


@pytest.mark.parametrize("blank", "\u115f\u1160\u2800\u3164\uffa0\u200b\u202e\u00ad")
def test_invisible_characters_are_escaped(blank: str) -> None:
    shown = blank.encode("unicode_escape").decode()
    assert one_line(f"a{blank}b") == f"a{shown}b"


@pytest.mark.parametrize("mark", [ACUTE, RING])
def test_long_piles_of_marks_are_escaped(mark: str) -> None:
    shown = mark.encode("unicode_escape").decode()
    pile = mark * (MAX_MARKS + 2)
    assert escape(f"a{pile}b{mark}", 100) == f"a{mark * MAX_MARKS}{shown * 2}b{mark}"


@pytest.mark.parametrize("word", ["လျှို့ဝှက်", "Việt", "नमस्ते", "สวัสดี"])
def test_words_with_marks_are_not_escaped(word: str) -> None:
    assert one_line(word) == word


@pytest.mark.parametrize("before", ["", "a\n", "a\t"])
def test_a_mark_without_a_base_character_is_escaped(before: str) -> None:
    assert escape(f"{before}{ACUTE}b", 100) == f"{before}\\u0301b"


def test_the_provenance_shows_texts_of_the_environment_only(
    make_report: Callable[..., Report],
) -> None:
    environment = {
        "grade": "0.1.0",
        "torch": "2.9.0",
        "python": None,
        "cuda": ["12.8"],
        "gpu_uuid": "GPU-1\n2" + "x" * 100,
        "driver": "570.86\x1b",
    }
    assert provenance(make_report()) == []
    told = provenance(make_report(environment=environment, worker="farm/a"))
    assert [label for label, _ in told] == ["worker", "GPU", "driver", "software"]
    texts = dict(told)
    assert (texts["worker"], texts["software"]) == ("farm/a", "grade 0.1.0, PyTorch 2.9.0")
    assert texts["driver"] == "570.86\\x1b"
    assert len(texts["GPU"]) == 60


# Rewards ------------------------------------------------------------------------------------------


def case(kind: Any, status: Any, **more: Any) -> CaseResult:
    return CaseResult(name="a", kind=kind, params={}, status=status, **more)


@pytest.mark.parametrize(
    ("verdict", "statuses", "expected"),
    [
        ("compile_error", [], ("compile", 0.0)),
        ("time_limit_exceeded", ["not_run", "not_run"], ("compile", 0.0)),
        ("runtime_error", ["runtime_error", "not_run"], ("tests", 0.0)),
        ("wrong_answer", ["passed", "wrong_answer", "passed", "passed"], ("tests", 0.75)),
        ("memory_limit_exceeded", ["passed", "memory_limit_exceeded", "not_run"], ("tests", 1 / 3)),
        ("rejected", ["passed", "passed"], ("benchmarks", 1.0)),
        ("accepted", ["passed"], ("accepted", 1.0)),
    ],
)
def test_the_stage_of_a_reward(
    make_report: Callable[..., Report], verdict: str, statuses: list[str], expected: Any
) -> None:
    cases = [case("test", status) for status in statuses]
    if verdict == "rejected":
        cases.append(case("benchmark", "rejected", sol=0.5))
    rule = "time_claim" if verdict == "rejected" else None
    reward = make_report(verdict=verdict, rule=rule, score_us=None, cases=cases).reward
    assert reward is not None
    assert (reward.stage, reward.tests_passed) == expected
    assert reward.rule == rule
    assert (reward.speedup, reward.speedup_ci, reward.baseline, reward.roofline) == (None,) * 4


def test_the_time_of_a_reward(make_report: Callable[..., Report]) -> None:
    cases = [case("test", "passed"), *(case("benchmark", "passed", sol=s) for s in (0.9, 0.4))]
    report = make_report(cases=cases, speedup={"eager": 4.0, "compile": 2.0})
    reward = report.reward
    assert reward is not None
    assert (reward.stage, reward.baseline, reward.speedup) == ("accepted", "compile", 2.0)
    assert reward.roofline == pytest.approx(0.6)
    assert reward.speedup_ci == pytest.approx((2 * 50 / 50.5, 2 * 50 / 49.5))
    unknown = make_report(cases=cases[:1], speedup={}).reward
    assert unknown is not None
    assert (unknown.speedup, unknown.roofline) == (None, None)


@pytest.mark.parametrize("verdict", ["judge_error", None])
def test_no_verdict_has_no_reward(make_report: Callable[..., Report], verdict: str | None) -> None:
    report = make_report(verdict=verdict, score_us=None)
    assert report.reward is None
    assert json.loads(report.model_dump_json())["reward"] is None


def test_a_reward_is_written_and_never_believed(make_report: Callable[..., Report]) -> None:
    report = make_report()
    written = json.loads(report.model_dump_json())
    assert written["reward"]["stage"] == "accepted"
    forged = written | {"reward": {"stage": "accepted", "speedup": 1e9}}
    for again in (
        Report.model_validate_json(report.model_dump_json()),
        Report.model_validate(forged),
        Report.model_validate_json(json.dumps(forged)),
    ):
        assert again.reward == report.reward
    later = report.model_copy(update={"verdict": Verdict.JUDGE_ERROR})
    assert later.reward is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_have_no_reward(make_report: Callable[..., Report], value: float) -> None:
    cases = [case("test", "passed"), case("benchmark", "passed", sol=value)]
    changes = {"speedup": {"eager": value}, "score_us": value, "score_ci_us": (value, value)}
    reward = make_report(cases=cases, **changes).reward
    assert reward is not None
    assert (reward.speedup, reward.speedup_ci, reward.roofline) == (None, None, None)
