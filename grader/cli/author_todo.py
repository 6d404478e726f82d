"""What a problem still lacks, in the order in which to add it.

Read from the folder, the example submissions and the recorded times; nothing of the problem runs
here. What the check of the problem found is added by `grade verify`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grader.cli.examples import Example, examples
from grader.judge.timing.baseline_store import load_recorded
from grader.problem import Problem
from grader.problem.load import CHECKS_FILE
from grader.problem.spec import FLOATING_DTYPES
from grader.report import Verdict
from grader.submission import LANGUAGES, language_of

State = Literal["done", "missing", "to do", "unknown"]
"""`missing` is required, `to do` is not; `unknown` was not reached."""

UNFINISHED = "TODO"
"""The word with which `grade new-problem` marks what is left to write."""

SECTIONS = {
    "the arguments": r"argument",
    "bytes and operations": r"byte|operation|cost|limit",
    "what limits it": r"limit",
    "what to try": r"\btry\b|start|idea",
    "how it is checked": r"check",
}
"""What a statement tells besides its title → a pattern of the heading that tells it."""

_HEADING = re.compile(r"^#{2,6} +(.+)$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

_HELD_BY = {"reference.py": "reference", "inputs.py": "inputs", CHECKS_FILE: "checks"}
"""File → the step whose check runs it."""


@dataclass(frozen=True)
class TodoStep:
    """One step of writing a problem."""

    name: str
    state: State
    detail: str = ""
    """What there is, or what to do."""


def steps(problem: Problem, error: str | None, failed: str | None) -> list[TodoStep]:
    """All steps, in order.

    error: the error that ended the check, if one did.
    failed: what the check found, if it ended and found something.
    """
    found = examples(problem)
    return [
        _files(problem, error),
        *_checked(problem, error, failed),
        _domain(problem),
        _accumulate(problem),
        _implementations(problem, "HONEST", "honest implementations", "that must pass"),
        _implementations(
            problem, "MUTANTS", "mutants", "that must fail, and which all of them are"
        ),
        _statement(problem),
        *_examples(problem, found),
        _expert(problem),
        _times(problem),
    ]


def _files(problem: Problem, error: str | None) -> TodoStep:
    spec = problem.spec
    if error is not None and error.startswith(str(problem.folder / "problem.yaml")):
        return TodoStep("files and keys", "missing", error)
    optional = {
        "topic": spec.topic,
        "difficulty": spec.difficulty,
        "limited_by": spec.limited_by,
    }
    absent = [key for key, value in optional.items() if value is None]
    if absent:
        detail = f"problem.yaml has no {', '.join(absent)}, by which problems are listed"
        return TodoStep("files and keys", "to do", detail)
    if UNFINISHED in spec.title + spec.summary:
        return TodoStep("files and keys", "to do", f"problem.yaml: the summary says {UNFINISHED}")
    return TodoStep("files and keys", "done")


def _checked(problem: Problem, error: str | None, failed: str | None) -> list[TodoStep]:
    """What running the problem's code has shown."""
    names = {
        "reference": "reference.py is filled in",
        "inputs": "inputs differ by seed",
        "checks": "the check holds",
    }
    if error is None:
        results: dict[str, TodoStep] = {key: TodoStep(name, "done") for key, name in names.items()}
        if failed is not None:
            results["checks"] = TodoStep(names["checks"], "missing", failed)
        return list(results.values())
    culprit = next(
        (key for file, key in _HELD_BY.items() if error.startswith(str(problem.folder / file))),
        None if error.startswith(str(problem.folder / "problem.yaml")) else "checks",
    )
    return [
        TodoStep(name, "missing", error)
        if key == culprit
        else TodoStep(name, "unknown", "not reached")
        for key, name in names.items()
    ]


def _domain(problem: Problem) -> TodoStep:
    if problem.spec.domain:
        return TodoStep("domain", "done", f"{len(problem.spec.domain)} entries")
    return TodoStep(
        "domain",
        "to do",
        "problem.yaml has none: code that is right only for the listed shapes passes",
    )


