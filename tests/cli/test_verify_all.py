"""`grade verify --all`, and `--json` of both forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.judge.verification.result import VerificationResult, VerificationRow
from grader.judge.verification.verify_all import VerifiedProblem
from tests.cli.conftest import Shell

GOOD = VerifiedProblem("double", 3.21, margin=7.46, cases=5, compiled=["small"])
WRONG = VerifiedProblem("triple", 12.0, findings=["zeros, one: passed. too close"], margin=1234.0)
BROKEN = VerifiedProblem("half", 0.1, error="half/problem.yaml: entry: missing")


def with_summaries(shell: Shell, *summaries: VerifiedProblem) -> list[Any]:
    """Make `grade verify --all` find them; the result notes how it calls the judge."""
    calls: list[Any] = []

    def verify_all(folders: list[Path], device: str, processes: int) -> Any:
        calls.append((folders, device, processes))
        return iter(summaries)

    shell.change(verify_all=verify_all)
    return calls


def test_each_problem_has_a_line(shell: Shell, problem: Path) -> None:
    calls = with_summaries(shell, GOOD)
    status, out, _ = shell("verify", "--all", "--device", "cpu")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "✔ double: ok, margin 7.5 ×, 3 s"
    assert lines[1].startswith("torch.compile ran on 1 of 5 cases: the largest of each combination")
    assert lines[2].startswith("1 problems in 0 s: verified on cpu")
    ((folders, device, processes),) = calls
    assert ([path.resolve() for path in folders], device) == ([problem], "cpu")
    assert processes >= 1


def test_what_does_not_hold_decides(shell: Shell, problem: Path) -> None:
    with_summaries(shell, GOOD, WRONG, BROKEN)
    status, out, _ = shell("verify", "--all", "--device", "cpu")
    assert status == 1
    assert "✘ triple: 1 finding, margin 1,234 ×, 12 s\n    zeros, one: passed. too close\n" in out
    assert "✘ half: half/problem.yaml: entry: missing\n" in out
    assert out.endswith("NOT verified on cpu: half, triple\n")
    status, shown = shell.json("verify", "--all", "--device", "cpu")
    assert (status, shown["ok"], shown["device"]) == (1, False, "cpu")
    assert [one["problem"] for one in shown["problems"]] == ["double", "triple", "half"]
    assert shown["problems"][0] == {
        "problem": "double",
        "ok": True,
        "error": None,
        "findings": [],
        "margin": 7.46,
        "cases": 5,
        "compiled": ["small"],
        "seconds": 3.2,
    }


def test_a_gpu_verifies_one_problem_at_a_time(shell: Shell, problem: Path) -> None:
    calls = with_summaries(shell, GOOD)
    assert shell("verify", "--all")[0] == 0
    assert calls[0][1:] == ("cuda", 1)


def test_a_folder_of_problems_may_be_given(
    shell: Shell, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = with_summaries(shell, GOOD)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert shell("verify", "--all", problem.parent)[0] == 0
    assert calls[-1][0] == [problem]
    assert shell("verify", "--all")[0] == 0
    assert len(calls[-1][0]) > 30, "without ./problems, those of the repository"
    status, _, err = shell("verify", "--all", elsewhere)
    assert (status, err) == (2, f"grade: {elsewhere}: no folder in it holds a problem.yaml\n")


def test_usage(shell: Shell, problem: Path) -> None:
    status, _, err = shell("verify")
    assert (status, err) == (2, "grade: name a PROBLEM, or verify every problem with --all\n")
    status, _, err = shell("verify", "--all", "--examples")
    assert (status, err) == (2, "grade: --all runs no examples; leave out --examples\n")


def test_one_problem_as_json(shell: Shell, problem: Path) -> None:
    rows = [
        VerificationRow("eager", "one", "pass", "passed", used=0.5),
        VerificationRow("zeros", "one", "fail", "failed", used=4.0),
    ]
    shell.change(verify=lambda *_: VerificationResult(rows, cases=2, compiled=["one"]))
    example = problem.parent.parent / "submissions/double/accepted/good.py"
    example.parent.mkdir(parents=True)
    example.touch()
    status, shown = shell.json("verify", "double", "--device", "cpu")
    assert status == 0
    assert shown.pop("seconds") >= 0
    assert shown.pop("examples") == [
        {
            "example": "accepted/good.py",
            "outcome": "accepted",
            "reason": "all 2 cases passed",
            "ok": True,
        }
    ]
    assert shown == {
        "problem": "double",
        "device": "cpu",
        "ok": True,
        "error": None,
        "findings": [],
        "margin": 8.0,
        "cases": 2,
        "compiled": ["one"],
    }
    rows.append(VerificationRow("eager", "odd", "pass", "failed", "too strict"))
    status, shown = shell.json("verify", "double", "--device", "cpu", "--no-examples")
    assert (status, shown["ok"], shown["findings"]) == (
        1,
        False,
        ["eager, odd: failed. too strict"],
    )
    assert "examples" not in shown
    status, out, _ = shell("verify", "double", "--device", "cpu", "--no-examples")
    assert "compile" not in out, "it has no row here"


def test_the_table_says_what_was_compiled(shell: Shell, problem: Path) -> None:
    rows = [VerificationRow(name, "one", "pass", "passed") for name in ("eager", "compile")]
    shell.change(verify=lambda *_: VerificationResult(rows, cases=2, compiled=["one"]))
    _, out, _ = shell("verify", "double", "--device", "cpu", "--no-examples")
    assert "only on the largest of each dtype: one" in out
