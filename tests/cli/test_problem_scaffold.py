"""`grade new-problem`: the folder verifies as soon as its function is filled in."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.cli import problem_scaffold
from grader.cli.commands.new_problem import KINDS
from grader.cli.problem_scaffold import copied_files, kind_files
from grader.problem import Problem
from tests.cli.conftest import Shell

ROOT = Path(__file__).resolve().parents[2]
AUTHORING = (ROOT / "docs" / "authoring.md").read_text("utf-8")

FILLED_IN = {
    "elementwise": ["return torch.sin(x) * x", "return x.clamp(min=0)"],
    "reduction": ["return x"],
    "normalization": [
        "centred = x - total(x) / x.shape[-1]\n"
        "    variance = total(centred * centred) / x.shape[-1]\n"
        "    return centred * torch.rsqrt(variance + 1e-5) * weight",
    ],
    "matmul": ["return matmul(a, b)"],
}
"""Kind → bodies of the function that is left to the author."""


@pytest.fixture
def problems(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `./problems`. `torch.compile` does nothing: it is slow, and not at issue."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    folder = tmp_path / "problems"
    folder.mkdir()
    return folder


def fill_in(folder: Path, body: str) -> None:
    """Replace what raises in `reference.py`."""
    path = folder / "reference.py"
    source, count = re.subn(r"raise NotImplementedError\(.*\)", lambda _: body, path.read_text())
    assert count == 1
    imports = "" if "\nimport torch\n" in source else "import torch\n"
    path.write_text(
        source.replace("from torch import Tensor", f"{imports}from torch import Tensor")
    )


@pytest.mark.parametrize(
    ("kind", "body"), [(kind, body) for kind, bodies in FILLED_IN.items() for body in bodies]
)
def test_each_kind_verifies_once_it_is_filled_in(
    shell: Shell, problems: Path, kind: str, body: str
) -> None:
    assert shell("new-problem", "new_one", "--kind", kind)[0] == 0
    status, out, err = shell("verify", "new_one", "--device", "cpu", "--no-examples")
    assert status == 2
    assert re.search("✘ +reference.py is filled in", out)
    assert "missing: reference.py is filled in" in out
    assert re.search(r"fill in \w+\(\) in reference.py\n", err)
    fill_in(problems / "new_one", body)
    status, out, err = shell("verify", "new_one", "--device", "cpu", "--no-examples")
    assert status == 0, out
    assert "new_one is verified on cpu" in out
    assert "missing" not in out


def test_the_kinds_are_those_of_the_templates() -> None:
    assert set(KINDS) == {path.name for path in problem_scaffold.TEMPLATES.iterdir()}
    assert set(FILLED_IN) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_placeholder_is_replaced(kind: str) -> None:
    files = kind_files(kind, "sum_of_squares")
    assert set(files) == {
        "problem.yaml", "inputs.py", "reference.py", "checks.py", "statement.md"
    }  # fmt: skip
    assert not [file for file, content in files.items() if "{{" in content]
    assert "title: Sum of squares\n" in files["problem.yaml"]
    assert "entry: sum_of_squares\n" in files["problem.yaml"]
    assert 'extern "C" void sum_of_squares(' in files["statement.md"]


def test_the_kind_is_elementwise_unless_given(shell: Shell, problems: Path) -> None:
    assert shell("new-problem", "twice")[0] == 0
    assert "compute()" in (problems / "twice" / "reference.py").read_text()


def test_the_example_of_the_documentation_verifies(shell: Shell, problems: Path) -> None:
    command = re.search(r"^    grade (new-problem .+)$", AUTHORING, re.MULTILINE)
    assert command is not None
    assert shell(*command[1].split())[0] == 0
    name = command[1].split()[1]
    code = re.search(r"```python\n(.+?)```", AUTHORING, re.DOTALL)
    assert code is not None
    path = problems / name / "reference.py"
    source = path.read_text()
    path.write_text(source.replace(_function(source, "terms"), code[1]))
    status, out, _ = shell("verify", name, "--no-examples", "--device", "cpu")
    assert status == 0
    assert f"{name} is verified on cpu" in out
    assert f"{name} is verified on cpu" in AUTHORING


def _function(source: str, name: str) -> str:
    """The text of a function, with its line breaks."""
    node = next(n for n in ast.parse(source).body if getattr(n, "name", None) == name)
    lines = source.splitlines(keepends=True)
    return "".join(lines[node.lineno - 1 : node.end_lineno])


def test_a_copy_has_the_new_name_where_that_is_safe(shell: Shell, problems: Path) -> None:
    status, _, err = shell("new-problem", "row_softmax", "--like", "softmax")
    assert status == 0
    assert "change it step by step" in err
    copy, original = Problem.load(problems / "row_softmax"), Problem.load(ROOT / "problems/softmax")
    assert (copy.spec.entry, copy.spec.title) == ("row_softmax", "Row softmax")
    changed = {"entry": "softmax", "title": original.spec.title}
    assert copy.spec.model_copy(update=changed) == original.spec
    assert copy.statement.startswith("# Row softmax\n")
    assert 'extern "C" void row_softmax(const float* x' in copy.statement
    assert "`row_softmax` (fp32), `row_softmax_fp16` and `row_softmax_bf16`" in copy.statement
    assert "def row_softmax(x, out):" in copy.statement
    assert "Against softmax in float64." in copy.statement
    for file in ("reference.py", "inputs.py", "checks.py"):
        assert copy.files[file] == original.files[file]


def test_a_word_of_pytorch_is_no_name_of_the_entry() -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    statement = b"# S\n\n`torch.softmax(x)`, `softmax_kernel`, `my_softmax`, `softmax_fp16`\n"
    object.__setattr__(problem, "files", {**problem.files, "statement.md": statement})
    shown = copied_files(problem, "mine")["statement.md"]
    assert shown == "# Mine\n\n`torch.softmax(x)`, `softmax_kernel`, `my_softmax`, `mine_fp16`\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["there"], "problems/there already exists"),
        (["exp"], "problems/exp/problem.yaml: entry: 'exp' is a function of C"),
        (["Softmax"], "in lower case"),
        (["missing/folder"], "missing/folder: cannot be written (No such file or directory)"),
        (["one", "--kind", "matmul", "--like", "softmax"], "exclude each other"),
        (["one", "--like", "sotfmax"], "did you mean 'softmax'?"),
        (["one", "--kind", "fft"], "fft"),
    ],
)
def test_a_wrong_call_writes_nothing(
    shell: Shell, problems: Path, arguments: list[str], message: str
) -> None:
    (problems / "there").mkdir()
    status, _, err = shell("new-problem", *arguments)
    assert status == 2
    assert message in err
    assert [path.name for path in problems.iterdir()] == ["there"]


def test_a_file_of_another_encoding_is_not_copied(shell: Shell, problems: Path) -> None:
    shutil.copytree(ROOT / "problems" / "square", problems / "latin")
    with (problems / "latin" / "reference.py").open("ab") as file:
        file.write(b"# \xff\n")
    status, _, err = shell("new-problem", "one", "--like", "latin")
    assert (status, err) == (2, "grade: problems/latin/reference.py: not UTF-8\n")
    assert not (problems / "one").exists()


def test_nothing_is_left_of_a_folder_that_cannot_be_completed(
    shell: Shell, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[..., Any] = Path.write_text

    def full(path: Path, *args: Any) -> Any:
        if path.name == "problem.yaml":
            raise OSError(28, "No space left on device")
        return write(path, *args)

    monkeypatch.setattr(Path, "write_text", full)
    status, _, err = shell("new-problem", "one")
    assert status == 2
    assert "cannot be written (No space left on device)" in err
    assert list(problems.iterdir()) == []


def test_where_the_folder_goes(
    shell: Shell, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("new-problem", "one")[0] == 0
    assert (problems / "one" / "problem.yaml").exists()
    (tmp_path / "elsewhere").mkdir()
    assert shell("new-problem", tmp_path / "elsewhere" / "two")[0] == 0
    assert (tmp_path / "elsewhere" / "two" / "problem.yaml").exists()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shell("new-problem", "three")[0] == 0
    assert (tmp_path / "elsewhere" / "three" / "problem.yaml").exists()
