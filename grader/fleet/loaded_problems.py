"""The problems that a dispatcher grades, as they were loaded: their folders may change meanwhile.

Slots read a problem from a folder. Each version gets one of its own in a temporary folder, with
exactly the files that were loaded, so that a version is graded until it is replaced.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.problem import Problem, ProblemError
from grader.sandbox.owner import make_owned_folder, remove_tree

log = logging.getLogger(__name__)

Signature = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of each file of a folder."""


class ProblemFolders:
    """Temporary folders of problems. They are removed by `close`, or once this process has exited.

    It belongs to one thread.
    """

    def __init__(self) -> None:
        self._root: Path | None = None

    def folder_of(self, problem: Problem) -> Path:
        """A folder of the problem's name with its files, made if it is not there, such as after
        temporary folders were cleaned."""
        if self._root is None or not self._root.is_dir():
            self._root = make_owned_folder()
        content = hashlib.sha256()
        for file, data in problem.files.items():
            content.update(f"{file}:{len(data)}:".encode() + data)
        folder = self._root / content.hexdigest() / problem.name
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in problem.files.items():
            if not (folder / file).exists():
                (folder / file).write_bytes(data)
        return folder

    def close(self) -> None:
        """Remove all folders."""
        if self._root is not None:
            remove_tree(self._root)
            self._root = None


class WatchedProblems:
    """Problems that are loaded again when their files change.

    find: returns the folder of each problem, by name.
    """

    def __init__(self, find: Callable[[], Mapping[str, Path]]) -> None:
        self._find = find
        self._signatures: dict[str, Signature] = {}
        self._problems: dict[str, Problem] = {}

    def look(self) -> dict[str, Problem]:
        """The problems by name. One that cannot be loaded is logged once and stays as it was."""
        folders = self._find()
        for name, folder in folders.items():
            try:
                signature = _signature(folder)
                if signature == self._signatures.get(name):
                    continue
                self._signatures[name] = signature
                self._problems[name] = Problem.load(folder)
            except (OSError, ProblemError) as error:
                log.warning("problem %s: stays as it was: %s", name, error)
        self._problems = {name: one for name, one in self._problems.items() if name in folders}
        return dict(self._problems)


def changed_versions(
    before: Mapping[str, Problem], after: Mapping[str, Problem]
) -> dict[str, Problem]:
    """The problems that are new, or that another version has replaced."""
    return {
        name: problem
        for name, problem in after.items()
        if name not in before or before[name].digest != problem.digest
    }


def _signature(folder: Path) -> Signature:
    found = sorted(folder.iterdir())
    states = [(path.name, path.stat()) for path in found if path.is_file()]
    return tuple((name, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in states)
