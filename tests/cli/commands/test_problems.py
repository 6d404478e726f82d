"""`grade problems`: topics, filters, the learning path, and what the user has reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from grader.board import Board
from grader.problem import Problem
from grader.report import Report
from tests.cli.conftest import Shell

MakeReport = Callable[..., Report]

H100 = "NVIDIA H100 80GB HBM3"


def record(shell: Shell, make_report: MakeReport, name: str, **fields: object) -> None:
    """Put a result of the user ada on the board."""
    folder = Path(__file__).resolve().parents[3] / "problems" / name
    changes = {"problem": name, "problem_digest": Problem.load(folder).digest, "gpu": H100} | fields
    report: Report = make_report(**changes)
    with closing(shell.deps.board(None, create=True)) as board:
        assert isinstance(board, Board)
        board.record(report, "ada", b"")


def listed(shell: Shell, *options: str) -> list[str]:
    """The names that are listed, as JSON has them."""
    status, shown = shell.json("problems", *options)
    assert status == 0
    return [problem["name"] for problem in shown["problems"]]


def test_problems_are_grouped_by_topic(shell: Shell) -> None:
    status, out, _ = shell("problems")
    assert status == 0
    order = ["fusion", "softmax ", "quantization", "int4_matmul", "attention", "flash_attention"]
    places = [out.index(word) for word in order]
    assert places == sorted(places)
    assert "2/5" in out
    assert "memory" in out
    assert "yours" not in out


def test_filters(shell: Shell) -> None:
    assert "softmax" in listed(shell)
    assert "softmax" not in listed(shell, "--topic", "attention")
    assert "flash_attention" in listed(shell, "--topic", "Attention")
    assert "int4_matmul" in listed(shell, "--dtype", "uint8")
    assert "softmax" not in listed(shell, "--dtype", "uint8")
    assert "softmax" not in listed(shell, "--limited-by", "compute")
    assert "softmax" in listed(shell, "ROWS", "softmax")
    assert listed(shell, "softmax", "no such word") == []
    status, out, _ = shell("problems", "no such word")
    assert (status, out.startswith("no problem matches; ")) == (0, True)
    assert "softmax" in shell("problems", "--topic", "fusion")[1]


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [("--topic", "fushion", "fusion"), ("--dtype", "f32", "fp32"), ("--limited-by", "x", "memory")],
)
def test_an_unknown_value_is_refused(shell: Shell, option: str, value: str, known: str) -> None:
    status, _, err = shell("problems", option, value)
    assert status == 2
    assert f"{option}: there is no '{value}'; choose from " in err
    assert known in err


def test_a_topic_of_two_words(shell: Shell) -> None:
    for text in ("first kernels", "first-kernels", "First_Kernels"):
        assert "softmax" not in listed(shell, "--topic", text)


def test_what_the_user_has_reached(shell: Shell, make_report: MakeReport) -> None:
    record(shell, make_report, "softmax", score_us=50.0)
    record(shell, make_report, "softmax", score_us=46.8)
    record(shell, make_report, "softmax", score_us=20.0, problem_digest="0" * 64)
    record(shell, make_report, "int4_matmul", ranked=False, score_us=None, score_ci_us=None)
    failed = {"verdict": "wrong_answer", "ranked": False, "score_us": None, "score_ci_us": None}
    record(shell, make_report, "flash_attention", **failed)
    shown = shell.json("problems", "--user", "ada")[1]["problems"]
    states = {p["name"]: (p["state"], p["best_us"], p["gpu"]) for p in shown}
    assert states["softmax"] == ("accepted", 46.8, H100)
    assert states["int4_matmul"] == ("accepted", None, None)
    assert states["flash_attention"] == ("tried", None, None)
    assert states["multi_tensor_adamw"] == (None, None, None)
    status, out, _ = shell("problems", "--user", "ada")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "46.80\N{NO-BREAK SPACE}µs" in lines["softmax"]
    assert "accepted" in lines["int4_matmul"]
    assert "tried" in lines["flash_attention"]
    assert "yours" not in shell("problems", "--user", "bob")[1]


def test_a_board_that_cannot_be_read_is_a_warning(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = shell("problems", "--db", "sqlite:////dev/null/board")
    assert (status, "softmax" in out, err) == (0, True, "")
    (tmp_path / "text").write_text("no database, but long enough for one\n" * 100)
    status, out, err = shell("problems", "--db", f"sqlite:///{tmp_path}/text")
    assert (status, "softmax" in out) == (0, True)
    assert "your results are not shown: " in err
    monkeypatch.setenv("GRADE_DB", "nonsense")
    status, shown = shell.json("problems")
    assert (status, shown["problems"] != []) == (0, True)


def test_the_learning_path(shell: Shell, make_report: MakeReport) -> None:
    names = listed(shell, "--path")
    assert names[-1] == "flash_attention"
    assert names.index("softmax") < names.index("int4_matmul")
    assert set(names) <= set(listed(shell))
    shown = shell.json("problems")[1]["problems"]
    steps = {problem["step"]: problem["name"] for problem in shown if problem["step"]}
    assert [steps[number] for number in sorted(steps)] == names
    assert sorted(steps) == list(range(1, len(names) + 1))
    status, out, _ = shell("problems", "--path")
    assert status == 0
    assert next(line for line in out.splitlines() if "→" in line).split()[2] == names[0]
    record(shell, make_report, names[0], score_us=50.0)
    _, out, _ = shell("problems", "--path", "--user", "ada")
    assert next(line for line in out.splitlines() if "→" in line).split()[2] == names[1]
    assert "no step of the learning path matches" in shell("problems", "--path", "nothing")[1]


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_the_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, width: int, make_report: MakeReport
) -> None:
    record(shell, make_report, "softmax", score_us=50.0)
    monkeypatch.setenv("COLUMNS", f"{width}")
    for options in ((), ("--path",)):
        _, out, _ = shell("problems", "--user", "ada", *options)
        assert max(map(len, out.splitlines())) <= width
        assert "…" not in out
        assert {"level", "yours"} <= set(out.split())


def test_json_has_every_field(shell: Shell) -> None:
    shown = json.loads(shell("problems", "rows", "softmax", "--json")[1])
    (softmax,) = (problem for problem in shown["problems"] if problem["name"] == "softmax")
    assert softmax.pop("digest")
    assert softmax.pop("step")
    assert softmax == {
        "name": "softmax",
        "title": "Softmax over rows",
        "summary": "Softmax along the last axis of a matrix, from one column to 262,144, in fp32, "
        "fp16 and bf16.",
        "topic": "fusion",
        "difficulty": 2,
        "limited_by": "memory",
        "dtypes": ["fp32", "fp16", "bf16"],
        "state": None,
        "best_us": None,
        "gpu": None,
    }
