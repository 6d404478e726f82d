"""Other people's problem sets, read where they lie in the user's checkout: ``kernelbot:PATH``.

Reading a problem imports nothing of it. Its code runs later, in a sandbox (`judge/set_host`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grader.problem.imported import SetSource
from grader.problem.spec import ProblemError
from grader.problem_folders import problem_folder
from grader.problem_sets import flashinfer, kernelbench, kernelbot, leetgpu, sol, tensara
from grader.problem_sets.reading import page_of

SETS = {
    "leetgpu": leetgpu,
    "kernelbot": kernelbot,
    "kernelbench": kernelbench,
    "fib": flashinfer,
    "sol": sol,
    "tensara": tensara,
}
"""Prefix → the module that finds and reads the set's problems."""


def split_prefix(text: str) -> tuple[str, Path] | None:
    """``kernelbot:PATH`` as the set's prefix and the path; None for any other text."""
    prefix, colon, path = text.partition(":")
    return (prefix, Path(path).expanduser()) if colon and prefix in SETS else None


def problem_argument(name: str) -> str:
    """What finds the problem of a report: its name, or ``kernelbot:PATH`` for one of another set
    that has no folder here."""
    prefix = name.partition("_")[0]
    return f"{prefix}:PATH" if prefix in SETS and problem_folder(name) is None else name


def read_problem(prefix: str, path: Path) -> SetSource:
    """The files of one problem. Raises `ProblemError` when there is none at `path`."""
    if not _exists(path) and not _exists(Path(str(path).rpartition("#")[0] or path)):
        raise ProblemError(f"{path}: no such file or folder")
    found: SetSource | None = SETS[prefix].read(path.absolute())
    if found is not None:
        return replace(found, link=page_of(found.folder, found.link))
    inside = list_problems(prefix, path)
    if not inside:
        raise ProblemError(f"{path}: {SETS[prefix].EXPECTED}")
    raise ProblemError(
        f"{path}: holds {len(inside)} problems; name one of them, such as "
        f"{prefix}:{inside[0]} (`grade problems {prefix}:{path}` lists them)"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or not one
        return False


def list_problems(prefix: str, root: Path) -> list[Path]:
    """The paths of all problems below a folder, in order of their names."""
    return [path for path in SETS[prefix].find(root) if path]
