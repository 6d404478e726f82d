"""Examples checked in this process get what a grading would give them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import check_margins
from benchmarks.example_calls import LoadedExample
from grader.judge.problem_code import ProblemCode
from grader.problem import Problem
from grader.problem.scaffold import scaffold

ROOT = Path(__file__).resolve().parents[1]
SETUP = """
def linear_setup(weight, bias):
    return weight.T.contiguous(), bias

def linear(x, prepared, y):
    weight, bias = prepared
    y.copy_(x.float() @ weight.float() + bias.float())
"""


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Undo what loading a submission does to the imports of this process."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("submission", None)


def failures(folder: Path, source: str, tmp_path: Path) -> list[str | None]:
    """What the check finds of a source, for each listed case."""
    problem = Problem.load(folder)
    file = tmp_path / "kernel.py"
    file.write_text(source)
    example = LoadedExample(ProblemCode(problem, "cpu"), file, tmp_path)
    return [example.check(case, 1).failure for case in problem.cases("test", "cpu")]


@pytest.mark.parametrize("name", ["linear", "nested_mlp", "transposed", "any_largest"])
def test_every_format_is_called_right(name: str, tmp_path: Path) -> None:
    """Weights, nested parameters, strides of an output, several right values."""
    folder = ROOT / "tests" / "formats" / name
    source = scaffold(Problem.load(folder), "torch")
    assert set(failures(folder, source, tmp_path)) == {None}


def test_state_is_carried_from_call_to_call(tmp_path: Path) -> None:
    sgd = ROOT / "problems" / "multi_tensor_sgd_momentum"
    source = scaffold(Problem.load(sgd), "torch")
    assert set(failures(sgd, source, tmp_path)) == {None}


def test_a_setup_gets_the_weights(tmp_path: Path) -> None:
    folder = ROOT / "tests" / "formats" / "linear"
    assert set(failures(folder, SETUP, tmp_path)) == {None}
    wrong = failures(folder, SETUP.replace("return weight.T", "return -weight.T"), tmp_path)
    assert None not in wrong


def test_a_refused_example_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    command = ["--examples", "--for-s", "0", "vector_add"]
    result = CliRunner().invoke(check_margins.main, command, catch_exceptions=False)
    rows = [line.split(" | ") for line in result.output.splitlines()[2:]]
    assert [row[1:6] for row in rows] == [
        ["torch_vector_add.py", "1", "1", "0", "0"],
        ["triton_vector_add.py", "1", "1", "0", "0"],
    ]
    monkeypatch.setattr(LoadedExample, "check", lambda *_: 1 / 0)
    result = CliRunner().invoke(check_margins.main, command, catch_exceptions=False)
    assert "| torch_vector_add.py | 1 | 1 | 0 | 1 | inf |" in result.output
    assert "refused: torch_vector_add.py, " in result.output
    assert "it raised ZeroDivisionError" in result.output
