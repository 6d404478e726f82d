"""The inputs of every round of a benchmark case, each set from a seed of its own."""

from __future__ import annotations

import math
import random
from functools import cached_property

from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.problem_code import ProblemCode, Values, seed_for
from grader.problem import Problem, ProblemError
from grader.problem.spec import Case

VARIANTS = 1_000_000
"""Rounds of this number and above hold the case's variants: inputs of other kinds, such as very
large ones. Calls may take longer for some of them, so their times do not count."""


class RoundInputs:
    """Draws inputs for the sets of one case. `path` makes the seeds differ between attempts."""

    def __init__(
        self, problem: Problem, code: ProblemCode, sets: ArgumentSets, master: int, path: object
    ) -> None:
        self._problem = problem
        self._code = code
        self._sets = sets
        self._master = master
        self._path = path

    @property
    def variant_rounds(self) -> int:
        """Rounds that hold every variant once."""
        return math.ceil(len(self._variants) / self._sets.count)

    def fill(self, number: int, order: list[int]) -> None:
        """Write the inputs of round `number` into the shadow."""
        for i in order:
            self._sets.fill(i, self.draw(number, i))

    def draw(self, number: int, index: int, *label: str) -> Values:
        """Inputs of set `index` in round `number`; with a label, others like them."""
        case = self._sets.case
        path = ("benchmark", case.name, self._sets.count, self._path, number, index, *label)
        values = self._code.inputs(self._case_of(number, index), seed_for(self._master, *path))
        values |= self._code.weights(self._sets.inputs(index))
        for name, value in self._sets.scalars.items():
            if values[name] != value:  # the runner receives scalars once
                raise ProblemError(
                    f"{self._problem.folder / 'inputs.py'}: generate() gives another "
                    f"'{name}' for some call of benchmark '{case.name}'; make it depend on "
                    "nothing but the case's parameters, and not on those that variants change"
                )
        return values

    def changed_params(self, number: int, index: int) -> str:
        """The parameters of a set that differ from the case's, such as ``values=large``."""
        changed = self._case_of(number, index).params.items() - self._sets.case.params.items()
        return ", ".join(f"{name}={value}" for name, value in sorted(changed))

    def _case_of(self, number: int, index: int) -> Case:
        """The case; or in rounds of variants, each variant for one set, chosen by lot."""
        case, calls = self._sets.case, self._sets.count
        if number < VARIANTS or not self._variants:
            return case
        seed = seed_for(self._master, "variant", case.name, calls, number)
        shuffled = random.Random(seed).sample(range(calls), calls)
        at = (number - VARIANTS) * calls + shuffled.index(index)
        return self._variants[at] if at < len(self._variants) else case

    @cached_property
    def _variants(self) -> list[Case]:
        return self._problem.variants(self._sets.case)
