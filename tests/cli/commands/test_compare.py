"""`grade compare`: exit statuses, output, and how the problem is found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from grader.judge.ab_compare import ABComparison, ComparisonError, TimeRatio
from grader.problem import ProblemError
from grader.sandbox.base import SandboxError
from tests.cli.conftest import Shell

SLOWER = TimeRatio("small", 40.0, 44.0, 1.1, (1.09, 1.11))
FASTER = TimeRatio("large", 90.0, 81.0, 0.9, (0.89, 0.91))


def overall(low: float, high: float) -> TimeRatio:
    return TimeRatio("all", 60.0, 60.0, (low + high) / 2, (low, high))


@dataclass
class FakeComparer:
    """Returns the given answer and records its calls."""

    answer: TimeRatio = field(default_factory=lambda: overall(0.985, 0.995))
    error: BaseException | None = None
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, problem: Any, a: Any, b: Any, **options: Any) -> ABComparison:
        self.calls.append((problem.name, a.name, b.name, options))
        if self.error is not None:
            raise self.error
        return ABComparison([SLOWER, FASTER], self.answer)


@pytest.fixture
def comparison(shell: Shell) -> FakeComparer:
    fake = FakeComparer()
    shell.change(compare=fake)
    return fake


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A second submission."""
    path = tmp_path / "other.py"
    path.write_text("def doubled(x, out):\n    out.copy_(x + x)\n")
    return path


def twin(problem: Path, name: str) -> Path:
    """A copy of the problem with another name."""
    folder = problem.with_name(name)
    folder.mkdir()
    for file in problem.iterdir():
        (folder / file.name).write_text(file.read_text())
    return folder


