"""KernelBot boards (gpu-mode/reference-kernels): a folder with `task.yml`."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import yaml

from grader.problem.imported import SetSource
from grader.problem.spec import ProblemError
from grader.problem_sets.reading import natural_order, problem_name, read_file

TITLE = "KernelBot"
LICENCE = "Researcher Reciprocity License 1.0"
LINK = "https://github.com/gpu-mode/reference-kernels"
EXPECTED = "a KernelBot board is a folder with task.yml"
SUBMISSION = "@SUBMISSION@"
CHECK = "check_correctness"
"""The function of `eval.py` that checks a submission with several functions."""


def find(root: Path) -> list[Path]:
    """The folders of all boards below `root`."""
    return sorted((file.parent for file in root.rglob("task.yml")), key=natural_order)


def read(folder: Path) -> SetSource | None:
    """The board in a folder; None if there is none."""
    path = folder / "task.yml"
    if not path.is_file():
        return None
    task = _parsed(path)
    if task.get("lang", "py") != "py":
        raise ProblemError(f"{path}: submissions in {task['lang']} are not supported, only Python")
    if task.get("multi_gpu"):
        raise ProblemError(f"{path}: it needs several GPUs")
    files = {}
    for entry in _listed(task, "files", path):
        name, source = str(entry.get("name")), str(entry.get("source"))
        if source != SUBMISSION and name.endswith(".py"):
            if "/" in name:
                raise ProblemError(f"{path}: files: '{name}' has a folder, which is not supported")
            files[name] = read_file(folder / source)
    if "reference.py" not in files:
        raise ProblemError(f"{path}: files: there is no reference.py")
    options: dict[str, Any] = {k: _listed(task, k, path) for k in ("tests", "benchmarks")}
    options |= _functions(files.get("eval.py", b""))
    try:
        json.dumps(options, sort_keys=True, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise ProblemError(
            f"{path}: tests and benchmarks must have names, numbers, texts, lists and mappings only"
        ) from None
    name = problem_name("kernelbot", folder.parent.name, folder.name)
    title = f"{folder.parent.name}/{folder.name}"
    return SetSource(
        "kernelbot", TITLE, LICENCE, LINK, name, title, folder, files, options, _solutions(folder)
    )


def _functions(evaluation: bytes) -> dict[str, Any]:
    """What a board's own `eval.py` calls of a submission with several functions: each one with the
    names of its arguments, which are among the inputs. Empty for the usual board.

    Such a file has a function ``check_correctness(submission, …)``, in which are
    ``a, b = generate_inputs(…)`` and calls such as ``submission.forward(a)``.
    """
    try:
        tree = ast.parse(evaluation)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == CHECK]
    if not found or not found[0].args.args:
        return {}
    submission = found[0].args.args[0].arg
    inputs: list[str] = []
    functions: dict[str, list[str]] = {}
    for node in ast.walk(found[0]):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=names)], value=ast.Call(func=ast.Name(id="generate_inputs"))
            ):
                inputs = _names(names)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr=name), args=names, keywords=[]
            ) if owner == submission:
                functions[name] = _names(names)
    if not functions or any(set(names) - set(inputs) for names in functions.values()):
        return {}
    return {"inputs": inputs, "functions": functions}


def _names(nodes: list[ast.expr]) -> list[str]:
    return [node.id if isinstance(node, ast.Name) else "" for node in nodes]


def _solutions(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """The submissions that the set ships, in folders of what they are."""
    return {
        f"{kind}/{path.name}": (read_file(path), kind == "correct")
        for kind in ("correct", "wrong")
        for path in sorted((folder / "solutions" / kind).glob("*.py"))
    }


class _Loader(yaml.SafeLoader):
    """Reads dates as the text that they are, since parameters must be values of JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [one for one in found if one[0] != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        task = yaml.load(read_file(path), _Loader)
    except RecursionError:
        raise ProblemError(f"{path}: not readable as YAML (nested too deeply)") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ProblemError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(task, dict):
        raise ProblemError(f"{path}: must be keys and values")
    return task


def _listed(task: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    found = task.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ProblemError(f"{path}: {key}: must be a list of mappings")
    return found
