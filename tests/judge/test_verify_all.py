"""`grade verify --all`: which cases are compiled on a CPU, and what becomes of each problem."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from grader.judge.authors_code import HungCallError
from grader.judge.verification.result import VerificationResult, VerificationRow
from grader.judge.verification.verify import compiled_cases, verify
from grader.judge.verification.verify_all import (
    _end_if_hung,
    _Worker,
    summary_of,
    verify_all,
)
from tests.judge.conftest import DOMAIN, REFERENCE, SPEC, WriteProblem


def test_a_cpu_compiles_the_largest_case_of_each_dtype(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # it takes seconds
    problem = write_problem(spec=SPEC + DOMAIN)
    listed = problem.cases("test", "cpu") + problem.cases("benchmark", "cpu")
    chosen = [case.name for case in compiled_cases(problem, listed)]
    assert chosen == ["small", "steps"]
    result = verify(problem, "cpu")
    assert [row.case for row in result.rows if row.name == "compile"] == ["steps", "small"]
    assert (result.compiled, result.cases) == (chosen, len(listed) + 8)
    assert len({row.case for row in result.rows if row.name == "eager"}) == result.cases


def test_every_problem_has_a_summary(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose folder is broken, whose code fails, or that kills its process."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    good = write_problem().folder
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    less = REFERENCE + "\nBASELINES = {'less': lambda x, total, factor: (total + x, x)}\n"
    for name, file, text in [
        ("broken", "problem.yaml", "title: [\n"),
        ("failing", "reference.py", "raise ValueError('not yet')\n"),
        ("killing", "inputs.py", kill),
        ("wrong", "reference.py", less),
    ]:
        shutil.copytree(good, tmp_path / name)
        (tmp_path / name / file).write_text(text)
    names = ["killing", "broken", "failing", "wrong", "scale"]
    found = {one.problem: one for one in verify_all([tmp_path / n for n in names], "cpu", 1)}
    assert list(found) == names, "one process takes them in order"
    assert found["scale"].ok
    assert (found["scale"].cases, found["scale"].findings) == (4, [])
    assert found["scale"].margin is not None
    assert found["killing"].error == "its process ended with exit status -9"
    assert "problem.yaml: " in (found["broken"].error or "")
    assert "raised ValueError: not yet" in (found["failing"].error or "")
    assert not found["wrong"].ok
    assert found["wrong"].error is None
    assert "baseline less, small: failed" in found["wrong"].findings[0]


def test_processes_end_with_the_caller(write_problem: WriteProblem) -> None:
    """Of a caller that stops in the middle, such as at Ctrl-C."""
    folder = write_problem().folder
    (folder / "problem.yaml").write_text("")
    summaries = verify_all([folder] * 9, "cpu", 2)
    assert not next(summaries).ok
    assert len(multiprocessing.active_children()) >= 2
    summaries.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_before_it_reads_its_folder_is_a_finding(tmp_path: Path) -> None:
    worker = _Worker("cpu")
    worker.begin(tmp_path)
    assert worker._process is not None
    worker._process.kill()
    assert worker.result().error == "its process ended with exit status -9"


def test_a_margin_without_numbers_is_none() -> None:
    """Every mutant of exact outputs fails by infinity."""
    rows = [
        VerificationRow("eager", "one", "pass", "passed"),
        VerificationRow("zeros", "one", "fail", "failed", used=float("inf")),
        VerificationRow("permuted", "one", "fail", "passed", "too close"),
    ]
    summary = summary_of("sort", VerificationResult(rows, cases=1), 2.0)
    assert summary.margin is None
    assert summary.findings == [
        "permuted, one: passed. too close",
        "permuted: never caught",
    ]


def test_a_hung_call_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    passed_on: list[object] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    for error in (HungCallError("it took longer than 300 s"), ValueError("other")):
        hook = threading.ExceptHookArgs((type(error), error, None, None))
        _end_if_hung(passed_on.append, hook)
    assert ended == [2]
    assert [hook.exc_type for hook in passed_on] == [ValueError]  # type: ignore[attr-defined]
    assert capsys.readouterr().err == "it took longer than 300 s\n"
