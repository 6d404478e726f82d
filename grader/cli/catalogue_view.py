"""The list of problems in a terminal, with what the user has reached on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click
from rich.text import Text

from grader.board import BoardError, MissingBoardError
from grader.cli.dependencies import Dependencies
from grader.cli.options import check_user
from grader.cli.output.terminal import print_warning
from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column
from grader.format import micros
from grader.problem import Problem
from grader.problem.catalogue import HARDEST, LearningStep, dtypes_of
from grader.report import Verdict


@dataclass
class OwnState:
    """What a user has reached on a problem that they have tried."""

    is_accepted: bool = False
    best_us: float | None = None
    """The best ranked time for the current version, on any GPU."""
    gpu: str | None = None
    """The GPU of the best time."""

    @property
    def word(self) -> str:
        """accepted or tried."""
        return "accepted" if self.is_accepted else "tried"


States = Mapping[str, OwnState]
"""Problem → state; without an entry for a problem that was never tried."""


def read_states(
    deps: Dependencies, problems: Iterable[Problem], user: str | None, url: str | None
) -> States:
    """The states of a user on a board; empty if there is no board, or it cannot be read, which a
    warning tells. Raises click.UsageError for an invalid name."""
    digests = {problem.name: problem.digest for problem in problems}
    try:
        name = check_user(user)
        with closing(deps.board(url)) as board:
            attempts = board.attempts(name)
    except MissingBoardError:
        return {}
    except BoardError as error:
        print_warning(f"your results are not shown: {error}")
        return {}
    except click.UsageError:
        if user is not None:
            raise
        return {}  # the login name is not known
    found: dict[str, OwnState] = {}
    for one in attempts:
        state = found.setdefault(one.problem, OwnState())
        state.is_accepted |= one.verdict is Verdict.ACCEPTED
        if one.score_us is None or one.problem_digest != digests.get(one.problem):
            continue
        if state.best_us is None or one.score_us < state.best_us:
            state.best_us, state.gpu = one.score_us, one.gpu
    return found


def catalogue_table(
    groups: Sequence[tuple[str | None, list[Problem]]], states: States
) -> ResponsiveTable:
    """The problems below their topics. Columns without a value are left out."""
    rows: list[Problem | None] = []
    names: list[Text] = []
    for topic, problems in groups:
        if rows:
            rows.append(None)
            names.append(Text())
        if topic is not None or len(groups) > 1:
            rows.append(None)
            names.append(Text(f"{topic or 'other'}:", "bold"))
        rows += problems
        names += [Text(problem.name) for problem in problems]

    def cells(of: Any, style: str = "") -> list[Text]:
        return [Text("" if row is None else of(row), style) for row in rows]

    optional = [
        TableColumn("level", cells(_level), 2),
        TableColumn("limit", cells(lambda problem: problem.spec.limited_by or ""), 3),
        TableColumn("yours", [_own(row, states) for row in rows], 4),
    ]
    return ResponsiveTable(
        [
            TableColumn("problem", names),
            *(column for column in optional if any(cell.plain for cell in column.cells)),
            TableColumn(
                "what to compute", cells(lambda problem: problem.spec.summary), 1, wraps_at=20
            ),
            TableColumn("dtypes", cells(_dtypes, "dim"), 5),
        ]
    )


def path_table(steps: Sequence[tuple[LearningStep, Problem]], states: States) -> ResponsiveTable:
    """The steps of the learning path, the first that is not accepted marked as the next."""
    open_steps = [step for step, problem in steps if not _is_accepted(problem, states)]
    marks = ["→" if open_steps[:1] == [step] else "" for step, _ in steps]
    columns = [
        TableColumn("", [Text(mark, "green") for mark in marks]),
        number_column("step", [Text(f"{number}") for number in range(1, len(steps) + 1)]),
        TableColumn("problem", [Text(problem.name, "bold") for _, problem in steps]),
        TableColumn("level", [Text(_level(problem)) for _, problem in steps], 2),
        TableColumn("yours", [_own(problem, states) for _, problem in steps], 1),
        TableColumn("what is new", [Text(step.teaches) for step, _ in steps], 3, wraps_at=30),
    ]
    return ResponsiveTable([c for c in columns if any(cell.plain for cell in c.cells)])


def state_fields(problem: Problem, states: States, path: Mapping[str, int]) -> dict[str, Any]:
    """What `grade problems --json` prints of a problem. `path` has its place on the learning path,
    from 1."""
    spec, state = problem.spec, states.get(problem.name)
    return {
        "name": problem.name,
        "digest": problem.digest,
        "title": spec.title,
        "summary": spec.summary,
        "topic": spec.topic,
        "difficulty": spec.difficulty,
        "limited_by": spec.limited_by,
        "dtypes": list(dtypes_of(spec)),
        "step": path.get(problem.name),
        "state": None if state is None else state.word,
        "best_us": None if state is None else state.best_us,
        "gpu": None if state is None else state.gpu,
    }


def _level(problem: Problem) -> str:
    level = problem.spec.difficulty
    return "" if level is None else f"{level}/{HARDEST}"


def _dtypes(problem: Problem) -> str:
    return " ".join(dtypes_of(problem.spec))


def _own(problem: Problem | None, states: States) -> Text:
    state = states.get(problem.name) if problem is not None else None
    if state is None:
        return Text()
    if state.best_us is not None:
        return Text(micros(state.best_us), "green")
    return Text(state.word, "green" if state.is_accepted else "yellow")


def _is_accepted(problem: Problem, states: States) -> bool:
    return problem.name in states and states[problem.name].is_accepted
