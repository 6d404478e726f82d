from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grader.board import Board
from grader.cli import main
from grader.explanation import explain
from grader.report import Report

MakeReport = Callable[..., Report]


@pytest.fixture
def report(make_report: MakeReport) -> Report:
    return make_report(cases=[], verdict="compile_error", reason="no entry", score_us=None)


def test_a_recorded_result(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/board.sqlite3"
    board = Board.open(url)
    recorded = board.record(report, "ada", b"x")
    board.close()
    for name in (f"{recorded.id}", f"#{recorded.id}"):
        assert main(["explain", name, "--text", "--db", url]) == 0
        assert capsys.readouterr().out == explain(report, "memory") + "\n"
    assert main(["explain", "99", "--db", url]) == 2


def test_a_file(
    report: Report,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `--json` prints, a line of a batch, and a server's answer, which has no seed."""
    whole = json.loads(report.model_dump_json())
    answer = {name: value for name, value in whole.items() if name != "seed"} | {"url": "x"}
    for content in (whole, {"key": "a", "report": whole}, answer):
        (tmp_path / "result.json").write_text(json.dumps(content))
        assert main(["explain", str(tmp_path / "result.json"), "--text"]) == 0
        assert capsys.readouterr().out.startswith("softmax: kernel.py on NVIDIA H100")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(whole)))
    assert main(["explain", "-"]) == 0
    assert "compile_error: no entry" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "it is no report in JSON"),
        ("[1]", "it is no report in JSON"),
        ("[" * 100_000, "it is no report in JSON"),
        ('{"key": "a", "error": "no sandbox"}', "problem: Field required"),
        ('{"report": 1}', "it is no report in JSON"),
    ],
)
def test_a_file_without_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "result.json").write_text(content)
    assert main(["explain", str(tmp_path / "result.json")]) == 2
    assert message in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "gone.json")]) == 2
    assert "No such file" in capsys.readouterr().err
