"""The shared block: poison, publishing, probes, snapshots, and freeing it."""

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

from grader.arena.host_arena import HostArena
from grader.arena.layout import GATE_BYTES, GUARD_BYTES
from grader.judge.memory.argument_sets import OUT_OF_BOUNDS, ArgumentSets, item_bytes
from grader.judge.memory.shared_block import (
    GUARD,
    POISON,
    POLICY,
    ReusedArena,
    _strided_sample,
    bits,
    poison_of,
)
from grader.judge.problem_code import ProblemCode, Values
from grader.problem import Problem
from tests.judge.conftest import SPEC, WriteProblem

# One output and no state: it is poisoned in the arena and not part of the shadow.
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
def sets(problem: Problem) -> Iterator[ArgumentSets]:
    """Three sets of the fp16 case."""
    sets = lend(problem)
    yield sets
    sets.close()


def inputs_of(problem: Problem, name: str = "steps", seed: int = 1) -> Values:
    return ProblemCode(problem, "cpu").inputs(case_of(problem, name), seed)


def case_of(problem: Problem, name: str = "steps") -> Any:
    return next(case for case in problem.cases("test", "cpu") if case.name == name)


def lend(problem: Problem, count: int = COUNT, name: str = "steps") -> ArgumentSets:
    return ArgumentSets(problem, case_of(problem, name), inputs_of(problem, name), count, "cpu")


def runner_views(sets: ArgumentSets, index: int) -> Values:
    """One set as the runner sees it: tensors over the arena itself."""
    return sets._views(index, sets.lent, 0)


def work(sets: ArgumentSets, index: int) -> None:
    """What an honest kernel does with one set."""
    lent, factor = runner_views(sets, index), sets.inputs(index)["factor"]
    if "total" in sets.outputs(index):
        lent["total"] += lent["x"]
    lent["out"].copy_(lent["x"] * factor)


