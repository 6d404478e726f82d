"""The catalogue of problems: its groups, what it can be filtered by, and the learning path.

Pure, over loaded problems; the CLI and the server show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints

from grader.problem import strict_yaml
from grader.problem.load import Problem
from grader.problem.spec import DTYPES, LimitedBy, Name, Spec, Topic

TOPICS: tuple[str, ...] = get_args(Topic)
"""In the order in which they are listed."""
LIMITS: tuple[str, ...] = get_args(LimitedBy)
HARDEST = 5
"""The largest difficulty."""

PATH_FILE = Path(__file__).with_name("learning_path.yaml")
"""The order in which to learn from the problems."""


def dtypes_of(spec: Spec) -> tuple[str, ...]:
    """The element types of the tensor arguments, in order of appearance. Where a case parameter
    holds one, all those that a `.cu` file must cover."""
    found: dict[str, None] = {}
    for argument in spec.args:
        if argument.kind != "scalar":
            known = (argument.dtype,) if argument.dtype in DTYPES else spec.cuda_dtypes
            found.update(dict.fromkeys(known))
    return tuple(found)


@dataclass(frozen=True)
class Filter:
    """Which problems to list; everything that is given must hold."""

    topic: str | None = None
    dtype: str | None = None
    limited_by: str | None = None
    words: str = ""
    """Each of these words must be in the problem's name, title, summary or topic."""

    def __bool__(self) -> bool:
        """Whether anything is given."""
        return bool(self.topic or self.dtype or self.limited_by or self.words.split())

    def matches(self, problem: Problem) -> bool:
        """Whether to list a problem."""
        spec = problem.spec
        text = f"{problem.name} {spec.title} {spec.summary} {spec.topic or ''}".casefold()
        return (
            self.topic in (None, spec.topic)
            and self.limited_by in (None, spec.limited_by)
            and (self.dtype is None or self.dtype in dtypes_of(spec))
            and all(word in text for word in self.words.casefold().split())
        )


def by_topic(problems: Iterable[Problem]) -> list[tuple[str | None, list[Problem]]]:
    """The topics that have problems, each with its problems, the easiest first; at last those
    without a topic, under None."""
    found: dict[str | None, list[Problem]] = {topic: [] for topic in (*TOPICS, None)}
    for problem in sorted(problems, key=by_difficulty):
        found[problem.spec.topic].append(problem)
    return [(topic, some) for topic, some in found.items() if some]


def by_difficulty(problem: Problem) -> tuple[int, str]:
    """A key for sorting: the easiest first, those of unknown difficulty last."""
    return problem.spec.difficulty or HARDEST + 1, problem.name


class LearningStep(BaseModel):
    """A step of the learning path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    problem: Name
    """The problem's name."""
    teaches: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    """What is new in it, in a few words."""


class _Path(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: tuple[LearningStep, ...]


@cache
def learning_path() -> tuple[LearningStep, ...]:
    """Every step, in order. A server may not have the problem of a step."""
    return _Path.model_validate(strict_yaml.parse(PATH_FILE.read_text("utf-8"))).steps


def steps_among(problems: Iterable[Problem]) -> list[tuple[LearningStep, Problem]]:
    """The steps whose problem is among these, with it."""
    known = {problem.name: problem for problem in problems}
    return [(step, known[step.problem]) for step in learning_path() if step.problem in known]
