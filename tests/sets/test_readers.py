"""Reading problems of other sets: nothing of theirs is imported, and errors are one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grader.problem import ProblemError
from grader.problem.imported import TensorForm
from grader.problem_sets import SETS, list_problems, read_problem, split_prefix
from tests.sets import made_up

MAKERS: list[Callable[[Path], Path]] = [
    made_up.leetgpu,
    made_up.kernelbot,
    made_up.kernelbench,
    made_up.tensara,
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_checkout_is_searched_for_problems(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    prefix = make.__name__
    assert list_problems(prefix, tmp_path) == [path]
    source = read_problem(prefix, path)
    assert source.set == prefix
    assert source.name.startswith(f"{prefix}_")
    with pytest.raises(ProblemError, match="holds 1 problems; name one of them, such as"):
        read_problem(prefix, tmp_path)


@pytest.mark.parametrize("make", MAKERS)
def test_a_problem_is_its_content(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Reading runs none of it, and a changed file is another problem."""
    path = make(tmp_path)
    source = read_problem(make.__name__, path)
    file = next(f for f in [path, *path.glob("*.py")] if f.is_file())
    file.write_bytes(file.read_bytes() + b"\nraise SystemExit('imported')\n")
    changed = read_problem(make.__name__, path)
    assert changed.digest() != source.digest()


def test_names_licences_and_titles(tmp_path: Path) -> None:
    found = {make.__name__: read_problem(make.__name__, make(tmp_path)) for make in MAKERS}
    assert {prefix: (s.name, s.title) for prefix, s in found.items()} == {
        "leetgpu": ("leetgpu_1_scaled_rows", "Scaled Rows"),
        "kernelbot": ("kernelbot_made_up_rms_py", "made_up/rms_py"),
        "kernelbench": ("kernelbench_level1_7_linear_norm", "7 Linear norm"),
        "tensara": ("tensara_row_sums", "Sums of Rows"),
    }
    assert found["tensara"].licence == "none stated"


@pytest.mark.parametrize("prefix", SETS)
def test_what_is_no_problem_is_refused_in_a_line(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as missing:
        read_problem(prefix, tmp_path / "away")
    assert str(missing.value) == f"{tmp_path / 'away'}: no such file or folder"
    with pytest.raises(ProblemError) as empty:
        read_problem(prefix, tmp_path)
    assert str(empty.value) == f"{tmp_path}: {SETS[prefix].EXPECTED}"


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("lang: [", "task.yml: not readable as YAML"),
        ("[" * 5000, "task.yml: not readable as YAML (nested too deeply)"),
        ("lang: \x00", "task.yml: not readable as YAML"),
        ("just words", "task.yml: must be keys and values"),
        ("lang: cu", "task.yml: submissions in cu are not supported, only Python"),
        ("lang: py\nmulti_gpu: true", "task.yml: it needs several GPUs"),
        ("lang: py", "task.yml: files: must be a list of mappings"),
        ("files: [{name: submission.py, source: '@SUBMISSION@'}]", "there is no reference.py"),
        ("files: [{name: a/b.py, source: reference.py}]", "'a/b.py' has a folder"),
        ("files: [{name: x.py, source: away.py}]", "away.py: missing"),
        (
            "files: [{name: reference.py, source: reference.py}]\ntests: [1]",
            "tests: must be a list of mappings",
        ),
    ],
)
def test_a_board_that_cannot_be_read_is_refused_in_a_line(
    task: str, why: str, tmp_path: Path
) -> None:
    folder = made_up.kernelbot(tmp_path, task=task)
    with pytest.raises(ProblemError) as refused:
        read_problem("kernelbot", folder)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "entry",
    ["{rows: 5, 7: 11}", "{rows: !!binary aGk=}", "{rows: !!set {a}}", "&a {rows: *a}",
     '{rows: "\\ud800"}'],
    ids=["keys", "bytes", "set", "endless", "surrogate"],
)  # fmt: skip
def test_a_board_with_values_that_no_message_holds_is_refused(entry: str, tmp_path: Path) -> None:
    tests, benchmarks = made_up.TASK.split("tests:")[0], "benchmarks:\n  - {rows: 4, seed: 1}\n"
    folder = made_up.kernelbot(tmp_path, task=f"{tests}tests:\n  - {entry}\n{benchmarks}")
    with pytest.raises(ProblemError, match=r"tests and benchmarks must have names, numbers"):
        read_problem("kernelbot", folder)


