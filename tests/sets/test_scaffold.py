"""The starter files of problems of other sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grader.judge import grade
from grader.judge.import_problem import import_problem
from grader.problem.set_scaffold import set_scaffold
from grader.problem_sets import read_problem
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.sets import made_up

MAKERS = [
    ("leetgpu", made_up.leetgpu),
    ("kernelbot", made_up.kernelbot),
    ("kernelbot", lambda root: made_up.kernelbot(root, made_up.CACHED)),
    ("kernelbot", lambda root: made_up.kernelbot(root, made_up.PARTS, made_up.PARTS_TASK)),
    ("kernelbot", made_up.functions),
    ("kernelbench", made_up.kernelbench),
]


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "make"), MAKERS)
def test_a_starter_runs_and_is_a_wrong_answer(
    prefix: str, make: Callable[[Path], Path], tmp_path: Path
) -> None:
    sandbox = ForkedSandbox()
    problem = import_problem(read_problem(prefix, make(tmp_path)), sandbox, "cpu")
    source = set_scaffold(problem)
    compile(source, "starter.py", "exec")
    submission = Submission("starter.py", "python", source.encode())
    report = grade(problem, submission, sandbox=sandbox, device="cpu", benchmarks=False)
    assert report.verdict == "wrong_answer", report.reason
    assert all(case.status == "wrong_answer" for case in report.cases)
