"""`grade batch`, with real gradings on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grader.cli import main

ROOT = Path(__file__).resolve().parents[3]
SUBMISSIONS = ROOT / "submissions" / "softmax"
WRONG, BROKEN = "wrong_answer/zeros.py", "compile_error/syntax_error.py"
OPTIONS = ["--device", "cpu", "--sandbox", "process", "--tests-at-once", "2"]


def test_files_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(SUBMISSIONS / name) for name in (WRONG, BROKEN)]
    assert main(["batch", "softmax", *files, *OPTIONS]) == 0
    output = capsys.readouterr()
    lines = {one["key"]: one["report"] for one in map(json.loads, output.out.splitlines())}
    assert {key: report["verdict"] for key, report in lines.items()} == {
        files[0]: "wrong_answer",
        files[1]: "compile_error",
    }
    progress = [line for line in output.err.split("\n") if line.endswith(" an hour")]
    assert [line.split(", ")[0] for line in progress] == ["1 of 2", "2 of 2"]


def test_a_line_of_json_may_hold_other_ends_of_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    todo = tmp_path / "todo.jsonl"
    line = json.dumps({"key": "a", "source": "x = '\u2028\x85'"}, ensure_ascii=False)
    todo.write_text(line + "\n")
    assert main(["batch", "softmax", "--jsonl", str(todo), *OPTIONS]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["key"], found["report"]["verdict"]) == ("a", "compile_error")


def test_a_batch_without_docker_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert main(["batch", "softmax", str(SUBMISSIONS / BROKEN), "--device", "cpu"]) == 0
    assert "using the process sandbox, without Docker" in capsys.readouterr().err


def test_a_batch_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (SUBMISSIONS / WRONG).read_text()
    lines = [{"key": key, "source": source, "benchmarks": False} for key in ("a", "b", "c")]
    lines[2]["problem"] = "nowhere"
    todo, out = tmp_path / "todo.jsonl", tmp_path / "out.jsonl"
    todo.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    out.write_text('{"key": "a", "report": {}}\n{"key": "b", "rep')
    assert main(["batch", "softmax", "--jsonl", str(todo), "--out", str(out), *OPTIONS]) == 3
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(one["key"] for one in found) == ["a", "b", "c"]
    by_key = {one["key"]: one for one in found}
    assert by_key["a"] == {"key": "a", "report": {}}
    assert by_key["b"]["report"]["verdict"] == "wrong_answer"
    assert "no problem 'nowhere'" in by_key["c"]["error"]
    output = capsys.readouterr()
    assert output.out == ""
    assert "1 results are in" in output.err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"key": "a"}', ":1: source: Field required"),
        ('{"key": "a", "source": "x"}\nno json', ":2: the line: Invalid JSON"),
        ('{"key": 1, "source": "x"}', ":1: key: Input should be a valid string"),
        ('{"key": "a", "source": "x", "language": "c"}', ":1: language: Input should be"),
        (
            '{"key": "a", "source": "x"}\n\n{"key": "a", "source": "y"}',
            "todo.jsonl:3: its key 'a' is that of ",
        ),
    ],
)
def test_a_line_of_another_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, message: str
) -> None:
    todo = tmp_path / "todo.jsonl"
    todo.write_text(lines)
    assert main(["batch", "softmax", "--jsonl", str(todo), *OPTIONS]) == 2
    assert message in capsys.readouterr().err


def test_a_result_that_was_cut_off_at_once_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"ke')
    file = str(SUBMISSIONS / BROKEN)
    assert main(["batch", "softmax", file, "--out", str(out), *OPTIONS]) == 0
    assert json.loads(out.read_text())["key"] == file


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    todo, out = tmp_path / "todo.jsonl", tmp_path / "out.jsonl"
    todo.write_text("")
    out.write_text("Dear diary\n")
    assert main(["batch", "softmax", *OPTIONS]) == 2
    assert main(["batch", "softmax", str(todo), "--jsonl", str(todo), *OPTIONS]) == 2
    assert "name files, or a file of lines" in capsys.readouterr().err
    assert main(["batch", "softmax", "--jsonl", str(tmp_path / "gone"), *OPTIONS]) == 2
    assert "gone: No such file or directory" in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b"\xe9")
    assert main(["batch", "softmax", "--jsonl", str(tmp_path / "latin"), *OPTIONS]) == 2
    assert "it is not UTF-8" in capsys.readouterr().err
    assert main(["batch", "softmax", "--jsonl", str(todo), "--out", str(out), *OPTIONS]) == 2
    assert "other lines than results of a batch" in capsys.readouterr().err
    assert out.read_text() == "Dear diary\n"
    out.write_text("Dear diary,\nyesterday")  # its last line is not cut off
    assert main(["batch", "softmax", "--jsonl", str(todo), "--out", str(out), *OPTIONS]) == 2
    out.write_bytes(b"yesterday \xe9")
    assert main(["batch", "softmax", "--jsonl", str(todo), "--out", str(out), *OPTIONS]) == 2
    assert out.read_bytes() == b"yesterday \xe9"
    nowhere = tmp_path / "gone" / "out.jsonl"
    assert main(["batch", "softmax", "--jsonl", str(todo), "--out", str(nowhere), *OPTIONS]) == 2
    assert "gone" in capsys.readouterr().err
