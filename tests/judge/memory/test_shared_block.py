"""The lent block: what is poisoned, what is published, what is seen, and what is given back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.arena.host import HostArena
from grader.arena.layout import GATE_BYTES, GUARD_BYTES
from grader.judge.memory.argument_sets import Loan, item_bytes
from grader.judge.memory.shared_block import (
    GUARD,
    LEAST_GROUND_BYTES,
    MOST_PROBES,
    POISON,
    Ground,
    _lattice,
    bits,
    poison_of,
)
from grader.judge.problem_code import ProblemCode, Values
from grader.problem import Problem
from tests.judge.conftest import SPEC, WriteProblem

# One output and no state: it is poisoned in the arena, and is no part of the image.
PLAIN_SPEC = SPEC.replace("role: inout", "role: in").replace(", calls: 3", "")
PLAIN_REFERENCE = "def reference(x, total, factor):\n    return x * factor\n"
COUNT = 3


@pytest.fixture(params=["state", "plain"])
def problem(request: pytest.FixtureRequest, write_problem: WriteProblem) -> Problem:
    """The tiny problem, with fp16 `out` and fp32 `total`; `plain` has no state to update."""
    if request.param == "state":
        return write_problem()
    return write_problem(spec=PLAIN_SPEC, reference=PLAIN_REFERENCE)


@pytest.fixture
def loan(problem: Problem) -> Iterator[Loan]:
    """Three sets of the fp16 case."""
    loan = lend(problem)
    yield loan
    loan.close()


def inputs_of(problem: Problem, name: str = "steps", seed: int = 1) -> Values:
    return ProblemCode(problem, "cpu").inputs(case_of(problem, name), seed)


def case_of(problem: Problem, name: str = "steps") -> Any:
    return next(case for case in problem.cases("test", "cpu") if case.name == name)


def lend(problem: Problem, count: int = COUNT, name: str = "steps") -> Loan:
    return Loan(problem, case_of(problem, name), inputs_of(problem, name), count, "cpu")


def runner_views(loan: Loan, index: int) -> Values:
    """One set as the runner sees it: tensors over the arena itself."""
    return loan._views(index, loan.lent, 0)


def work(loan: Loan, index: int) -> None:
    """What an honest kernel does with one set."""
    lent, factor = runner_views(loan, index), loan.inputs(index)["factor"]
    if "total" in loan.outputs(index):
        lent["total"] += lent["x"]
    lent["out"].copy_(lent["x"] * factor)


def all_poisoned(tensor: torch.Tensor) -> bool:
    return bool((bits(tensor) == poison_of(tensor)).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_poison_is_a_nan_that_no_arithmetic_makes(dtype: torch.dtype) -> None:
    word = torch.empty(1, dtype=dtype)
    bits(word).fill_(poison_of(word))
    assert word.isnan()
    made = [torch.tensor([float("nan")], dtype=dtype), torch.zeros(1, dtype=dtype) / 0]
    made += [-made[0], made[0] * 0, torch.full((1,), -1.0, dtype=dtype).sqrt()]
    assert all(nan.isnan() and int(bits(nan)) != poison_of(nan) for nan in made)
    assert int(bits(word)) % (1 << 8 * word.element_size()) == POISON[word.element_size()]


def test_before_a_call_every_output_is_poisoned(loan: Loan) -> None:
    chosen = list(range(COUNT))
    for index in chosen:
        work(loan, index)
    loan.ready(chosen)
    loan.publish(chosen)
    assert all(all_poisoned(runner_views(loan, index)["out"]) for index in chosen)


def test_mixed_sizes_and_state_are_poisoned_through_the_image(problem: Problem) -> None:
    one, steps = case_of(problem, "one"), case_of(problem, "steps")
    has_state = any(argument.role == "inout" for argument in problem.spec.args)
    assert item_bytes(problem, one) == (0 if has_state else 4)
    assert item_bytes(problem, steps) == (0 if has_state else 2)


def test_inputs_and_state_arrive_as_they_were_filled(problem: Problem, loan: Loan) -> None:
    for index in range(COUNT):
        loan.fill(index, inputs_of(problem, seed=10 + index))
    loan.publish(list(range(COUNT)))
    for index in range(COUNT):
        expected, lent = inputs_of(problem, seed=10 + index), runner_views(loan, index)
        assert torch.equal(lent["x"], expected["x"])
        assert torch.equal(lent["total"], expected["total"])
        assert loan.inputs(index)["factor"] == expected["factor"]


def test_one_chosen_set_is_published_and_no_other_touched(problem: Problem, loan: Loan) -> None:
    for index in range(COUNT):
        loan.fill(index, inputs_of(problem, seed=20 + index))
    work(loan, 1)  # so that its state and output have to be set anew
    loan.ready([1])
    before = loan.lent.clone()
    loan.publish([1])
    everything = loan.lent.clone()
    for index in range(COUNT):
        lent, fresh = runner_views(loan, index), inputs_of(problem, seed=20 + index)
        assert torch.equal(lent["x"], fresh["x"]) == (index == 1)
        assert torch.equal(lent["total"], fresh["total"]) == (index == 1)
    assert all_poisoned(runner_views(loan, 1)["out"])
    # Byte by byte: what differs from before belongs to set 1, or is the gate.
    ours = torch.zeros_like(everything, dtype=torch.bool)
    ours[:GATE_BYTES] = True
    for place in loan.layout.sets[1]:
        if not isinstance(place, int | float | list):
            ours[place.offset : place.offset + place.nbytes] = True
    assert not bool(((everything != before) & ~ours).any())


def test_publishing_opens_the_gate_of_its_round(loan: Loan) -> None:
    gate = loan.lent[:GATE_BYTES].view(torch.int32)
    for chosen in ([0, 1, 2], [1], [2, 0, 1]):
        number = loan.round
        loan.ready(chosen)
        assert int(gate) < number
        loan.publish(chosen)
        assert int(gate) == number < loan.round
        loan.collect()
        assert loan.tampered() is None


def test_all_sets_are_published_together_in_one_copy(problem: Problem, loan: Loan) -> None:
    for index in range(COUNT):
        loan.fill(index, inputs_of(problem, seed=30 + index))
    loan.publish(list(range(COUNT)))
    assert torch.equal(loan.lent[: loan.head_bytes], loan.image[: loan.head_bytes])


def test_outputs_are_taken_into_private_memory(loan: Loan) -> None:
    chosen = list(range(COUNT))
    loan.ready(chosen)
    loan.publish(chosen)
    for index in chosen:
        work(loan, index)
    loan.probe()
    loan.collect()
    assert loan.tampered() is None
    taken = loan.outputs(2)["out"].clone()
    assert torch.equal(taken, loan.inputs(2)["x"] * loan.inputs(2)["factor"])
    runner_views(loan, 2)["out"].zero_()
    assert torch.equal(loan.outputs(2)["out"], taken)


@pytest.mark.parametrize("chosen", [[0, 1, 2], [2, 0, 1], [1]])
def test_work_after_done_is_seen_wherever_it_is(loan: Loan, chosen: list[int]) -> None:
    for late in chosen:
        loan.ready(chosen)
        loan.publish(chosen)
        for index in set(chosen) - {late}:
            work(loan, index)
        loan.probe()
        work(loan, late)
        loan.collect()
        assert loan.was_late()


@pytest.mark.parametrize("chosen", [[0, 1, 2], [1]])
def test_work_that_ended_in_time_is_not_late(loan: Loan, chosen: list[int]) -> None:
    for _ in range(20):
        loan.ready(chosen)
        loan.publish(chosen)
        for index in chosen:
            work(loan, index)
        loan.probe()
        loan.collect()
        assert not loan.was_late()


@given(first=st.integers(0, 1 << 40), words=st.integers(1, 1 << 34))
def test_a_probe_reaches_over_all_outputs(first: int, words: int) -> None:
    lattice = _lattice(first, words)
    assert 1 <= len(lattice) <= MOST_PROBES
    assert min(words, MOST_PROBES // 2) <= len(lattice)
    assert lattice[0] >= first
    assert lattice[-1] < first + words
    # No stretch of a fortieth of the outputs goes unseen, the first and the last least of all.
    widest = max(lattice[0] - first, lattice.step - 1, first + words - 1 - lattice[-1])
    assert widest <= words // 40


def test_few_words_are_all_looked_at() -> None:
    assert _lattice(7, MOST_PROBES) == range(7, 7 + MOST_PROBES)


def test_the_probe_looks_elsewhere_every_time() -> None:
    places = {_lattice(0, 1 << 30)[500] for _ in range(50)}
    assert len(places) == 50


def test_a_probe_of_one_set_stays_within_it(loan: Loan) -> None:
    each = loan.tail_bytes // COUNT // 8
    loan.ready([1])
    assert int(loan._aims().min()) >= each
    assert int(loan._aims().max()) < 2 * each
    loan.ready([2, 0, 1])
    assert int(loan._aims().max()) < loan.tail_bytes // 8


@pytest.mark.parametrize("chosen", [[0, 1, 2], [1]])
def test_each_output_is_probed_where_it_is_and_not_only_beside_it(chosen: list[int]) -> None:
    """The smallest of outputs has one word among the sixty-four of its guard."""
    problem = Problem.load(Path(__file__).resolve().parents[3] / "problems/multi_tensor_adamw")
    loan = lend(problem, name="one_element")
    try:
        written = {
            offset // 8 + i * loan.tail_bytes // COUNT // 8
            for i in range(COUNT)
            for offset, _ in loan.written
        }
        seen: set[int] = set()
        for _ in range(60):
            loan.ready(chosen)
            last = loan._lattices[-1]
            assert len(last) == len(chosen)
            assert set(last) <= written
            seen |= set(last)
        assert len(seen) == len(loan.written) * len(chosen)
    finally:
        loan.close()


def test_what_comes_late_is_collected_again(loan: Loan) -> None:
    loan.ready([0])
    loan.publish([0])
    loan.collect()
    assert all_poisoned(loan.outputs(0)["out"])
    assert not loan.collect_again()
    work(loan, 0)
    assert loan.collect_again()
    assert not all_poisoned(loan.outputs(0)["out"])


def test_a_written_input_is_named_with_its_set(loan: Loan) -> None:
    runner_views(loan, 1)["x"][3] += 1
    loan.collect()
    assert loan.tampered() == "the input 'x' of set 1 was written"


@pytest.mark.parametrize("argument", ["x", "out"])
@pytest.mark.parametrize("index", [0, COUNT - 1])
def test_every_guard_byte_is_watched(loan: Loan, argument: str, index: int) -> None:
    where = "an input" if argument == "x" else "an output"
    names = [a.name for a in loan.problem.spec.args]
    place: Any = loan.layout.sets[index][names.index(argument)]
    end = place.offset + place.nbytes
    for offset in (0, GUARD_BYTES // 2, GUARD_BYTES - 1):
        loan.ready(list(range(COUNT)))
        loan.publish(list(range(COUNT)))
        loan.collect()
        assert loan.tampered() is None
        was = int(loan.lent[end + offset])
        loan.lent[end + offset] = was ^ 1
        loan.collect()
        assert loan.tampered() == f"memory beside {where} was written"
        loan.lent[end + offset] = was


@pytest.mark.parametrize("at", [0, GATE_BYTES - 1, GATE_BYTES, GUARD_BYTES - 1])
def test_the_head_of_the_block_is_guarded_too(loan: Loan, at: int) -> None:
    assert int(loan.lent[at]) == (0 if at < GATE_BYTES else GUARD)
    loan.lent[at] = 7
    loan.collect()
    assert loan.tampered() == "memory beside an input was written"


def test_a_loan_that_cannot_be_laid_out_leaves_no_descriptor(problem: Problem) -> None:
    template = inputs_of(problem)
    gc.collect()  # what other tests have left behind
    before = len(os.listdir("/proc/self/fd"))
    template["x"] = _Uncopyable(template["x"])
    with pytest.raises(RuntimeError, match="as if memory were short"):
        Loan(problem, case_of(problem), template, COUNT, "cpu")
    gc.collect()  # a mapping holds the file until the last tensor over it is gone
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_block_for_which_memory_is_short_leaves_no_descriptor(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise OSError("no memory")

    template = inputs_of(problem)
    gc.collect()  # what other tests have left behind
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("grader.arena.host.mmap.mmap", no_memory)
    with pytest.raises(OSError):
        Loan(problem, case_of(problem), template, COUNT, "cpu")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_ground_is_used_again_while_it_is_large_enough() -> None:
    ground = Ground("cpu")
    first = ground.arena(100)
    assert ground.arena(LEAST_GROUND_BYTES) is first
    larger = ground.arena(LEAST_GROUND_BYTES + 1)
    assert (larger.nbytes, first.fd) == (LEAST_GROUND_BYTES + 1, -1)
    assert ground.arena(4096) is larger
    ground.close()
    assert larger.fd == -1


def test_a_ground_has_the_room_that_it_is_made_with() -> None:
    ground = Ground("cpu", 3 * LEAST_GROUND_BYTES)
    assert ground.arena(100).nbytes == 3 * LEAST_GROUND_BYTES
    ground.close()


def test_a_ground_for_which_there_is_no_room_has_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = HostArena.create

    def create(nbytes: int) -> HostArena:
        if nbytes > 2 * LEAST_GROUND_BYTES:
            raise OSError("no memory")
        return make(nbytes)

    monkeypatch.setattr(HostArena, "create", create)
    ground = Ground("cpu", 3 * LEAST_GROUND_BYTES)
    assert ground.arena(100).nbytes == LEAST_GROUND_BYTES
    with pytest.raises(OSError):
        ground.arena(3 * LEAST_GROUND_BYTES)
    ground.close()


def test_loans_follow_each_other_on_one_ground(problem: Problem) -> None:
    """Each is laid out, poisoned and checked as one in memory of its own is."""
    ground = Ground("cpu")
    fds = []
    for count in (COUNT, 1, 2):
        template = inputs_of(problem)
        loan = Loan(problem, case_of(problem), template, count, "cpu", ground=ground)
        fds.append(loan.arena.fd)
        assert int(loan.lent[:GATE_BYTES].view(torch.int32)[0]) == 0  # no gate of another is open
        assert loan.lent.numel() == loan.layout.nbytes
        order = list(range(count))
        loan.ready(order)
        for index in order:
            assert all_poisoned(runner_views(loan, index)["out"]) or not loan.item_bytes
        loan.publish(order)
        for index in order:
            work(loan, index)
        loan.probe()
        loan.collect()
        assert (loan.was_late(), loan.tampered()) == (False, None)
        loan.behind[-1] ^= 1
        assert loan.tampered() == "memory behind the last output was written"
        expected = template["x"] * template["factor"]
        assert torch.equal(loan.outputs(count - 1)["out"], expected.to(torch.float16))
        loan.close()
        assert loan.arena.fd >= 0
    assert len(set(fds)) == 1
    ground.close()


def test_a_ground_that_cannot_grow_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise OSError("no memory")

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    ground = Ground("cpu")
    ground.arena(4096)
    with monkeypatch.context() as patched:
        patched.setattr("grader.arena.host.mmap.mmap", no_memory)
        with pytest.raises(OSError):
            ground.arena(2 * LEAST_GROUND_BYTES)
    ground.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_twice_is_fine(problem: Problem) -> None:
    loan = lend(problem)
    loan.close()
    loan.close()


@pytest.mark.parametrize("name", ["single_elements", "many_tensors", "mixed_sizes"])
def test_lists_of_many_tensors_go_through_whole(name: str) -> None:
    problem = Problem.load(Path(__file__).resolve().parents[3] / "problems/multi_tensor_adamw")
    loan = lend(problem, count=2, name=name)
    try:
        fresh = [inputs_of(problem, name, seed) for seed in (5, 6)]
        for index in range(2):
            loan.fill(index, fresh[index])
        loan.ready([0, 1])
        loan.publish([0, 1])
        for index in range(2):
            lent = runner_views(loan, index)
            for argument in ("params", "grads", "exp_avgs", "exp_avg_sqs"):
                assert all(map(torch.equal, lent[argument], fresh[index][argument]))
            for tensor in lent["params"]:
                tensor.neg_()
        loan.probe()
        loan.collect()
        assert loan.tampered() is None
        for index in range(2):
            taken = loan.outputs(index)["params"]
            assert all(map(torch.equal, taken, [-p for p in fresh[index]["params"]]))
        runner_views(loan, 1)["grads"][-1].zero_()
        assert loan.tampered() == "the input 'grads' of set 1 was written"
    finally:
        loan.close()


class _Uncopyable(torch.Tensor):
    """A tensor that has a shape and cannot be read."""

    def __new__(cls, tensor: torch.Tensor) -> _Uncopyable:
        return torch.Tensor._make_subclass(cls, tensor)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") == "copy_":
            raise RuntimeError("as if memory were short")
        pass_on: Any = super().__torch_function__
        return pass_on(function, types, args, kwargs or {})
