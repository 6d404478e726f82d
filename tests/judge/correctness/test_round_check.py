"""Every output of a round: compared with PyTorch's answers, and one set through every bound."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grader.judge.correctness.check import CheckResult, ExpectedOutputs
from grader.judge.correctness.round_check import EAGER_ALLOWANCE, RoundCheck
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import poison
from grader.judge.problem_code import ProblemCode, Values
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Tolerance
from tests.judge.conftest import WriteProblem

COUNT = 4
EVERY = list(range(COUNT))


class ScriptedBatch:
    """Stands in for the batch comparison, which needs a GPU."""

    def __init__(self, doubtful: set[int], furthest: list[int]) -> None:
        self.found = doubtful, furthest
        self.asked = 0

    def suspect_sets(self) -> tuple[set[int], list[int]]:
        self.asked += 1
        return self.found


class Whole:
    """A round of the tiny problem whose outputs are right, and what was compared thoroughly."""

    def __init__(self, problem: Problem) -> None:
        self.case = problem.cases("benchmark", "cpu")[0]
        self.code = ProblemCode(problem, "cpu")
        self.sets = ArgumentSets(problem, self.case, self.code.inputs(self.case, 0), COUNT, "cpu")
        self.thorough: list[tuple[Values, Values, Values, Values]] = []
        self.run_eager_inputs: list[Values] = []
        plain = self.code.run_eager

        def noted(case: Case, inputs: Values) -> Values:
            self.run_eager_inputs.append(inputs)
            return plain(case, inputs)

        self.code.run_eager = noted  # type: ignore[method-assign]
        self.check = RoundCheck(problem, self.code, self.case, self.sets, self.compare)
        for index in EVERY:
            self.sets.fill(index, self.code.inputs(self.case, 10 + index))
            self.write(index, plain(self.case, self.sets.inputs(index)))
        self.failure: str | None = None

    def compare(
        self,
        code: ProblemCode,
        case: Case,
        outputs: Values,
        expected: ExpectedOutputs,
        explained: bool,
    ) -> CheckResult:
        assert (code, case, explained) == (self.code, self.case, True)
        self.thorough.append((outputs, expected.truth, expected.eager, expected.initial))
        return CheckResult(failure=self.failure)

    def write(self, index: int, values: Values) -> None:
        for name, value in values.items():
            self.sets.outputs(index)[name].copy_(value)

    def out(self, index: int) -> Any:
        return self.sets.outputs(index)["out"]

    def batch(self, doubtful: set[int], furthest: list[int]) -> ScriptedBatch:
        made: Any = ScriptedBatch(doubtful, furthest)
        self.check._batch = made
        return made  # type: ignore[no-any-return]

    def worst(self, *unchecked: int, thorough: bool = False) -> str | None:
        return self.check.worst(unchecked, thorough, lambda _, found: found).failure

    def checked(self, *unchecked: int, thorough: bool = False) -> list[int]:
        """The sets that `worst` checks, in order."""
        seen: list[int] = []

        def named(index: int, found: CheckResult) -> CheckResult:
            seen.append(index)
            return found

        self.check.worst(unchecked, thorough, named)
        return seen


@pytest.fixture
def whole(write_problem: WriteProblem) -> Iterator[Whole]:
    made = Whole(write_problem())
    yield made
    made.sets.close()


def test_right_outputs_pass_and_every_wrong_element_fails(whole: Whole) -> None:
    whole.check.begin(EVERY, True)
    assert whole.worst() is None
    for index in EVERY:
        right = float(whole.out(index)[-1])
        whole.out(index)[-1] = right + 1
        failure = whole.worst()
        assert failure is not None
        assert "'out'" in failure
        whole.out(index)[-1] = right


def test_the_change_of_a_state_is_checked(whole: Whole) -> None:
    whole.check.begin(EVERY, True)
    state = whole.sets.outputs(1)["total"]
    state.copy_(whole.sets.inputs(1)["total"])  # as if nothing had been added
    failure = whole.worst()
    assert failure is not None
    assert "'total'" in failure


def test_errors_of_a_state_are_measured_on_its_change(whole: Whole) -> None:
    """They would be small beside a large state."""
    inputs = whole.code.inputs(whole.case, 99)
    inputs["total"] = inputs["total"] + 1000
    whole.sets.fill(1, inputs)
    whole.write(1, whole.code.run_eager(whole.case, whole.sets.inputs(1)))
    whole.check.begin(EVERY, True)
    assert whole.worst() is None
    whole.sets.outputs(1)["total"].add_(3e-3)
    failure = whole.worst()
    assert failure is not None
    assert "'total'" in failure


@pytest.mark.parametrize(("share", "is_right"), [(0.75, True), (1.25, False)])
def test_against_pytorchs_answer_the_bounds_are_doubled(
    whole: Whole, share: float, is_right: bool
) -> None:
    """PyTorch's answer is off by as much itself."""
    whole.check.begin(EVERY, True)
    bounds = whole.sets.problem.spec.tolerances["fp32"]
    whole.out(2).mul_(1 + share * EAGER_ALLOWANCE * bounds.rel_l2)
    assert (whole.worst() is None) is is_right
    assert whole.check.is_right(2) is is_right
    assert whole.check.is_right(1)
    argument = next(a for a in whole.code.written if a.name == "out")
    doubled = whole.check._bounds(argument)
    assert (doubled.atol, doubled.rtol, doubled.rel_l2) == (
        2 * bounds.atol,
        2 * bounds.rtol,
        2 * bounds.rel_l2,
    )