def all_poisoned(tensor: torch.Tensor) -> bool:
    return bool((bits(tensor) == poison_of(tensor)).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_poison_is_a_nan_that_no_arithmetic_produces(dtype: torch.dtype) -> None:
    word = torch.empty(1, dtype=dtype)
    bits(word).fill_(poison_of(word))
    assert word.isnan()
    made = [torch.tensor([float("nan")], dtype=dtype), torch.zeros(1, dtype=dtype) / 0]
    made += [-made[0], made[0] * 0, torch.full((1,), -1.0, dtype=dtype).sqrt()]
    assert all(nan.isnan() and int(bits(nan)) != poison_of(nan) for nan in made)
    assert int(bits(word)) % (1 << 8 * word.element_size()) == POISON[word.element_size()]


def test_before_a_call_every_output_is_poisoned(sets: ArgumentSets) -> None:
    chosen = list(range(COUNT))
    for index in chosen:
        work(sets, index)
    sets.prepare(chosen)
    sets.publish(chosen)
    assert all(all_poisoned(runner_views(sets, index)["out"]) for index in chosen)


def test_mixed_sizes_and_state_are_poisoned_through_the_shadow(problem: Problem) -> None:
    one, steps = case_of(problem, "one"), case_of(problem, "steps")
    has_state = any(argument.role == "inout" for argument in problem.spec.args)
    assert item_bytes(problem, one) == (0 if has_state else 4)
    assert item_bytes(problem, steps) == (0 if has_state else 2)


def test_inputs_and_state_arrive_as_they_were_filled(problem: Problem, sets: ArgumentSets) -> None:
    for index in range(COUNT):
        sets.fill(index, inputs_of(problem, seed=10 + index))
    sets.publish(list(range(COUNT)))
    for index in range(COUNT):
        expected, lent = inputs_of(problem, seed=10 + index), runner_views(sets, index)
        assert torch.equal(lent["x"], expected["x"])
        assert torch.equal(lent["total"], expected["total"])
        assert sets.inputs(index)["factor"] == expected["factor"]


def test_publishing_one_set_touches_no_other(problem: Problem, sets: ArgumentSets) -> None:
    for index in range(COUNT):
        sets.fill(index, inputs_of(problem, seed=20 + index))
    work(sets, 1)  # so that its state and output have to be reset
    sets.prepare([1])
    before = sets.lent.clone()
    sets.publish([1])
    everything = sets.lent.clone()
    for index in range(COUNT):
        lent, fresh = runner_views(sets, index), inputs_of(problem, seed=20 + index)
        assert torch.equal(lent["x"], fresh["x"]) == (index == 1)
        assert torch.equal(lent["total"], fresh["total"]) == (index == 1)
    assert all_poisoned(runner_views(sets, 1)["out"])
    # Byte by byte: what differs from before belongs to set 1, or is the gate.
    ours = torch.zeros_like(everything, dtype=torch.bool)
    ours[:GATE_BYTES] = True
    for place in sets.layout.sets[1]:
        if not isinstance(place, int | float | list):
            ours[place.offset : place.offset + place.nbytes] = True
    assert not bool(((everything != before) & ~ours).any())


def test_a_call_of_one_set_is_looked_at_alone(problem: Problem, sets: ArgumentSets) -> None:
    """What it does to other sets is overwritten before they are called."""
    for index in range(COUNT):
        sets.fill(index, inputs_of(problem, seed=40 + index))
    sets.publish(list(range(COUNT)))
    sets.snapshot.fill_(7)
    sets.prepare([1])
    sets.publish([1])
    work(sets, 1)
    runner_views(sets, 0)["x"][0] += 1
    runner_views(sets, 2)["out"].fill_(3)
    sets.probe()
    sets.take_snapshot()
    assert torch.equal(sets.outputs(1)["out"], sets.inputs(1)["x"] * sets.inputs(1)["factor"])
    assert (sets.changed_since_probe(), sets.snapshot_changed(), sets.tampered()) == (
        False,
        False,
        None,
    )
    each = sets.tail_bytes // COUNT
    assert bool((sets.snapshot[:each] == 7).all() and (sets.snapshot[2 * each :] == 7).all())
    runner_views(sets, 1)["x"][0] += 1
    assert sets.tampered() == "your kernel wrote into 'x', which is an input"
    sets.prepare([0, 1, 2])
    sets.publish([0, 1, 2])
    assert torch.equal(runner_views(sets, 0)["x"], inputs_of(problem, seed=40)["x"])
    assert all_poisoned(runner_views(sets, 2)["out"])


def test_publishing_opens_the_gate_of_its_round(sets: ArgumentSets) -> None:
    gate = sets.lent[:GATE_BYTES].view(torch.int32)
    for chosen in ([0, 1, 2], [1], [2, 0, 1]):
        number = sets.round
        sets.prepare(chosen)
        assert int(gate) < number
        sets.publish(chosen)
        assert int(gate) == number < sets.round
        sets.take_snapshot()
        assert sets.tampered() is None


def test_all_sets_are_published_together_in_one_copy(problem: Problem, sets: ArgumentSets) -> None:
    for index in range(COUNT):
        sets.fill(index, inputs_of(problem, seed=30 + index))
    sets.publish(list(range(COUNT)))
    assert torch.equal(sets.lent[: sets.head_bytes], sets.shadow[: sets.head_bytes])


def test_outputs_are_taken_into_private_memory(sets: ArgumentSets) -> None:
    chosen = list(range(COUNT))
    sets.prepare(chosen)
    sets.publish(chosen)
    for index in chosen:
        work(sets, index)
    sets.probe()
    sets.take_snapshot()
    assert sets.tampered() is None
    taken = sets.outputs(2)["out"].clone()
    assert torch.equal(taken, sets.inputs(2)["x"] * sets.inputs(2)["factor"])
    runner_views(sets, 2)["out"].zero_()
    assert torch.equal(sets.outputs(2)["out"], taken)


@pytest.mark.parametrize("chosen", [[0, 1, 2], [2, 0, 1], [1]])
def test_work_after_the_probe_is_detected_in_every_set(
    sets: ArgumentSets, chosen: list[int]
) -> None:
    for last in chosen:
        sets.prepare(chosen)
        sets.publish(chosen)
        for index in set(chosen) - {last}:
            work(sets, index)
        sets.probe()
        work(sets, last)
        sets.take_snapshot()
        assert sets.changed_since_probe()


@pytest.mark.parametrize("chosen", [[0, 1, 2], [1]])
def test_work_before_the_probe_changes_nothing_after_it(
    sets: ArgumentSets, chosen: list[int]
) -> None:
    for _ in range(20):
        sets.prepare(chosen)
        sets.publish(chosen)
        for index in chosen:
            work(sets, index)
        sets.probe()
        sets.take_snapshot()
        assert not sets.changed_since_probe()


@given(first=st.integers(0, 1 << 40), words=st.integers(1, 1 << 34))
def test_a_strided_sample_covers_all_outputs(first: int, words: int) -> None:
    sample = _strided_sample(first, words)
    assert 1 <= len(sample) <= POLICY.probe_words
    assert min(words, POLICY.probe_words // 2) <= len(sample)
    assert sample[0] >= first
    assert sample[-1] < first + words
    # No stretch of a fortieth of the outputs is left out, neither at the start nor at the end.
    widest = max(sample[0] - first, sample.step - 1, first + words - 1 - sample[-1])
    assert widest <= words // 40


def test_few_words_are_all_sampled() -> None:
    assert _strided_sample(7, POLICY.probe_words) == range(7, 7 + POLICY.probe_words)


def test_the_places_of_a_probe_are_secret() -> None:
    places = {_strided_sample(0, 1 << 30)[500] for _ in range(50)}
    assert len(places) == 50


def test_a_probe_of_one_set_stays_within_it(sets: ArgumentSets) -> None:
    each = sets.tail_bytes // COUNT // 8
    sets.prepare([1])
    assert int(sets._places().min()) >= each
    assert int(sets._places().max()) < 2 * each
    sets.prepare([2, 0, 1])
    assert int(sets._places().max()) < sets.tail_bytes // 8


@pytest.mark.parametrize("chosen", [[0, 1, 2], [1]])
def test_every_small_output_is_probed_and_not_only_its_guards(chosen: list[int]) -> None:
    """The smallest output is one word among the sixty-four of its guard."""
    problem = Problem.load(Path(__file__).resolve().parents[3] / "problems/multi_tensor_adamw")
    sets = lend(problem, name="one_element")
    try:
        written = {
            offset // 8 + i * sets.tail_bytes // COUNT // 8
            for i in range(COUNT)
            for offset, _ in sets.written
        }
        seen: set[int] = set()
        for _ in range(60):
            sets.prepare(chosen)
            last = sets._samples[-1]
            assert len(last) == len(chosen)
            assert set(last) <= written
            seen |= set(last)
        assert len(seen) == len(sets.written) * len(chosen)
    finally:
        sets.close()


def test_another_snapshot_holds_what_was_written_meanwhile(sets: ArgumentSets) -> None:
    sets.prepare([0])
    sets.publish([0])
    sets.take_snapshot()
    assert all_poisoned(sets.outputs(0)["out"])
    assert not sets.snapshot_changed()
    work(sets, 0)
    assert sets.snapshot_changed()
    assert not all_poisoned(sets.outputs(0)["out"])


def test_another_snapshot_is_taken_in_pieces(
    sets: ArgumentSets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it needs no room for a second one."""
    monkeypatch.setattr("grader.judge.memory.argument_sets.MOST_ELEMENTS", 16)
    last = 8 * 16 * ((sets.tail_bytes - 1) // (8 * 16))
    for byte in (0, last, sets.tail_bytes - 1):
        sets.take_snapshot()
        assert not sets.snapshot_changed()
        sets.lent[sets.head_bytes + byte] += 1
        assert sets.snapshot_changed()
        assert torch.equal(sets.snapshot, sets.lent[sets.head_bytes :])


def test_a_written_input_is_named(sets: ArgumentSets) -> None:
    runner_views(sets, 1)["x"][3] += 1
    sets.take_snapshot()
    assert sets.tampered() == "your kernel wrote into 'x', which is an input"


def test_outputs_that_no_call_wrote_are_named(sets: ArgumentSets) -> None:
    order = list(range(COUNT))
    sets.prepare(order)
    sets.publish(order)
    sets.take_snapshot()
    every = [a.name for a in sets.problem.spec.args if a.role != "in"]
    assert sets.untouched(1) == every
    runner_views(sets, 1)["out"].view(-1)[0] = 3
    sets.take_snapshot()
    assert (sets.untouched(0), sets.untouched(1)) == (every, every[:-1])


@pytest.mark.parametrize("argument", ["x", "out"])
@pytest.mark.parametrize("index", [0, COUNT - 1])
def test_every_guard_byte_is_watched(sets: ArgumentSets, argument: str, index: int) -> None:
    where = "an input" if argument == "x" else "an output"
    names = [a.name for a in sets.problem.spec.args]
    place: Any = sets.layout.sets[index][names.index(argument)]
    end = place.offset + place.nbytes
    for offset in (0, GUARD_BYTES // 2, GUARD_BYTES - 1):
        sets.prepare(list(range(COUNT)))
        sets.publish(list(range(COUNT)))
        sets.take_snapshot()
        assert sets.tampered() is None
        was = int(sets.lent[end + offset])
        sets.lent[end + offset] = was ^ 1
        sets.take_snapshot()
        assert sets.tampered() == OUT_OF_BOUNDS.format(f"beside {where}")
        sets.lent[end + offset] = was


@pytest.mark.parametrize("at", [0, GATE_BYTES - 1, GATE_BYTES, GUARD_BYTES - 1])
def test_the_head_of_the_block_is_guarded_too(sets: ArgumentSets, at: int) -> None:
    assert int(sets.lent[at]) == (0 if at < GATE_BYTES else GUARD)
    sets.lent[at] = 7
    sets.take_snapshot()
    assert sets.tampered() == OUT_OF_BOUNDS.format("beside an input")


def test_sets_that_cannot_be_laid_out_leave_no_descriptor(problem: Problem) -> None:
    template = inputs_of(problem)
    gc.collect()  # what other tests left behind
    before = len(os.listdir("/proc/self/fd"))
    template["x"] = _Uncopyable(template["x"])
    with pytest.raises(RuntimeError, match="as if memory were short"):
        ArgumentSets(problem, case_of(problem), template, COUNT, "cpu")
    gc.collect()  # a mapping holds the file until the last tensor over it is gone
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_block_that_runs_out_of_memory_leaves_no_descriptor(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise OSError("no memory")

    template = inputs_of(problem)
    gc.collect()  # what other tests left behind
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("grader.arena.host_arena.mmap.mmap", no_memory)
    with pytest.raises(OSError):
        ArgumentSets(problem, case_of(problem), template, COUNT, "cpu")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_reused_arena_stays_while_it_is_large_enough() -> None:
    reused = ReusedArena("cpu")
    first = reused.arena(100)
    assert reused.arena(POLICY.reused_bytes) is first
    larger = reused.arena(POLICY.reused_bytes + 1)
    assert (larger.nbytes, first.fd) == (POLICY.reused_bytes + 1, -1)
    assert reused.arena(4096) is larger
    reused.close()
    assert larger.fd == -1


def test_a_reused_arena_has_its_least_size() -> None:
    reused = ReusedArena("cpu", 3 * POLICY.reused_bytes)
    assert reused.arena(100).nbytes == 3 * POLICY.reused_bytes
    reused.close()


def test_a_reused_arena_without_room_for_its_least_size_has_what_a_block_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = HostArena.create

    def create(nbytes: int) -> HostArena:
        if nbytes > 2 * POLICY.reused_bytes:
            raise OSError("no memory")
        return make(nbytes)

    monkeypatch.setattr(HostArena, "create", create)
    reused = ReusedArena("cpu", 3 * POLICY.reused_bytes)
    assert reused.arena(100).nbytes == POLICY.reused_bytes
    with pytest.raises(OSError):
        reused.arena(3 * POLICY.reused_bytes)
    reused.close()


def test_blocks_follow_each_other_in_a_reused_arena(problem: Problem) -> None:
    """Each is laid out, poisoned and checked like one in its own arena."""
    reused = ReusedArena("cpu")
    fds = []
    for count in (COUNT, 1, 2):
        template = inputs_of(problem)
        sets = ArgumentSets(problem, case_of(problem), template, count, "cpu", reused=reused)
        fds.append(sets.arena.fd)
        assert int(sets.lent[:GATE_BYTES].view(torch.int32)[0]) == 0  # shut
        assert sets.lent.numel() == sets.layout.nbytes
        order = list(range(count))
        sets.prepare(order)
        for index in order:
            assert all_poisoned(runner_views(sets, index)["out"]) or not sets.item_bytes
        sets.publish(order)
        for index in order:
            work(sets, index)
        sets.probe()
        sets.take_snapshot()
        assert (sets.changed_since_probe(), sets.tampered()) == (False, None)
        sets.behind[-1] ^= 1
        assert sets.tampered() == OUT_OF_BOUNDS.format("behind the last output")
        expected = template["x"] * template["factor"]
        assert torch.equal(sets.outputs(count - 1)["out"], expected.to(torch.float16))
        sets.close()
        assert sets.arena.fd >= 0
    assert len(set(fds)) == 1
    reused.close()


def test_a_reused_arena_that_cannot_grow_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object) -> None:
        raise OSError("no memory")

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    reused = ReusedArena("cpu")
    reused.arena(4096)
    with monkeypatch.context() as patched:
        patched.setattr("grader.arena.host_arena.mmap.mmap", no_memory)
        with pytest.raises(OSError):
            reused.arena(2 * POLICY.reused_bytes)
    reused.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_twice_is_fine(problem: Problem) -> None:
    sets = lend(problem)
    sets.close()
    sets.close()


@pytest.mark.parametrize("name", ["single_elements", "many_tensors", "mixed_sizes"])
def test_lists_of_many_tensors_are_shared_whole(name: str) -> None:
    problem = Problem.load(Path(__file__).resolve().parents[3] / "problems/multi_tensor_adamw")
    sets = lend(problem, count=2, name=name)
    try:
        fresh = [inputs_of(problem, name, seed) for seed in (5, 6)]
        for index in range(2):
            sets.fill(index, fresh[index])
        sets.prepare([0, 1])
        sets.publish([0, 1])
        for index in range(2):
            lent = runner_views(sets, index)
            for argument in ("params", "grads", "exp_avgs", "exp_avg_sqs"):
                assert all(map(torch.equal, lent[argument], fresh[index][argument]))
            for tensor in lent["params"]:
                tensor.neg_()
        sets.probe()
        sets.take_snapshot()
        assert sets.tampered() is None
        for index in range(2):
            taken = sets.outputs(index)["params"]
            assert all(map(torch.equal, taken, [-p for p in fresh[index]["params"]]))
        runner_views(sets, 1)["grads"][-1].zero_()
        assert sets.tampered() == "your kernel wrote into 'grads', which is an input"
    finally:
        sets.close()


class _Uncopyable(torch.Tensor):
    """A tensor that has a shape but cannot be copied from."""

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
