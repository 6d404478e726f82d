"""The problems of a running server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grader.problem import Problem


class ServedProblems(Mapping[str, Problem]):
    """Problem by name. Thread-safe: a reload replaces all at once, and removes none."""

    def __init__(self, problems: Mapping[str, Problem]) -> None:
        self._problems = dict(problems)

    def __getitem__(self, name: str) -> Problem:
        return self._problems[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._problems)

    def __len__(self) -> int:
        return len(self._problems)

    def put(self, changed: Mapping[str, Problem]) -> None:
        """Add problems, and replace those of the same names."""
        every = self._problems | dict(changed)
        self._problems = {name: every[name] for name in sorted(every)}

    @property
    def version(self) -> object:
        """A value that differs after every change."""
        return self._problems