def test_a_path_that_is_too_long_is_no_file() -> None:
    with pytest.raises(ProblemError, match="no such file or folder"):
        read_problem("kernelbot", Path("x" * 5000))


@pytest.mark.parametrize(
    ("shape", "strides", "why"),
    [([3, 4], [1], "1 strides for 2 dimensions"), ([2, 2], [2**40, 1], "elements apart")],
)
def test_strides_are_believed_only_where_they_may_be(
    shape: list[int], strides: list[int], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        TensorForm(dtype="fp32", shape=shape, strides=strides)


def test_a_date_in_a_board_is_text(tmp_path: Path) -> None:
    task = made_up.TASK.replace('"seed": ', '"day": 2026-13-45, "seed": ')
    assert task != made_up.TASK
    source = read_problem("kernelbot", made_up.kernelbot(tmp_path, task=task))
    assert source.options["tests"][0]["day"] == "2026-13-45"


COMMIT = "0123456789abcdef0123456789abcdef01234567"
LINK = "https://github.com/ScalingIntelligence/KernelBench"


@pytest.mark.parametrize(
    ("remote", "head", "page"),
    [
        ("https://github.com/ScalingIntelligence/KernelBench.git", COMMIT, f"/blob/{COMMIT}/"),
        ("git@github.com:scalingintelligence/kernelbench", "ref: refs/heads/x", "/blob/HEAD/"),
        ("https://github.com/someone/KernelBench-fork", COMMIT, None),
        ("https://example.org/ScalingIntelligence/KernelBench", COMMIT, None),
    ],
)
def test_the_link_is_the_files_page_in_a_checkout_of_the_set(
    remote: str, head: str, page: str | None, tmp_path: Path
) -> None:
    file = made_up.kernelbench(tmp_path)
    assert read_problem("kernelbench", file).link == LINK
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
    (tmp_path / ".git" / "HEAD").write_text(f"{head}\n")
    of_file = f"{LINK}{page}KernelBench/level1/7_Linear_norm.py"
    assert read_problem("kernelbench", file).link == (LINK if page is None else of_file)


def test_a_module_is_shown_only_with_its_licence(tmp_path: Path) -> None:
    file = made_up.kernelbench(tmp_path)
    assert read_problem("kernelbench", file).statement == ""
    (tmp_path / "LICENSE").write_text("All rights reserved.\n")
    assert read_problem("kernelbench", file).statement == ""
    (tmp_path / "LICENSE").write_text("MIT License\n\nCopyright (c) 2025 Made Up\n")
    statement = read_problem("kernelbench", file).statement
    assert "class Model(nn.Module):" in statement
    assert "Copyright (c) 2025 Made Up" in statement
    file.write_text(made_up.MODEL + f"# {'~' * 8}\n")
    assert read_problem("kernelbench", file).statement == "", "it would end the block of code"


@pytest.mark.parametrize("make", [made_up.leetgpu, made_up.kernelbot, made_up.tensara])
def test_other_sets_texts_are_not_shown(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    (tmp_path / "LICENSE").write_text("MIT License\n")
    assert read_problem(make.__name__, path).statement == ""


def test_only_known_prefixes_are_split() -> None:
    assert split_prefix("tensara:~/x") == ("tensara", Path("~/x").expanduser())
    assert split_prefix("other:x") is None
    assert split_prefix("softmax") is None
