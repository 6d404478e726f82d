from __future__ import annotations

import re
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
def test_cuda_files_compile(shell: Shell, tmp_path: Path) -> None:
    """And have their problems' prototypes, which the assertions behind them compare. Files with the
    same headers are compiled at once: nvcc spends most of a second on the headers of each."""
    by_headers: dict[tuple[str, ...], dict[str, str]] = {}
    for name in PROBLEMS:
        source = new(shell, name, "cuda", tmp_path / f"{name}.cu")
        headers = tuple(re.findall(r"^#include .*$", source, re.MULTILINE))
        by_headers.setdefault(headers, {})[name] = source
    assert len(by_headers) < len(PROBLEMS)
    for number, sources in enumerate(by_headers.values()):
        specs = [Problem.load(ROOT / "problems" / name).spec for name in sources]
        wanted = {symbol: text for spec in specs for symbol, text in prototypes(spec).items()}
        parts = [f'#line 1 "{name}.cu"\n{source}' for name, source in sources.items()]
        file = tmp_path / f"all_{number}.cu"
        file.write_text("\n".join(parts) + assertions(wanted))
        found = exported(file)
        for spec in specs:
            symbols = {spec.entry, *(f"{spec.entry}_{dtype}" for dtype in spec.cuda_dtypes[1:])}
            assert symbols == set(prototypes(spec))
            assert symbols <= found


def exported(file: Path) -> set[str]:
    """The functions of the library that nvcc makes of a file."""
    library = file.with_suffix(".so")
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-Werror", "all-warnings"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run([*command, "-o", str(library), str(file)], **options)
    assert (done.returncode, done.stderr) == (0, "")
    listed = subprocess.run(["nm", "-D", str(library)], **options).stdout
    return set(re.findall(r"^\w+ T (\w+)$", listed, re.MULTILINE))


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
