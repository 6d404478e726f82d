from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.problem import Problem, prototypes
from grader.problem_folders import problem_folders
from grader.runner.prototype_check import assertions
from tests.cli.conftest import Shell

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
@pytest.mark.parametrize("problem", PROBLEMS)
def test_cuda_files_compile(shell: Shell, problem: str, tmp_path: Path) -> None:
    """And have the problem's prototypes, which the assertions behind them compare."""
    source = new(shell, problem, "cuda", tmp_path / "kernel.cu")
    spec = Problem.load(ROOT / "problems" / problem).spec
    (tmp_path / "kernel.cu").write_text(source + assertions(prototypes(spec)))
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-Werror", "all-warnings"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "kernel.so"), str(tmp_path / "kernel.cu")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    symbols = subprocess.run(
        ["nm", "-D", str(tmp_path / "kernel.so")], capture_output=True, text=True, check=True
    ).stdout
    for dtype in spec.cuda_dtypes[1:]:
        assert f" T {spec.entry}_{dtype}\n" in symbols
    assert f" T {spec.entry}\n" in symbols


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
