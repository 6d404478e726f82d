"""Groups, filters, and the learning path."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.problem import Problem
from grader.problem.catalogue import (
    TOPICS,
    Filter,
    by_topic,
    dtypes_of,
    learning_path,
    steps_among,
)
from tests.problem.conftest import MakeFolder

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
ALL = [Problem.load(folder.parent) for folder in sorted(PROBLEMS.glob("*/problem.yaml"))]


def names(problems: list[Problem]) -> list[str]:
    return [problem.name for problem in problems]


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.name)
def test_every_problem_of_ours_can_be_listed(problem: Problem) -> None:
    spec = problem.spec
    assert spec.topic in TOPICS
    assert spec.difficulty is not None
    assert spec.limited_by is not None
    assert dtypes_of(spec)


def test_the_learning_path_names_problems_that_exist() -> None:
    steps = learning_path()
    assert len({step.problem for step in steps}) == len(steps)
    assert [step for step, _ in steps_among(ALL)] == list(steps)
    assert steps[0].problem == "square"
    assert steps[-1].problem == "flash_attention"


def test_steps_without_their_problem_are_left_out() -> None:
    softmax = [problem for problem in ALL if problem.name == "softmax"]
    assert [step.problem for step, _ in steps_among(softmax)] == ["softmax"]
    assert steps_among([]) == []


def test_groups_are_in_the_order_of_topics_the_easiest_first(make_folder: MakeFolder) -> None:
    groups = by_topic([Problem.load(make_folder()), *reversed(ALL)])
    topics = [topic for topic, _ in groups]
    assert topics[-1] is None, "without a topic"
    assert topics[:-1] == [topic for topic in TOPICS if topic in topics]
    assert names(groups[-1][1]) == ["scale"]
    for _, problems in groups:
        levels = [problem.spec.difficulty or 6 for problem in problems]
        assert levels == sorted(levels)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (Filter(), {"softmax", "int4_matmul", "multi_tensor_adamw", "flash_attention"}),
        (Filter(topic="attention"), {"flash_attention"}),
        (Filter(dtype="uint8"), {"int4_matmul"}),
        (Filter(dtype="fp32"), {"softmax", "multi_tensor_adamw"}),
        (Filter(limited_by="compute"), {"flash_attention"}),
        (Filter(words="SOFTMAX rows"), {"softmax"}),
        (Filter(words="adamw optimizers"), {"multi_tensor_adamw"}),
        (Filter(topic="fusion", dtype="uint8"), set()),
        (Filter(topic="<b>"), set()),
    ],
)
def test_a_filter(wanted: Filter, shown: set[str]) -> None:
    ours = {"softmax", "int4_matmul", "multi_tensor_adamw", "flash_attention"}
    matching = {problem.name for problem in ALL if wanted.matches(problem)}
    assert matching & ours == shown
    assert bool(wanted) == (wanted != Filter())


def test_dtypes_are_those_of_tensors() -> None:
    by_name = {problem.name: problem.spec for problem in ALL}
    assert dtypes_of(by_name["softmax"]) == ("fp32", "fp16", "bf16")
    assert dtypes_of(by_name["int4_matmul"]) == ("fp16", "uint8")
    assert dtypes_of(by_name["multi_tensor_adamw"]) == ("fp32",)
