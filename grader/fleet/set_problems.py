"""Problems of other sets that a server or a worker grades, named as ``kernelbench:PATH``.

Reading them runs nothing, and gives the digest by which a server and its workers agree on the
files. What they are made of is found out where they are graded, since it may depend on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from grader.problem import Problem, ProblemError
from grader.problem.imported import SetSource
from grader.problem_sets import list_problems, read_problem

log = logging.getLogger(__name__)

NamedSet = tuple[str, Path]
"""A set's prefix, and the path of a problem or of a folder that holds several."""


class SetProblems:
    """The problems of other sets at these paths.

    imports: describes a problem by running its code in a sandbox. It raises `ProblemError` for one
    that cannot be judged on this machine's device.
    """

    def __init__(self, named: Sequence[NamedSet], imports: Callable[[SetSource], Problem]) -> None:
        self.named = tuple(named)
        self._imports = imports
        self._imported: dict[str, Problem] = {}

    def read(self) -> tuple[dict[str, SetSource], dict[str, str]]:
        """The problems by name, as their files are now, and why others cannot be read."""
        found: dict[str, SetSource] = {}
        broken: dict[str, str] = {}
        for prefix, path in self.named:
            for one in list_problems(prefix, path) or [path]:
                try:
                    source = read_problem(prefix, one)
                except ProblemError as error:
                    broken[f"{prefix}:{one}"] = str(error)
                    continue
                if source.name in found and found[source.name].folder != source.folder:
                    broken[f"{prefix}:{one}"] = (
                        f"{one}: {found[source.name].folder} has the same name, {source.name}"
                    )
                else:
                    found[source.name] = source
        return found, broken

    def problem(self, source: SetSource) -> Problem:
        """The problem, imported once for each digest. Raises `ProblemError`."""
        digest = source.digest()
        if digest not in self._imported:
            self._imported[digest] = self._imports(source)
        return self._imported[digest]

    def load(self) -> tuple[dict[str, Problem], dict[str, str]]:
        """All problems that can be judged here, by name, and why others cannot. This may take
        minutes."""
        sources, broken = self.read()
        found: dict[str, Problem] = {}
        for name, source in sources.items():
            try:
                found[name] = self.problem(source)
            except ProblemError as error:
                broken[name] = str(error)
            else:
                log.info("problem %s: imported from %s", name, source.folder)
        return found, broken
