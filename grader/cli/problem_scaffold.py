"""The folder of a new problem: from a kind of operation, or from another problem."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from grader.problem import Problem, ProblemError
from grader.problem.spec import DTYPES

TEMPLATES = Path(__file__).parent / "problem_kinds"
"""A folder for each kind. In its files, ``{{name}}`` and ``{{title}}`` stand for the problem's."""

_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def kind_files(kind: str, name: str) -> dict[str, str]:
    """File → its content, for a problem of this kind."""
    values = {"{{name}}": name, "{{title}}": title_of(name)}
    files = {}
    for path in sorted((TEMPLATES / kind).glob("*.*")):
        content = path.read_text("utf-8")
        for placeholder, value in values.items():
            content = content.replace(placeholder, value)
        files[path.name] = content
    return files


def copied_files(problem: Problem, name: str) -> dict[str, str]:
    """File → its content, for a copy of a problem.

    Replaced are the title and the entry's name: in the spec, in the statement's heading, and where
    code of the statement means the entry. Python files stay as they are: there a word like
    ``softmax`` may be a function of PyTorch.

    Raises `ProblemError` for a problem of another set, and for a file that is not UTF-8.
    """
    if problem.imported is not None:
        raise ProblemError(f"--like takes a problem of ours, and {problem.name} is of another set")
    files = {}
    for file, content in problem.files.items():
        try:
            files[file] = content.decode("utf-8")
        except UnicodeDecodeError:
            raise ProblemError(f"{problem.folder / file}: not UTF-8") from None
    title = title_of(name)
    for key, value in (("title", title), ("entry", name)):
        line = re.compile(rf"^{key}:.*$", re.MULTILINE)
        files["problem.yaml"] = line.sub(f"{key}: {value}", files["problem.yaml"], count=1)
    dtypes = "|".join(DTYPES)
    entry = re.compile(rf"(?<![\w.]){problem.spec.entry}(?=(?:_(?:{dtypes}))?\b)")
    statement = _CODE.sub(lambda code: entry.sub(name, code[0]), files["statement.md"])
    files["statement.md"] = re.sub(r"\A# .*$", f"# {title}", statement, flags=re.MULTILINE)
    return files


def title_of(name: str) -> str:
    """``sum_of_squares`` → ``Sum of squares``."""
    return name.replace("_", " ").capitalize()


def write_problem(target: Path, files: Mapping[str, str]) -> None:
    """Write a problem's folder, all of it or nothing.

    Raises click.UsageError if the folder exists or cannot be written, and for a name that no
    problem may have.
    """
    if target.exists() or target.is_symlink():
        raise click.UsageError(f"{target} already exists; choose another name")
    parent = target.absolute().parent
    try:
        with tempfile.TemporaryDirectory(prefix=".grade-", dir=parent) as temporary:
            folder = Path(temporary) / target.name
            folder.mkdir()
            for file, content in files.items():
                (folder / file).write_text(content, "utf-8")
            _check(folder, target)
            folder.rename(target)
    except OSError as error:
        raise click.UsageError(f"{target}: cannot be written ({error.strerror})") from None


def _check(folder: Path, target: Path) -> None:
    """Load the problem. Its errors name the folder that is to be."""
    try:
        Problem.load(folder)
    except ProblemError as error:
        text = str(error).replace(str(folder), str(target))
        raise click.UsageError(text) from None
