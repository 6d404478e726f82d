"""The inputs of each round: fresh in every set, and those of the case's variants."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.judge.problem_code import Values
from grader.judge.round_inputs import VARIANTS, RoundInputs
from grader.problem import ProblemError
from grader.problem.spec import Case

CASE = Case(name="any", params={"values": "normal"})
OTHERS = [Case(name="any", params={"values": kind}) for kind in ("large", "masked", "equal")]


class RecordingCode:
    """A problem's code that notes the case and the seed of all inputs that are drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[Case, int]] = []
        self.values: Values = {}

    def inputs(self, case: Case, seed: int) -> Values:
        self.drawn.append((case, seed))
        return self.values | {"seed": seed}

    def weights(self, held: Values) -> Values:
        return held


class RecordingSets:
    """Sets that note what is written into them."""

    def __init__(self, count: int, **scalars: float) -> None:
        self.case, self.count, self.scalars = CASE, count, scalars
        self.filled: list[tuple[int, Values]] = []

    def fill(self, index: int, values: Values) -> None:
        self.filled.append((index, values))

    def inputs(self, index: int) -> Values:
        return {}


def inputs_of(
    sets: RecordingSets, code: RecordingCode, master: int = 1, path: object = True
) -> RoundInputs:
    problem: Any = SimpleNamespace(variants=lambda _: OTHERS, folder=Path("scale"))
    given: Any = (problem, code, sets, master, path)
    return RoundInputs(*given)


def test_every_set_of_every_round_has_its_own_seed() -> None:
    sets, code = RecordingSets(4), RecordingCode()
    inputs = inputs_of(sets, code)
    for number in (-10, 0, 1, VARIANTS):
        inputs.fill(number, [2, 0, 1, 3])
    assert [index for index, _ in sets.filled] == [2, 0, 1, 3] * 4
    assert len({seed for _, seed in code.drawn}) == 16
    assert [values["seed"] for _, values in sets.filled] == [seed for _, seed in code.drawn]


def test_inputs_can_be_drawn_again() -> None:
    sets, code = RecordingSets(4), RecordingCode()
    first = inputs_of(sets, code).draw(3, 2)
    assert inputs_of(sets, code).draw(3, 2) == first


@pytest.mark.parametrize(
    ("master", "path", "count", "label"),
    [(2, True, 4, []), (1, False, 4, []), (1, True, 5, []), (1, True, 4, ["other"])],
    ids=["another grading", "another attempt", "other rounds", "other inputs"],
)
def test_other_inputs_have_another_seed(
    master: int, path: object, count: int, label: list[str]
) -> None:
    """Another attempt may have as many calls: answers kept from the first must not fit."""
    code = RecordingCode()
    inputs_of(RecordingSets(4), code).draw(3, 2)
    inputs_of(RecordingSets(count), code, master, path).draw(3, 2, *label)
    assert len({seed for _, seed in code.drawn}) == 2


def test_rounds_of_variants_have_each_once_and_other_rounds_none() -> None:
    def variants(number: int, calls: int, master: int = 1) -> dict[int, str]:
        code = RecordingCode()
        inputs = inputs_of(RecordingSets(calls), code, master)
        inputs.fill(number, list(range(calls)))
        cases = [case for case, _ in code.drawn]
        named = {i: inputs.changed_params(number, i) for i in range(calls)}
        assert named == {
            i: "" if case is CASE else f"values={case.params['values']}"
            for i, case in enumerate(cases)
        }
        return {i: str(c.params["values"]) for i, c in enumerate(cases) if c is not CASE}

    rounds = [variants(VARIANTS, 20, master) for master in range(12)]
    assert all(sorted(one.values()) == ["equal", "large", "masked"] for one in rounds)
    assert len({i for one in rounds for i in one}) > 10, "elsewhere in each grading"
    few = [variants(VARIANTS + number, 2) for number in (0, 1)]
    assert [len(one) for one in few] == [2, 1]
    assert sorted([*few[0].values(), *few[1].values()]) == ["equal", "large", "masked"]
    assert not any(variants(number, 20) for number in (-10, 0, 1, 40))


@pytest.mark.parametrize(("count", "rounds"), [(1, 3), (2, 2), (3, 1), (20, 1)])
def test_there_are_as_many_rounds_of_variants_as_they_need(count: int, rounds: int) -> None:
    assert inputs_of(RecordingSets(count), RecordingCode()).variant_rounds == rounds


def test_without_variants_there_are_no_such_rounds() -> None:
    problem: Any = SimpleNamespace(variants=lambda _: [])
    sets: Any = RecordingSets(4)
    code: Any = RecordingCode()
    inputs = RoundInputs(problem, code, sets, 1, True)
    assert inputs.variant_rounds == 0
    inputs.fill(VARIANTS, [0, 1])
    assert [case for case, _ in code.drawn] == [CASE] * 2
    assert inputs.changed_params(VARIANTS, 0) == ""


def test_all_changed_parameters_of_a_variant_are_named() -> None:
    problem: Any = SimpleNamespace(
        variants=lambda _: [Case(name="any", params={"values": "large", "far": 1})]
    )
    sets: Any = RecordingSets(1)
    code: Any = RecordingCode()
    inputs = RoundInputs(problem, code, sets, 1, True)
    assert inputs.changed_params(VARIANTS, 0) == "far=1, values=large"


def test_a_scalar_that_differs_between_sets_is_an_error_of_the_problem() -> None:
    """The runner receives scalars once, for all sets."""
    sets, code = RecordingSets(2, factor=2.0), RecordingCode()
    code.values = {"factor": 2.0}
    inputs = inputs_of(sets, code)
    inputs.fill(1, [0, 1])
    code.values = {"factor": 3.0}
    with pytest.raises(
        ProblemError, match=r"scale/inputs\.py: generate\(\) gives another 'factor'"
    ):
        inputs.fill(2, [0, 1])
