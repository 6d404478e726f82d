"""`grade verify` says what a problem still lacks, in order; the examples are graded apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grader.cli.author_todo import TodoStep, steps
from grader.cli.commands.verify import CHECK_S, CaseTimes, author_steps
from grader.judge.record import Progress
from grader.judge.verification.result import VerificationResult, VerificationRow
from grader.problem import Problem, ProblemError
from tests.cli.conftest import Shell

ROOT = Path(__file__).resolve().parents[2]
ORDER = [
    "files and keys",
    "reference.py is filled in",
    "inputs differ by seed",
    "the check holds",
    "domain",
    "accumulate",
    "honest implementations",
    "mutants",
    "statement",
    "accepted .py example",
    "accepted .cu example",
    "wrong example",
    "hostile example",
    "reference kernel",
    "recorded times",
]
STATEMENT = """\
# Doubling

## Arguments

## Bytes and operations

## What limits it

## What to try

## How it is checked
"""


def found(folder: Path, error: str | None = None, failed: str | None = None) -> dict[str, TodoStep]:
    return {step.name: step for step in steps(Problem.load(folder), error, failed)}


def passing(*_: Any) -> VerificationResult:
    return VerificationResult([VerificationRow("eager", "one", "pass", "passed")])


def add(folder: Path, *names: str, text: str = "") -> None:
    """Create files below the folder that holds `problems`."""
    for name in names:
        path = folder.parent.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_complete_problem_lacks_nothing() -> None:
    by_name = found(ROOT / "problems" / "softmax")
    assert list(by_name) == ORDER
    lacking = [name for name, step in by_name.items() if step.state != "done"]
    assert set(lacking) <= {"statement", "recorded times"}, "both depend on the problem's version"


def test_a_new_problem_lacks_what_is_optional(problem: Path) -> None:
    by_name = found(problem)
    required = {"reference.py is filled in", "inputs differ by seed", "the check holds"}
    assert {name for name, step in by_name.items() if step.state == "done"} == required
    assert {step.state for step in by_name.values()} == {"done", "to do"}
    assert by_name["files and keys"].detail == (
        "problem.yaml has no topic, difficulty, limited_by, by which problems are listed"
    )
    assert "no section on the arguments, bytes and operations" in by_name["statement"].detail
    assert by_name["accepted .cu example"].detail == "none in submissions/double/accepted/"


def test_each_step_is_done_once_there_is_something(problem: Path) -> None:
    spec = problem / "problem.yaml"
    keys = (
        "topic: fusion\ndifficulty: 1\nlimited_by: memory\n"
        "accumulate: {dtype: dtype, terms: 1}\ndomain:\n  - n: {max: 300}\n    dtype: [fp32]\n"
    )
    spec.write_text(spec.read_text() + keys)
    (problem / "checks.py").write_text(
        "HONEST = {'a': lambda x: 2 * x, 'b': lambda x: x + x}\nMUTANTS: dict = dict(made=0)\n"
    )
    (problem / "statement.md").write_text(STATEMENT)
    examples = "submissions/double"
    add(problem, f"{examples}/accepted/a.py", f"{examples}/accepted/b.cu")
    add(problem, f"{examples}/wrong_answer/c.py", f"{examples}/accepted/hostile_d.py")
    add(problem, "reference/double/fast.cu")
    by_name = found(problem)
    assert [name for name, step in by_name.items() if step.state != "done"] == ["recorded times"]
    assert by_name["honest implementations"].detail == "2 in checks.py"
    assert by_name["mutants"].detail == "in checks.py", "computed, so not counted"
    assert by_name["reference kernel"].detail == "fast.cu"
    (problem / "statement.md").write_text(STATEMENT + "\nTODO: all of it. TODO\n")
    assert found(problem)["statement"].detail == "statement.md says TODO in 2 places"
    (problem / "checks.py").write_text("HONEST = {}\n")
    assert found(problem)["honest implementations"].state == "to do"
    assert found(problem)["mutants"].state == "to do"


@pytest.mark.parametrize(
    ("file", "step"),
    [
        ("reference.py", "reference.py is filled in"),
        ("inputs.py", "inputs differ by seed"),
        ("checks.py", "the check holds"),
        ("problem.yaml", "files and keys"),
    ],
)
def test_an_error_belongs_to_the_step_of_its_file(problem: Path, file: str, step: str) -> None:
    error = f"{problem / file}: it raised ValueError"
    by_name = found(problem, error=error)
    assert by_name[step].state == "missing"
    assert by_name[step].detail == error
    assert [one.name for one in by_name.values() if one.state == "missing"] == [step]


def test_verify_prints_the_steps_in_order(shell: Shell, problem: Path) -> None:
    shell.change(verify=passing)
    status, out, _ = shell("verify", "double", "--no-examples", "--device", "cpu")
    assert status == 0, "what is optional fails nothing"
    places = [re.search(rf"[✔–✘] +{re.escape(name)} ", out) for name in ORDER]
    starts = [place.start() for place in places if place]
    assert len(starts) == len(ORDER)
    assert starts == sorted(starts)
    assert "to do, in this order: files and keys, domain, accumulate, " in out
    assert "missing:" not in out


def test_verify_fails_with_what_is_missing(shell: Shell, problem: Path) -> None:
    rows = [VerificationRow("eager", "one", "pass", "failed", "too strict")]
    shell.change(verify=lambda *_: VerificationResult(rows))
    status, out, _ = shell("verify", "double", "--no-examples")
    assert status == 1
    assert "missing: the check holds\n" in out
    assert "double is NOT verified" in out


def test_verify_prints_the_steps_when_the_code_fails(shell: Shell, problem: Path) -> None:
    def raising(*_: Any) -> VerificationResult:
        raise ProblemError(f"{Problem.load(Path('problems/double')).folder}/reference.py: empty")

    shell.change(verify=raising)
    status, out, err = shell("verify", "double")
    assert (status, err) == (2, "grade: problems/double/reference.py: empty\n")
    assert re.search("✘ +reference.py is filled in +problems/double/reference.py: empty", out)
    assert shell.judge.calls == []


def test_examples_are_graded_apart(shell: Shell, problem: Path) -> None:
    def never(*_: Any) -> VerificationResult:
        raise AssertionError("the check is not asked for")

    shell.change(verify=never)
    add(problem, "submissions/double/accepted/good.py")
    status, out, _ = shell("verify", "double", "--examples")
    assert (status, len(shell.judge.calls)) == (0, 1)
    assert "the examples of double are verified on cuda" in out
    assert "to do" not in out
    add(problem, "submissions/double/wrong_answer/bad.py")
    status, out, _ = shell("verify", "double", "--examples")
    assert status == 1
    assert "the examples of double are NOT verified on cuda" in out


def test_a_check_that_takes_too_long_says_which_cases(problem: Path) -> None:
    now_s = [0.0]
    times = CaseTimes(lambda _: None, lambda: now_s[0])
    takes_s = {"one": 20.0, "odd": CHECK_S - 20.0, "small": 0.5}

    def verify(progress: Callable[[Progress], None]) -> None:
        for index, (name, seconds) in enumerate(takes_s.items()):
            progress(Progress("verify", name, index, len(takes_s)))
            now_s[0] += seconds

    verify(times)
    times.end()
    assert times.by_case_s == takes_s
    loaded = Problem.load(problem)
    last = author_steps(loaded, "cpu", times)[-1]
    assert (last.name, last.state) == ("time of the check", "to do")
    assert "the slowest are odd (160 s), one (20 s), small" in last.detail
    assert author_steps(loaded, "cuda", times)[-1].name == "recorded times"
    times.by_case_s.pop("small")
    assert author_steps(loaded, "cpu", times)[-1].name == "recorded times"
