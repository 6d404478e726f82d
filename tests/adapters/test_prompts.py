from __future__ import annotations

import pytest

from grader.adapters.prompts import ANSWER_CHARS, NoSourceError, prompt, source_of
from grader.automation import load_problem
from tests.adapters.conftest import RIGHT, answer


def test_the_last_block_is_the_source() -> None:
    assert source_of(answer(RIGHT)) == RIGHT


def test_a_starter_file_is_found_in_its_own_prompt() -> None:
    problem = load_problem("softmax")
    asked = prompt(problem)
    assert asked.startswith(problem.statement.strip())
    assert "def softmax(x, out)" in source_of(asked)
    assert 'extern "C"' in source_of(prompt(problem, "cuda"))


@pytest.mark.parametrize("text", ["", "no code", "```python\nx = 1", "x = 1\n```"])
def test_an_answer_without_a_block(text: str) -> None:
    with pytest.raises(NoSourceError, match="no fenced block"):
        source_of(text)


def test_an_answer_that_is_too_long() -> None:
    with pytest.raises(NoSourceError, match="longer than"):
        source_of("`" * (ANSWER_CHARS + 1))


def test_an_answer_of_fences_alone_is_read_once() -> None:
    assert source_of("```\n" * 500_000) == ""