def test_text_output(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    status, out, err = shell("compare", kernel, other)
    assert (status, err) == (0, "")
    for shown in ("A  kernel.py", "B  other.py", "small", "1.1000", "1.0900 – 1.1100", "slower"):
        assert shown in out
    for shown in ("large", "81.00", "0.9000", "faster", "B is 1.01 % faster than A."):
        assert shown in out
    assert "practice" not in out
    (call,) = comparison.calls
    assert call[:3] == ("double", "kernel.py", "other.py")
    assert call[3]["device"] == "cuda"
    assert call[3]["sandbox"].name == "docker"


@pytest.mark.parametrize("width", [30, 60, 80])
def test_no_time_is_cut_in_a_narrow_terminal(
    shell: Shell,
    comparison: FakeComparer,
    problem: Path,
    kernel: Path,
    other: Path,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", f"{width}")
    comparison.answer = TimeRatio("all_together", 123456.78, 123456.78, 1.0, (0.99, 1.01))
    _, out, _ = shell("compare", kernel, other)
    assert "…" not in out
    (line,) = (line for line in out.splitlines() if "all_together" in line)
    assert line.split()[-1] == "unsure"
    assert line.count("123456.78") == (2 if width > 30 else 0)
    assert ("0.9900 – 1.0100" in line) == (width > 60)


@pytest.mark.parametrize(
    ("low", "high", "sentence"),
    [
        (0.97, 0.99, "B is 2.04 % faster than A."),
        (1.02, 1.04, "B is 3.00 % slower than A."),
        (0.79, 0.81, "B is 25.00 % faster than A."),
        (1.24, 1.26, "B is 25.00 % slower than A."),
        (1.59, 1.61, "B is 1.60× slower than A."),
        (0.0099, 0.0101, "B is 100.00× faster than A."),
        (0.999, 1.001, "B and A are equally fast, to within 0.25%."),
        (0.95, 1.05, "Unsure: B / A is between 0.9500 and 1.0500, where the same code differs by "),
    ],
)
def test_every_answer_is_a_sentence_and_status_0(
    shell: Shell,
    comparison: FakeComparer,
    problem: Path,
    kernel: Path,
    other: Path,
    low: float,
    high: float,
    sentence: str,
) -> None:
    comparison.answer = overall(low, high)
    status, out, _ = shell("compare", kernel, other)
    assert status == 0
    assert sentence in " ".join(out.split())


def test_a_busy_machine_gets_no_answer(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    comparison.answer = replace(overall(0.55, 0.6), load=0.437)
    status, out, _ = shell("compare", kernel, other, "--device", "cpu")
    assert status == 0
    text = " ".join(out.split())
    assert "too busy to tell: other processes used 44% of its processors" in text
    assert "than A" not in text
    _, shown = shell.json("compare", kernel, other, "--device", "cpu")
    assert (shown["too_busy"], shown["overall"]["answer"]) == (True, "unsure")


def test_json(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    status, shown = shell.json("compare", kernel, other)
    assert status == 0
    assert set(shown) == {"problem", "overall", "cases", "too_busy"}
    assert shown["problem"] == "double"
    assert shown["overall"]["answer"] == "faster"
    assert shown["cases"][0] == {
        "name": "small",
        "a_us": 40.0,
        "b_us": 44.0,
        "ratio": 1.1,
        "ci": [1.09, 1.11],
        "noise": 0.0,
        "same_share": 0.0025,
        "load": None,
        "answer": "slower",
    }


def test_a_failed_test_is_status_1_and_one_line(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    comparison.error = ComparisonError("other.py: case 'one': \x1b[2Jall of it\nis wrong")
    status, out, err = shell("compare", kernel, other)
    assert (status, out) == (1, "")
    assert err == "grade: other.py: case 'one': \\x1b[2Jall of it is wrong\n"


def test_files_of_the_same_name_are_shown_by_path(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, tmp_path: Path
) -> None:
    twins = [tmp_path / folder / "kern.py" for folder in ("x", "y")]
    for path in twins:
        path.parent.mkdir()
        path.write_text(kernel.read_text())
    status, out, _ = shell("compare", "x/kern.py", "y/kern.py")
    assert status == 0
    assert comparison.calls[0][1:3] == ("x/kern.py", "y/kern.py")
    assert "A  x/kern.py\nB  y/kern.py\n" in out


def test_help_says_which_times_are_believed(shell: Shell) -> None:
    _, out, _ = shell("compare", "--help")
    assert "believes the times" in " ".join(out.split())


def test_a_failed_test_as_json(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    comparison.error = ComparisonError("other.py: case 'one': wrong")
    assert shell.json("compare", kernel, other) == (1, {"error": "other.py: case 'one': wrong"})


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ProblemError("reference.py: reference() raised"), 2, "reference() raised"),
        (SandboxError("no room for a sandbox"), 3, "no room for a sandbox"),
        (RuntimeError("the tape ran out"), 3, "the tape ran out"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_faults_not_of_the_files(
    shell: Shell,
    comparison: FakeComparer,
    problem: Path,
    kernel: Path,
    other: Path,
    error: BaseException,
    status: int,
    message: str,
) -> None:
    comparison.error = error
    got, out, err = shell("compare", kernel, other)
    assert (got, out) == (status, "")
    assert message in err
    assert "Traceback" not in err


def test_without_a_gpu_it_is_practice(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    shell.change(cuda_missing=lambda: "no NVIDIA GPU", docker_missing=lambda: "no engine answers")
    status, out, err = shell("compare", kernel, other)
    assert status == 0
    assert "CPU times are practice" in out
    assert err.count("without Docker: no engine answers") == 1  # once for both files
    assert comparison.calls[0][3]["device"] == "cpu"
    status, shown = shell.json("compare", kernel, other)
    assert (status, shown["overall"]["answer"]) == (0, "faster")


# Finding the problem ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("plain.py", "import torch\n\ndef doubled(x, out):\n    pass\n"),
        ("inside.py", "if True:\n    def doubled(x, out):\n        pass\n"),
        ("kernel.cu", 'extern "C" void doubled(const float* x, float* out) {}\n'),
        ("lines.cu", 'extern "C"\nvoid doubled(const float* x, float* out) {}\n'),
    ],
)
def test_the_problem_is_found_by_the_entry(
    shell: Shell, comparison: FakeComparer, problem: Path, tmp_path: Path, name: str, source: str
) -> None:
    path = tmp_path / name
    path.write_text(source)
    status, shown = shell.json("compare", path, path)
    assert (status, shown["problem"]) == (0, "double")


@pytest.mark.parametrize(
    "source",
    ["", "def doubled_up(x, out): pass\n", "# def doubled(x, out)\n", "x = doubled(3)\n", "\xff"],
)
def test_a_file_for_no_known_problem(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, tmp_path: Path, source: str
) -> None:
    path = tmp_path / "what.py"
    path.write_bytes(source.encode("latin-1"))
    status, out, err = shell("compare", path, kernel)
    assert (status, out) == (2, "")
    assert err == (
        f"grade: {path} defines the entry of no known problem; give the problem with --problem\n"
    )
    assert comparison.calls == []
    assert shell("compare", path, kernel, "--problem", "double")[0] == 0


def test_a_broken_problem_is_no_candidate(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    (twin(problem, "broken") / "reference.py").unlink()
    assert shell("compare", kernel, other)[0] == 0


def test_a_file_for_several_problems(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, other: Path
) -> None:
    twin(problem, "twofold")
    status, shown = shell.json("compare", kernel, other)
    assert status == 2
    assert "could be for double or twofold; choose with --problem" in shown["error"]
    status, shown = shell.json("compare", kernel, other, "--problem", "twofold")
    assert (status, shown["problem"]) == (0, "twofold")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["kernel.py"], "'B'"),
        (["absent.py", "kernel.py"], "absent.py"),
        (["kernel.py", "absent.py"], "absent.py"),
        (["kernel.py", "problems"], "problems"),
        (["kernel.py", "kernel.py", "--problem", "doubel"], "did you mean 'double'?"),
        (["kernel.py", "kernel.py", "--devise", "cpu"], "--device"),
        (["kernel.py", "large.py"], "large"),
        (["kernel.cu", "kernel.py", "--device", "cpu"], "kernel.cu: timing a .cu file needs a GPU"),
        (["kernel.py", "kernel.cu", "--device", "cpu"], "kernel.cu: timing a .cu file needs a GPU"),
    ],
)
def test_wrong_usage_is_status_2_and_one_line(
    shell: Shell,
    comparison: FakeComparer,
    problem: Path,
    kernel: Path,
    tmp_path: Path,
    args: list[str],
    message: str,
) -> None:
    (tmp_path / "kernel.cu").write_text('extern "C" void doubled(const float* x, float* out) {}')
    (tmp_path / "large.py").write_bytes(b"#" * (20 << 20))
    status, out, err = shell("compare", *args)
    assert (status, out) == (2, "")
    assert err.startswith("grade: ")
    assert err.count("\n") == 1
    assert message in err
    status, shown = shell.json("compare", *args)
    assert status == 2
    assert message in shown["error"]
    assert comparison.calls == []


def test_a_cuda_file_is_compared_on_a_gpu(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text('extern "C" void doubled(const float* x, float* out) {}')
    assert shell("compare", path, kernel)[0] == 0
    assert comparison.calls[0][1:3] == ("kernel.cu", "kernel.py")


def test_names_are_escaped(
    shell: Shell, comparison: FakeComparer, problem: Path, kernel: Path, tmp_path: Path
) -> None:
    path = tmp_path / "[bold]k\x1b[2J.py"
    path.write_text(kernel.read_text())
    _, out, _ = shell("compare", path, kernel)
    assert "\x1b" not in out
    assert "A  [bold]k\\x1b[2J.py" in out
