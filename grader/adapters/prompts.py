"""What a model is asked, and the source in what it answers."""

from __future__ import annotations

from grader.problem import Problem
from grader.problem.scaffold import scaffold
from grader.submission import Language

ANSWER_CHARS = 4 << 20
"""Longest answer that is searched for a source."""

FENCE = "```"

_STARTERS: dict[Language, str] = {"python": "triton", "cuda": "cuda"}
_NAMES: dict[Language, str] = {"python": "Python (Triton or PyTorch)", "cuda": "CUDA C++"}


class NoSourceError(Exception):
    """The answer has no source. The text is one line."""


def prompt(problem: Problem, language: Language = "python") -> str:
    """The statement of a problem, what to answer, and a starter file. Markdown."""
    mark = "python" if language == "python" else "cuda"
    return (
        f"{problem.statement.strip()}\n\n"
        f"Write this kernel in {_NAMES[language]}. It must be right for all inputs, and fast. "
        "Answer with the whole file in one fenced block of code; of several, the last one counts. "
        "Start from this file:\n\n"
        f"{FENCE}{mark}\n{scaffold(problem, _STARTERS[language]).strip()}\n{FENCE}\n"
    )


def source_of(answer: str) -> str:
    """The last fenced block of code in an answer. Raises `NoSourceError` if there is none."""
    if len(answer) > ANSWER_CHARS:
        raise NoSourceError(f"the answer is longer than {ANSWER_CHARS:,} characters")
    source: str | None = None
    block: list[str] | None = None
    for line in answer.split("\n"):
        if not line.lstrip(" ").startswith(FENCE):
            if block is not None:
                block.append(line)
        elif block is None:
            block = []
        else:
            source, block = "\n".join([*block, ""]), None
    if source is None:
        raise NoSourceError("the answer has no fenced block of code that ends")
    return source
