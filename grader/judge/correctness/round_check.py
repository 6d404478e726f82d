"""Are the outputs of a whole round right? Every output of every round is checked.

Each set is compared with plain PyTorch's answer for it, all sets at once where that is possible;
and of some rounds one secret set goes through every bound against the float64 reference."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from grader.judge.correctness.batch_check import BatchCheck, EagerOutputs
from grader.judge.correctness.check import (
    CheckResult,
    ExpectedOutputs,
    check,
    check_outputs,
    check_residuals,
    combine_results,
    count_unwritten,
    errors_beyond_mixed_inputs,
    is_left_out,
    tolerance_of,
)
from grader.judge.correctness.error_bound import error_bounds
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.problem_code import ProblemCode, Values, map_tensors
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Tolerance

EAGER_ALLOWANCE = 2.0
"""Against PyTorch's answer, itself off by as much, the elementwise and L2 bounds are doubled."""

Compare = Callable[..., CheckResult]
"""`check_outputs`: every output of one call through every bound."""


class RoundCheck:
    """Checks the snapshot of one round after another."""

    def __init__(
        self,
        problem: Problem,
        code: ProblemCode,
        case: Case,
        sets: ArgumentSets,
        compare: Compare = check_outputs,
    ) -> None:
        self._problem = problem
        self._code = code
        self._case = case
        self._sets = sets
        self._compare = compare
        self._eager = EagerOutputs(code, case, sets)
        self._batch = BatchCheck.build(self._eager, sets, self._bounds)
        self._order: list[int] = []
        self._found: tuple[set[int], list[int]] | None = None
        self.eager_us: list[float] = []
        """What PyTorch took per call in each whole round of ordinary inputs, where it is known."""

    def begin(self, order: list[int], is_ordinary: bool) -> None:
        """The snapshot is of a round in this order. Computes PyTorch's answers to it."""
        self._order = order
        self._found = None
        if len(order) == self._sets.count:
            eager_us = self._eager.compute()
            if eager_us is not None and is_ordinary:
                self.eager_us.append(eager_us)

    def refresh(self) -> None:
        """The snapshot has been taken again."""
        self._found = None

    def doubtful(self) -> Collection[int]:
        """Sets that the batch comparison finds wrong; all of them where it cannot compare."""
        return self._compared()[0]

    def _compared(self) -> tuple[set[int], list[int]]:
        """The doubtful sets, and all sets, those furthest from PyTorch's answer first."""
        if self._found is None:
            if self._batch is None or len(self._order) == 1:
                shuffled = secrets.SystemRandom().sample(self._order, len(self._order))
                self._found = set(self._order), shuffled
            else:
                self._found = self._batch.suspect_sets()
        return self._found

    def worst(
        self,
        unchecked: Collection[int],
        thorough: bool,
        named: Callable[[int, CheckResult], CheckResult],
    ) -> CheckResult:
        """The worst finding over all sets but the `unchecked`. With `thorough`, the set furthest
        from PyTorch's answer goes through every bound. `named(i, finding)` adds what is particular
        about set i."""
        doubtful, furthest = self._compared()
        checked = [i for i in self._order if i not in unchecked]
        one = next((i for i in furthest if i in checked), None)
        looked = [i for i in checked if i in doubtful or (thorough and i == one)]
        return combine_results([named(i, self.check(i, thorough and i == one)) for i in looked])

    def check(self, index: int, thorough: bool, explained: bool = True) -> CheckResult:
        """Check the outputs of one set: through every bound, or against PyTorch's answer.
        `explained` is that of `grader.judge.correctness.check.check`."""
        inputs, outputs = self._sets.inputs(index), self._sets.outputs(index)
        if thorough:
            has_budget = self._code.has_budget
            eager = self._code.run_eager(self._case, inputs) if has_budget else {}
            truth = self._code.run_reference(self._case, inputs)
            bounds = error_bounds(self._code, self._case, inputs, truth)
            expected = ExpectedOutputs(truth, inputs, eager, bounds)
            return self._compare(self._code, self._case, outputs, expected, explained)
        compared = self._against_eager(inputs, outputs, explained)
        found = combine_results(check_residuals(self._code, self._case, outputs, inputs) + compared)
        # A set's reference may choose otherwise in float64, as the output may (`is_incomparable`).
        may_differ = found.failure is not None and not self._code.is_local
        return self.check(index, True, explained) if may_differ else found

    def _against_eager(self, inputs: Values, outputs: Values, explained: bool) -> list[CheckResult]:
        """The check of each output against PyTorch's answer, which is freed before others begin."""
        eager = self._code.run_eager(self._case, inputs)
        findings = []
        for argument in self._code.written:
            if not argument.unique or is_left_out(argument, outputs[argument.name]):
                continue
            initial = inputs[argument.name] if argument.role == "inout" else None
            name, tolerance = argument.name, self._bounds(argument)
            findings.append(
                check(name, outputs[name], eager[name], None, tolerance, initial, None, explained)
            )
        return findings

    def is_right(self, index: int) -> bool:
        """Whether a set's outputs match PyTorch's answer for the inputs in the shadow. Sets whose
        inputs came late are often wrong, and need no explanation."""
        return self.check(index, False, explained=False).failure is None

    def unexplained(self, index: int, stale: AbstractContextManager[None]) -> tuple[str, int]:
        """The output of a set with the most elements that were never written, or are wrong by more
        than any mixture of true and stale inputs explains; and how many those are."""
        inputs, outputs = self._sets.inputs(index), self._sets.outputs(index)
        right = self._code.run_eager(self._case, inputs)
        with stale:
            # A copy, since an answer may be a view of the inputs.
            old = map_tensors(
                self._code.run_eager(self._case, inputs), lambda answer: answer.clone()
            )
        wrong = {}
        for argument in self._code.written:
            if is_left_out(argument, outputs[argument.name]):
                continue
            name, bounds = argument.name, self._bounds(argument)
            initial = inputs[name] if argument.role == "inout" else None
            wrong[name] = count_unwritten(outputs[name]) or errors_beyond_mixed_inputs(
                outputs[name], right[name], old[name], bounds, initial
            )
        return max(wrong.items(), key=lambda found: found[1])

    def _bounds(self, argument: Argument) -> Tolerance:
        """The bounds of an output that is compared with PyTorch's answer."""
        bounds = tolerance_of(self._problem, argument, self._case)
        return bounds.model_copy(
            update={
                "atol": bounds.atol * EAGER_ALLOWANCE,
                "rtol": bounds.rtol * EAGER_ALLOWANCE,
                "rel_l2": bounds.rel_l2 * EAGER_ALLOWANCE,
            }
        )

    def release(self) -> None:
        """Free the device memory; what was measured stays."""
        del self._batch, self._eager
