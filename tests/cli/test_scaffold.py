from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.problem import Problem
from grader.problem_folders import problem_folders
from tests.cli.conftest import Shell
from tests.starter_files import check_starters

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = sorted(path.parent.name for path in ROOT.glob("problems/*/problem.yaml"))


def new(shell: Shell, problem: str, lang: str, path: Path) -> str:
    status, out, err = shell("new", ROOT / "problems" / problem, "--lang", lang, "-o", path)
    assert (status, out) == (0, ""), err
    return path.read_text()


def load(path: Path) -> dict[str, Any]:
    """The names that a scaffold defines."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("scaffold", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def test_every_problem_is_listed() -> None:
    names = [folder.name for folder in problem_folders() if folder.is_relative_to(ROOT)]
    assert names == PROBLEMS or not names


def test_the_torch_file_is_correct(shell: Shell, problem: Path, tmp_path: Path) -> None:
    new(shell, str(problem), "torch", tmp_path / "twice.py")
    doubled = load(tmp_path / "twice.py")["doubled"]
    x, out = torch.arange(5.0), torch.zeros(5)
    doubled(x, out)
    assert out.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("lang", ["torch", "triton"])
def test_python_files_define_the_entry(
    shell: Shell, problem: str, lang: str, tmp_path: Path
) -> None:
    source = new(shell, problem, lang, tmp_path / "kernel.py")
    assert max(map(len, source.splitlines())) <= 100
    spec = Problem.load(ROOT / "problems" / problem).spec
    entry = load(tmp_path / "kernel.py")[spec.entry]
    names = entry.__code__.co_varnames[: entry.__code__.co_argcount]
    assert list(names) == [argument.name for argument in spec.args]


@pytest.mark.nvcc
def test_cuda_files_compile(shell: Shell, tmp_path: Path) -> None:
    """And have their problems' prototypes."""
    starters = {
        name: (
            Problem.load(ROOT / "problems" / name),
            new(shell, name, "cuda", tmp_path / f"{name}.cu"),
        )
        for name in PROBLEMS
    }
    check_starters(starters, tmp_path)


def test_new_never_overwrites(shell: Shell, problem: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("precious")
    status, _, err = shell("new", problem, "--lang", "torch", "-o", path)
    assert status == 2
    assert "already exists" in err
    assert path.read_text() == "precious"
    status, _, err = shell("new", problem, "--lang", "cuda", "-o", tmp_path / "mine.txt")
    assert status == 2
    assert "ends in .cu" in err
    status, _, err = shell("new", problem, "-o", tmp_path / "absent" / "mine.py")
    assert status == 2
    assert "cannot be written" in err


def test_new_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    command = [sys.executable, "-m", "grader.cli", "new", str(ROOT / "problems" / "softmax")]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command, "-o", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_default_name(shell: Shell, problem: Path, tmp_path: Path) -> None:
    status, _, err = shell("new", "double", "--lang", "cuda")
    assert status == 0
    assert (tmp_path / "double_cuda.cu").exists()
    assert "grade practice double double_cuda.cu" in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"def reference(x:\n", "not readable as Python"),
        (b"# \xff\n", "not readable as Python"),
        (b"def other(x): ...\n", "no function named 'reference'"),
    ],
)
def test_a_reference_that_cannot_be_read_is_the_authors_error(
    shell: Shell, tmp_path: Path, content: bytes, why: str
) -> None:
    folder = tmp_path / "square"
    shutil.copytree(ROOT / "problems" / "square", folder)
    (folder / "reference.py").write_bytes(content)
    status, out, err = shell("new", folder, "--lang", "torch", "-o", tmp_path / "mine.py")
    assert (status, out) == (2, "")
    assert err.startswith(f"grade: {folder}/reference.py: {why}")
    assert not (tmp_path / "mine.py").exists()