def test_what_another_sets_reference_chooses_otherwise_goes_through_every_bound(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own precision it may take another expert than in float64, as the output does."""
    whole.check.begin(EVERY, True)
    whole.out(2)[-1] += 1
    assert whole.worst() is not None
    assert whole.thorough == []
    monkeypatch.setattr(whole.code, "is_local", False)
    assert whole.worst() is None
    assert len(whole.thorough) == 1
    whole.failure = "wrong by every bound"
    assert whole.worst() == whole.failure


def test_unchecked_sets_are_left_out(whole: Whole) -> None:
    whole.check.begin(EVERY, True)
    whole.out(1).zero_()
    assert whole.worst() is not None
    assert whole.worst(1) is None
    assert whole.worst(0, 2, 3) is not None
    assert whole.worst(*EVERY) is None
    assert whole.worst(*EVERY, thorough=True) is None
    assert whole.checked(1) == [0, 2, 3]


def test_without_a_batch_comparison_every_set_is_doubtful(whole: Whole) -> None:
    whole.check.begin([2, 3, 0, 1], True)
    assert set(whole.check.doubtful()) == set(EVERY)
    assert whole.checked() == [2, 3, 0, 1]


def test_only_doubtful_sets_are_checked_one_by_one(whole: Whole) -> None:
    whole.batch({1, 3}, EVERY)
    whole.check.begin(EVERY, True)
    assert set(whole.check.doubtful()) == {1, 3}
    assert whole.checked() == [1, 3]
    assert whole.checked(3) == [1]
    whole.out(3).zero_()
    assert whole.worst() is not None


def test_of_a_single_call_that_set_alone_is_checked(whole: Whole) -> None:
    """The batch comparison is of whole rounds."""
    batch = whole.batch(set(), EVERY)
    whole.check.begin([2], True)
    assert list(whole.check.doubtful()) == [2]
    assert whole.checked() == [2]
    assert whole.checked(thorough=True) == [2]
    assert len(whole.thorough) == 1
    assert batch.asked == 0


def test_a_round_is_compared_once_until_its_snapshot_is_another(whole: Whole) -> None:
    batch = whole.batch(set(), EVERY)
    whole.check.begin(EVERY, True)
    for _ in range(2):
        whole.check.doubtful()
        whole.worst()
    assert batch.asked == 1
    whole.check.refresh()
    whole.worst()
    assert batch.asked == 2
    whole.check.begin(EVERY, True)
    whole.check.doubtful()
    assert batch.asked == 3


def test_a_snapshot_that_was_taken_again_is_compared_anew(whole: Whole) -> None:
    batch = whole.batch({2}, EVERY)
    whole.check.begin(EVERY, True)
    whole.out(2).zero_()
    assert whole.worst() is not None
    batch.found = set(), EVERY
    assert whole.worst() is not None
    whole.check.refresh()
    assert whole.worst() is None


@pytest.mark.parametrize(
    ("unchecked", "one"), [((), 2), ((2,), 0), ((0, 2, 3), 1)], ids=["all", "some", "last"]
)
def test_the_checked_set_furthest_from_pytorchs_answer_goes_through_every_bound(
    whole: Whole, unchecked: tuple[int, ...], one: int
) -> None:
    whole.batch(set(), [2, 0, 3, 1])
    whole.check.begin(EVERY, True)
    assert whole.checked(*unchecked) == []
    assert whole.checked(*unchecked, thorough=True) == [one]
    ((outputs, truth, eager, inputs),) = whole.thorough
    assert outputs is whole.sets.outputs(one)
    assert truth["out"].dtype == torch.float64
    assert eager["out"].dtype == torch.float32
    expected = whole.code.run_eager(whole.case, whole.sets.inputs(one))["out"]
    assert torch.equal(eager["out"], expected)
    assert torch.allclose(truth["out"].float(), expected)
    assert torch.equal(inputs["x"], whole.sets.inputs(one)["x"])
    whole.failure = "too coarse"
    assert whole.worst(*unchecked, thorough=True) == "too coarse"
    assert whole.worst(*unchecked) is None


def test_without_a_batch_comparison_the_set_that_is_checked_thoroughly_is_drawn(
    whole: Whole,
) -> None:
    for _ in range(60):
        whole.check.begin(EVERY, True)
        whole.worst(thorough=True)
    chosen = {float(inputs["x"][0]) for *_, inputs in whole.thorough}
    assert chosen == {float(whole.sets.inputs(i)["x"][0]) for i in EVERY}
    assert len(whole.thorough) == 60


def test_what_is_particular_about_a_set_is_added_to_its_finding(whole: Whole) -> None:
    whole.check.begin(EVERY, True)
    whole.out(1).zero_()

    def named(index: int, found: CheckResult) -> CheckResult:
        return CheckResult(failure=f"set {index}" if found.failure else None)

    assert whole.check.worst([], False, named).failure == "set 1"


# --- PyTorch's own time


def test_pytorchs_time_is_that_of_whole_rounds_of_ordinary_inputs(whole: Whole) -> None:
    times_us = iter([10.0, 20.0, 30.0, None])
    computed: list[float | None] = []

    def compute() -> float | None:
        computed.append(next(times_us))
        return computed[-1]

    substitute: Any = SimpleNamespace(compute=compute)
    whole.check._eager = substitute
    whole.check.begin(EVERY, True)
    whole.check.begin([1], True)  # a single call
    whole.check.begin(EVERY, False)  # variants
    whole.check.begin(EVERY, True)
    whole.check.begin(EVERY, True)  # no graph
    assert computed == [10, 20, 30, None], "answers are needed for every whole round"
    assert whole.check.eager_us == [10, 30]
    whole.check.release()
    assert whole.check.eager_us == [10, 30]
    assert not hasattr(whole.check, "_eager")


# --- mixtures of true and stale inputs


class Copying:
    """The check of a kernel that copies, whose set 3 has a hundred deferred elements. `output`
    makes what the kernel wrote of the true inputs."""

    def __init__(self, output: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.true = torch.randn(4096, generator=torch.Generator().manual_seed(1))
        self.shadow = self.true.clone()
        self.run_eager: Callable[[Values], Values] = lambda inputs: {"out": inputs["x"].clone()}
        out = Argument(name="out", role="out", dtype="fp32")
        tolerance = Tolerance(atol=0, rtol=5e-7, rel_l2=5e-7)
        problem: Any = SimpleNamespace(
            spec=SimpleNamespace(tolerances={"fp32": tolerance}), dtype=lambda *_: "fp32"
        )
        code: Any = SimpleNamespace(
            run_eager=lambda _, inputs: self.run_eager(inputs), written=[out]
        )
        sets: Any = SimpleNamespace(
            layout=SimpleNamespace(sets=[None] * COUNT),
            count=COUNT,
            device="cpu",
            inputs=lambda _: {"x": self.shadow},
            outputs=lambda _: {"out": output(self.true)},
        )
        case = Case(name="any", params={})
        self.check = RoundCheck(problem, code, case, sets, lambda *_: CheckResult())

    @contextlib.contextmanager
    def stale(self) -> Iterator[None]:
        self.shadow[:100] = -self.true[:100]
        yield
        self.shadow.copy_(self.true)


def poisoned(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    poison(out[-50:])
    return out


@pytest.mark.parametrize("count", [0, 100, 50])
def test_inputs_that_were_written_while_they_were_read_explain_an_output(count: int) -> None:
    copying = Copying(lambda x: torch.cat([-x[:count], x[count:]]))
    assert copying.check.unexplained(3, copying.stale()) == ("out", 0)


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (torch.zeros_like, 3996),  # the others may be of a mixture
        (poisoned, 50),  # fewer than the answers differ in, but no mixture leaves any
        (lambda x: torch.cat([x[:100], -x[100:201], x[201:]]), 101),
        (lambda x: torch.cat([x[:100], -x[100:200], x[200:]]), 0),  # no more than the answers
    ],
    ids=["zeros", "never written", "wrong elsewhere", "as many as differ"],
)
def test_elements_that_no_mixture_explains_are_counted(
    output: Callable[[torch.Tensor], torch.Tensor], count: int
) -> None:
    copying = Copying(output)
    assert copying.check.unexplained(3, copying.stale()) == ("out", count)


def test_an_answer_that_is_a_view_of_the_inputs_is_taken_as_it_was() -> None:
    copying = Copying(lambda x: torch.cat([-x[:50], x[50:]]))
    copying.run_eager = lambda inputs: {"out": inputs["x"]}
    assert copying.check.unexplained(3, copying.stale()) == ("out", 0)


def test_the_output_with_the_most_unexplained_elements_is_named(whole: Whole) -> None:
    whole.check.begin(EVERY, True)
    whole.sets.outputs(1)["total"].add_(5)
    whole.out(1)[:10].zero_()
    name, count = whole.check.unexplained(1, contextlib.nullcontext())
    assert (name, count > 10) == ("total", True)