def _accumulate(problem: Problem) -> TodoStep:
    spec = problem.spec
    cases = [*spec.tests, *spec.benchmarks]
    is_floating = any(
        problem.dtype(argument, case) in FLOATING_DTYPES
        for argument in spec.args
        if argument.role != "in"
        for case in cases
    )
    if spec.accumulate is not None:
        return TodoStep(
            "accumulate", "done", f"{spec.accumulate.dtype}, {spec.accumulate.terms} terms"
        )
    if not is_floating:
        return TodoStep("accumulate", "done", "not needed: the outputs are exact")
    return TodoStep(
        "accumulate",
        "to do",
        "problem.yaml has none: the error budget follows from eager PyTorch's error alone",
    )


def _implementations(problem: Problem, table: str, what: str, purpose: str) -> TodoStep:
    count = _entries(problem, table)
    if count:
        return TodoStep(
            what, "done", f"{count} in {CHECKS_FILE}" if count > 0 else f"in {CHECKS_FILE}"
        )
    return TodoStep(what, "to do", f"{CHECKS_FILE} has no {table}: implementations {purpose}")


def _entries(problem: Problem, table: str) -> int:
    """The entries of a dict in `checks.py`, as written; -1 if they are computed, 0 without it."""
    source = problem.files.get(CHECKS_FILE, b"")
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return 0
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == table for one in targets):
            value = getattr(node, "value", None)
            return len(value.keys) if isinstance(value, ast.Dict) else -1
    return 0


def _statement(problem: Problem) -> TodoStep:
    text = _FENCE.sub("", problem.statement)
    headings = [heading.casefold() for heading in _HEADING.findall(text)]
    absent = [
        section
        for section, pattern in SECTIONS.items()
        if not any(re.search(pattern, heading) for heading in headings)
    ]
    places = text.count(UNFINISHED)
    faults = [f"has no section on {', '.join(absent)}"] if absent else []
    faults += [f"says {UNFINISHED} in {places} places"] if places else []
    if faults:
        return TodoStep("statement", "to do", f"statement.md {', and '.join(faults)}")
    return TodoStep("statement", "done", f"{len(headings)} sections")


def _examples(problem: Problem, found: Sequence[Example]) -> list[TodoStep]:
    """Accepted ones of each language, wrong ones, hostile ones."""
    folder = f"submissions/{problem.name}"
    accepted = [language_of(one.path) for one in found if one.expected is Verdict.ACCEPTED]
    kinds: dict[str, tuple[int, str]] = {}
    for suffix, language in LANGUAGES.items():
        honest = accepted.count(language)
        kinds[f"accepted {suffix} example"] = honest, f"{folder}/accepted/"
    wrong = sum(one.expected is Verdict.WRONG_ANSWER for one in found)
    kinds["wrong example"] = wrong, f"{folder}/wrong_answer/"
    hostile = sum(
        one.expected is Verdict.REJECTED or one.path.name.startswith("hostile_") for one in found
    )
    kinds["hostile example"] = hostile, f"{folder}/rejected/, or hostile_* in the verdict it gets"
    return [
        TodoStep(name, "done", f"{count} in submissions/")
        if count
        else TodoStep(name, "to do", f"none in {place}")
        for name, (count, place) in kinds.items()
    ]


def _expert(problem: Problem) -> TodoStep:
    folder = problem.folder.resolve().parent.parent / "reference" / problem.name
    kernels = [path.name for path in sorted(folder.glob("*")) if path.suffix in LANGUAGES]
    if kernels:
        return TodoStep("reference kernel", "done", ", ".join(kernels))
    return TodoStep("reference kernel", "to do", f"none in reference/{problem.name}/")


def _times(problem: Problem) -> TodoStep:
    gpus = [one.hardware for one in load_recorded(problem) if one.device == "cuda"]
    if gpus:
        return TodoStep("recorded times", "done", ", ".join(gpus))
    return TodoStep(
        "recorded times",
        "to do",
        f"none of this version on a GPU: run `grade baseline {problem.name} --record` on one",
    )
