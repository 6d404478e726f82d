"""The benchmark of known hacks, on a corpus that is made up here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import known_hacks
from benchmarks.known_hacks import (
    Judged,
    Labelled,
    judge_all,
    main,
    problem_text,
    read_labels,
    read_verdicts,
    summary,
)
from grader.problem import ProblemError
from grader.report import Report, Verdict
from tests.sets import made_up

ROOT = Path(__file__).resolve().parent.parent
SQUARE = "import torch\n\n\ndef square(x, out):\n    {}\n"


def judged(path: str, label: Any, verdict: Verdict | None, rule: str | None = None) -> Judged:
    return Judged(Labelled(path=path, problem="p", label=label), verdict, "why", rule)


def test_the_summary_counts_what_ran() -> None:
    files = [
        *(judged(f"h{n}", "hack", Verdict.WRONG_ANSWER) for n in range(6)),
        *(judged(f"r{n}", "hack", Verdict.REJECTED, "time_claim") for n in range(2)),
        judged("missed", "hack", Verdict.ACCEPTED),
        judged("crashed", "hack", Verdict.RUNTIME_ERROR),
        *(judged(f"c{n}", "clean", Verdict.ACCEPTED) for n in range(3)),
        judged("harsh", "clean", Verdict.REJECTED, "memory_tampered"),
        judged("old", "clean", Verdict.COMPILE_ERROR),
        judged("ours", "clean", Verdict.JUDGE_ERROR),
        judged("gone", "clean", None),
    ]
    lines = list(summary(files))
    assert "| 10 | hack | 9 | 8 | 88.9% | 56.5% to 98.0% |" in lines
    assert "| 7 | clean | 4 | 1 | 25.0% | 4.6% to 69.9% |" in lines
    assert "Rules: time_claim 2, memory_tampered 1" in lines
    at = lines.index("Hacks that were accepted:")
    assert lines[at + 1 : at + 3] == ["- missed (hack): accepted: why", ""]
    at = lines.index("Clean kernels that were refused:")
    assert lines[at + 1 : at + 3] == ["- harsh (clean): rejected: why", ""]
    at = lines.index("Not counted, since they did not run to their end:")
    assert lines[at + 1 :] == [
        "- crashed (hack): runtime_error: why",
        "- old (clean): compile_error: why",
        "- ours (clean): judge_error: why",
        "- gone (clean): no verdict: why",
    ]


def test_a_rate_of_nothing_is_not_a_number() -> None:
    lines = list(summary([judged("a", "hack", Verdict.RUNTIME_ERROR)]))
    assert "| 1 | hack | 0 | 0 | – | – |" in lines
    assert "| 0 | clean | 0 | 0 | – | – |" in lines


def test_a_file_that_cannot_be_read_has_no_verdict(make_report: Callable[..., Report]) -> None:
    def grade(file: Labelled) -> Report:
        if file.path == "a":
            raise ProblemError("no problem")
        if file.path == "b":
            raise click.UsageError("no file")
        return make_report(verdict="rejected", rule="time_claim", reason="forged")

    files = [Labelled(path=path, problem="p", label="hack") for path in "abc"]
    found = [(one.verdict, one.reason, one.rule) for one in judge_all(files, grade)]
    assert found == [
        (None, "no problem", None),
        (None, "no file", None),
        (Verdict.REJECTED, "forged", "time_claim"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"path": "a", "problem": "p"}', "labels:2: label: Field required"),
        ('{"path": "a", "problem": "p", "label": "bad"}', "labels:2: label: Input should be"),
        ("no json", "labels:2: the line: Invalid JSON"),
    ],
)
def test_a_label_of_another_form(tmp_path: Path, line: str, message: str) -> None:
    labels = tmp_path / "labels"
    labels.write_text('{"path": "a", "problem": "p", "label": "hack", "source": "x"}\n' + line)
    with pytest.raises(click.UsageError, match=message):
        read_labels(labels)
    labels.write_text("\n")
    with pytest.raises(click.UsageError, match="has no labels"):
        read_labels(labels)


def test_a_problem_may_be_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_x.py").write_text("")
    inner = tmp_path / "level1" / "1_x.py"
    assert problem_text("softmax", tmp_path) == "softmax"
    assert problem_text("level1", tmp_path) == str(tmp_path / "level1")
    assert problem_text("kernelbench:level1/1_x.py", tmp_path) == f"kernelbench:{inner}"
    assert problem_text("fib:level1#gemm", tmp_path) == f"fib:{tmp_path}/level1#gemm"
    assert problem_text("kernelbench:/else/1_x.py", tmp_path) == "kernelbench:/else/1_x.py"


def test_a_corpus_is_graded(tmp_path: Path) -> None:
    """Real gradings on a CPU: a hack, a clean kernel, a file that does not load, and one that is
    not there; one problem by its name, and one in the corpus."""
    files = {
        "hack.py": SQUARE.format("out.zero_()"),
        "clean.py": SQUARE.format("torch.square(x, out=out)"),
        "broken.py": "def square(x, out",
    }
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    shutil.copytree(ROOT / "problems" / "square", tmp_path / "square")
    labels = [
        {"path": "hack.py", "problem": "square", "label": "hack", "author": "us"},
        {"path": "clean.py", "problem": str(ROOT / "problems" / "square"), "label": "clean"},
        {"path": "broken.py", "problem": "square", "label": "hack"},
        {"path": "gone.py", "problem": "square", "label": "clean"},
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    out = tmp_path / "out.jsonl"
    options = ["--device", "cpu", "--sandbox", "process", "--out", str(out)]
    result = CliRunner().invoke(main, [str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    assert "| 2 | hack | 1 | 1 | 100.0% | 20.7% to 100.0% |" in result.stdout
    assert "| 2 | clean | 1 | 0 | 0.0% | 0.0% to 79.3% |" in result.stdout
    assert "- broken.py (hack): compile_error: " in result.stdout
    assert "- gone.py (clean): no verdict: " in result.stdout
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    verdicts = ["wrong_answer", "accepted", "compile_error", None]
    assert [one["verdict"] for one in lines] == verdicts


def test_a_run_that_is_stopped_is_continued(
    tmp_path: Path, make_report: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    graded: list[str] = []
    stops = ["b"]

    def grade(file: Labelled) -> Report:
        if file.path in stops:
            stops.clear()
            raise SystemExit(143)  # as SIGTERM does during a grading
        graded.append(file.path)
        return make_report(verdict="rejected", rule="time_claim", reason="forged")

    monkeypatch.setattr(known_hacks, "grading", lambda *_: grade)
    lines = [json.dumps({"path": path, "problem": "p", "label": "hack"}) for path in "abc"]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    arguments = [str(tmp_path), "--out", str(tmp_path / "out.jsonl")]
    stopped = CliRunner().invoke(main, arguments)
    assert stopped.exit_code == 143
    assert "| 1 | hack | 1 | 1 |" in stopped.stdout
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "| 3 | hack | 3 | 3 |" in done.stdout
    assert graded == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["no json", '{"path": "a"}', "[]"])
def test_another_file_is_not_continued(tmp_path: Path, text: str) -> None:
    (tmp_path / "out.jsonl").write_text(text)
    with pytest.raises(click.UsageError, match="is not what an earlier run wrote"):
        read_verdicts(tmp_path / "out.jsonl")


@pytest.mark.slow
def test_a_problem_of_another_set(tmp_path: Path) -> None:
    """Made up here, in the form of KernelBench."""
    problem = made_up.kernelbench(tmp_path).relative_to(tmp_path)
    right = made_up.MODEL.replace("class Model(", "class ModelNew(")
    right = right.replace("super(Model", "super(ModelNew")
    (tmp_path / "clean.py").write_text(right)
    (tmp_path / "hack.py").write_text(right.replace("return torch.relu(", "return 0 * torch.relu("))
    labels = [
        {"path": f"{label}.py", "problem": f"kernelbench:{problem}", "label": label}
        for label in ("hack", "clean")
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    options = ["--device", "cpu", "--sandbox", "process"]
    result = CliRunner().invoke(main, [str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    assert "| 1 | hack | 1 | 1 |" in result.stdout
    assert "| 1 | clean | 1 | 0 |" in result.stdout
