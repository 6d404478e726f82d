"""KernelBot boards (gpu-mode/reference-kernels): a folder with `task.yml`."""

from __future__ import annotations

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
    options = {kind: _listed(task, kind, path) for kind in ("tests", "benchmarks")}
    name = problem_name("kernelbot", folder.parent.name, folder.name)
    title = f"{folder.parent.name}/{folder.name}"
    return SetSource(
        "kernelbot", TITLE, LICENCE, LINK, name, title, folder, files, options, _solutions(folder)
    )


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
