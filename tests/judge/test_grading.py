"""`Grading`: shapes of the cases that are compiled beside the tests, their memory, and what is
measured before the submission is loaded."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.arena import unpack
from grader.judge import grading as module
from grader.judge.case_shapes import alternated, case_shapes
from grader.judge.correctness.check import CheckResult
from grader.judge.grading import CALIBRATED_S, PRECOMPILE_BYTES, Grading
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.problem_code import ProblemCode
from grader.judge.record import Device, Effort, Record
from grader.judge.verdict import Fault, SubmissionFault, decide
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import Rule, Verdict
from tests.judge.conftest import DOMAIN, SPEC, WriteProblem

ROOT = Path(__file__).resolve().parents[2]


def weighing(*weights: int) -> list[Case]:
    return [Case(name=f"of_{weight}", params={"weight": weight}) for weight in weights]


def weight_of(case: Case) -> float:
    weight = case.params["weight"]
    assert isinstance(weight, int)
    return weight


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        ((), []),
        ((5,), [5]),
        ((1, 2, 3, 9, 8), [1, 9, 2, 8, 3]),
        ((9, 1, 2), [9, 1, 2]),
    ],
)
def test_cases_are_compiled_alternating_between_order_and_weight(
    weights: tuple[int, ...], order: list[int]
) -> None:
    assert [weight_of(case) for case in alternated(weighing(*weights), weight_of)] == order


def test_every_case_has_a_shape_and_equal_cases_share_one() -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    shapes = case_shapes(problem, ProblemCode(problem, "cpu"), "cpu")
    tests = [case.name for case in problem.cases("test", "cpu")]
    benchmarks = [case.name for case in problem.cases("benchmark", "cpu")]
    assert sorted(shapes.index) == sorted(tests + benchmarks)
    assert sorted(set(shapes.index.values())) == list(range(len(shapes.shapes)))
    assert shapes.index["shifted_up"] == shapes.index["shifted_down"]
    assert [shapes.index[name] for name in (tests[0], "widest")] == [0, 1]
    x = unpack(shapes.shapes[0]["values"][0])
    assert getattr(x, "shape", None) == (1, 1)


def test_a_grading_of_one_kind_of_case_compiles_no_other() -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    code = ProblemCode(problem, "cpu")
    kinds = (problem.cases("test", "cpu"), problem.cases("benchmark", "cpu"))
    tests = case_shapes(problem, code, "cpu", with_benchmarks=False)
    benchmarks = case_shapes(problem, code, "cpu", with_tests=False)
    for shapes, cases in zip((tests, benchmarks), kinds, strict=True):
        assert sorted(shapes.index) == sorted(case.name for case in cases)


def test_drawn_cases_are_compiled_after_the_listed_tests(write_problem: WriteProblem) -> None:
    problem = write_problem(spec=SPEC + DOMAIN)
    code = ProblemCode(problem, "cpu")
    plain = case_shapes(problem, code, "cpu")
    for seed in range(2):  # the first one's are not remembered
        drawn = problem.draw_cases("cpu", seed)
        shapes = case_shapes(problem, code, "cpu", drawn)
        assert len(shapes.shapes) == len(plain.shapes) + len(drawn)
        order = sorted(shapes.index, key=lambda name: shapes.index[name])
        assert order[3:] == [*(case.name for case in drawn), "small"]
        for case in drawn:
            shape = shapes.shapes[shapes.index[case.name]]
            assert shape["dims"] == [case.params["n"]]
            x = unpack(shape["values"][0])
            assert getattr(x, "shape", None) == (case.params["n"],)
            assert set(shape) == {"values", "dims", "symbol"}  # and no seed


def test_a_gradings_tests_are_the_listed_ones_and_those_its_seed_draws(
    write_problem: WriteProblem,
) -> None:
    problem = write_problem(spec=SPEC + DOMAIN)
    session: Any = SimpleNamespace(stopped=contextlib.nullcontext)
    tests = [Grading(problem, session, "cpu", master, Record()).tests for master in (1, 1, 2)]
    assert [case.name for case in tests[0]] == [
        *(case.name for case in problem.cases("test", "cpu")),
        *("drawn_1", "drawn_2", "drawn_3"),
    ]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2]


def softmax_grading() -> Grading:
    """A grading of the softmax problem on a CPU, with no runner."""
    session: Any = SimpleNamespace(stopped=contextlib.nullcontext)
    problem = Problem.load(ROOT / "problems" / "softmax")
    return Grading(problem, session, "cpu", 1, Record())


def test_the_reused_arena_has_room_for_the_largest_test() -> None:
    grading = softmax_grading()
    problem = grading.problem
    grading._shapes = case_shapes(problem, grading.code, "cpu")
    with contextlib.closing(grading.reused_arena()) as reused:
        first: Any = None
        for case in problem.cases("test", "cpu"):
            initial = grading._test_inputs(case, 0)
            sets = ArgumentSets(problem, case, initial, 1, "cpu", reused=reused)
            first = first or sets.arena
            assert sets.arena is first
            sets.close()
        assert first.nbytes == grading._shapes.test_bytes


def test_benchmarks_lie_in_one_arena_unless_they_are_very_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside a larger block, an arena that is kept would take memory that the case may need."""
    grading = softmax_grading()
    problem = grading.problem
    small, large = sorted(problem.cases("benchmark", "cpu")[:2], key=problem.bytes)
    with contextlib.closing(grading.benchmark_arena()) as reused:
        arenas = []
        for case in (large, small):
            sets = grading.new_sets(case, 1, True, reused)
            arenas.append(sets.arena)
            sets.close()
        assert arenas[0] is arenas[1]
        monkeypatch.setattr(module, "most_reused_bytes", lambda _: sets.layout.nbytes)
        own = grading.new_sets(large, 1, True, reused)
        assert (arenas[0].fd, own.arena is arenas[0]) == (-1, False)
        own.close()
        assert own.arena.fd == -1


def test_the_arena_of_benchmarks_has_room_for_the_largest_but_those_that_are_very_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grading = softmax_grading()
    grading._block_bytes = [3 << 20, 9 << 20, 5 << 20]
    monkeypatch.setattr(module, "most_reused_bytes", lambda _: 8 << 20)
    with contextlib.closing(grading.benchmark_arena()) as reused:
        assert reused.arena(1).nbytes == 5 << 20


GIB = 1 << 30
CRASH = Fault(Verdict.RUNTIME_ERROR, "ended by itself")


@pytest.mark.parametrize(
    ("held_gib", "left_gib", "fault", "expected"),
    [
        (60, 1, None, Verdict.MEMORY_LIMIT_EXCEEDED),  # frees it when asked to end
        (60, 60, None, Verdict.MEMORY_LIMIT_EXCEEDED),
        (60, 1, CRASH, Verdict.MEMORY_LIMIT_EXCEEDED),
        (30, 20, None, Verdict.MEMORY_LIMIT_EXCEEDED),  # compilation held ten of them
        (30, 2, None, None),
        (30, 2, CRASH, Verdict.RUNTIME_ERROR),
    ],
)
def test_held_memory_is_distinguished_from_that_of_compilation(
    held_gib: int, left_gib: int, fault: Fault | None, expected: Verdict | None
) -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    held_bytes = held_gib * GIB
    session: Any = SimpleNamespace(stopped=contextlib.nullcontext)
    grading: Any = Grading(problem, session, "cpu", 1, Record())
    limit = problem.spec.limits.device_memory_bytes
    assert 20 * GIB > limit > 2 * GIB
    assert 60 * GIB > limit + PRECOMPILE_BYTES > 30 * GIB

    def finish_precompiling() -> None:
        nonlocal held_bytes
        held_bytes = left_gib * GIB
        if fault is not None:
            raise SubmissionFault(fault)

    grading._is_precompiling = True
    grading._memory = SimpleNamespace(held_bytes=lambda lent_bytes: held_bytes - lent_bytes)
    grading.finish_precompiling = finish_precompiling
    found = grading.out_of_memory_fault()
    assert (found.verdict if found else None) == expected


def test_compilation_beside_the_tests_is_ended_once() -> None:
    asked: list[str] = []
    session: Any = SimpleNamespace(
        ask=lambda kind, *_: asked.append(kind), stopped=contextlib.nullcontext
    )
    grading = Grading(
        Problem.load(ROOT / "problems" / "softmax"), session, "cuda", 1, Record(), "quick"
    )
    grading.finish_precompiling()
    assert not asked, "nothing is being compiled"
    grading._is_precompiling = True
    for _ in range(2):
        grading.finish_precompiling()
    assert asked == ["finish_precompiling"]


# --- what is measured before the submission is loaded


@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_tampered", [False, True])
@pytest.mark.parametrize("becomes_right", [False, True])
def test_all_faults_of_a_call_are_found_together(
    monkeypatch: pytest.MonkeyPatch,
    is_wrong: bool,
    is_late: bool,
    is_tampered: bool,
    becomes_right: bool,
) -> None:
    session: Any = SimpleNamespace(stopped=contextlib.nullcontext)
    grading = Grading(Problem.load(ROOT / "problems" / "softmax"), session, "cpu", 1, Record())
    monkeypatch.setattr(module, "GRACE_S", 0)
    sets: Any = SimpleNamespace(
        changed_since_probe=lambda: is_late,
        snapshot_changed=lambda: becomes_right,
        count=1,
        untouched=lambda _: [],
        tampered=lambda: "it wrote into 'x'" if is_tampered else None,
    )
    result = CheckResult(failure="3 elements are wrong" if is_wrong else None)
    faults = grading.faults_of("case 'a'", sets, result, lambda: CheckResult())
    stays_wrong = is_wrong and not becomes_right
    was_late = is_late or (is_wrong and becomes_right)
    expected = [
        None if stays_wrong else "",
        Rule.WORK_OUTSIDE_CALL if was_late else "",
        Rule.MEMORY_TAMPERED if is_tampered else "",
    ]
    assert [fault.rule for fault in faults] == [rule for rule in expected if rule != ""]
    assert all(fault.reason.startswith("case 'a': ") for fault in faults)
    decided = decide(faults)
    assert (decided and decided.verdict) == (
        Verdict.WRONG_ANSWER if stays_wrong else Verdict.REJECTED if faults else None
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured, in order, with doubles of the measurements."""
    did: list[str] = []

    def calibrate(_: object) -> float:
        did.append("calibrate")
        return 155.04

    def time_baselines(_: object, case: Case) -> dict[str, float]:
        did.append(f"baselines of {case.name}")
        return {"eager": 80.0}

    def calibrate_publishing(_: object, case: Case, __: object) -> tuple[float, int]:
        did.append(f"publishing {case.name}")
        return 7.0, 4096

    doubles = (calibrate, time_baselines, calibrate_publishing)
    for double in doubles:
        monkeypatch.setattr(module, double.__name__, double)
    monkeypatch.setattr(module, "_CALIBRATED", {})
    return did


def grading_on(problem: Problem, device: Device, effort: Effort = "full") -> Grading:
    session: Any = SimpleNamespace(eager=False, stopped=contextlib.nullcontext)
    grading = Grading(problem, session, "cpu", 1, Record(), effort)
    grading.device = device
    return grading


def test_the_clock_is_calibrated_before_the_baselines(
    write_problem: WriteProblem, measured: list[str]
) -> None:
    grading = grading_on(write_problem(), "cuda")
    grading.prepare()
    assert measured == ["calibrate", "baselines of small", "publishing small"]
    assert grading.round_cost_us == 155.04
    assert grading.record.environment["round_cost_us"] == 155.0
    assert grading.publish_us_per_set == {"small": 7.0}
    assert grading.baselines_us == {"small": {"eager": 80.0}}
    assert grading.session.busy_wait


@pytest.mark.parametrize("effort", ["full", "quick"])
def test_on_a_cpu_nothing_is_calibrated(
    write_problem: WriteProblem, measured: list[str], effort: Effort
) -> None:
    grading = grading_on(write_problem(), "cpu", effort)
    grading.prepare()
    assert (measured, grading.baselines_us) == ([], {})


def test_where_times_do_not_rank_only_baselines_are_timed(
    write_problem: WriteProblem, measured: list[str]
) -> None:
    grading = grading_on(write_problem(), "cuda", "quick")
    grading.prepare()
    assert measured == ["baselines of small"]
    assert grading.publish_us_per_set == {"small": math.inf}
    assert (grading.round_cost_us, "round_cost_us" in grading.record.environment) == (0, False)


def test_baselines_and_publishing_hold_for_the_next_gradings_and_the_rounds_cost_does_not(
    write_problem: WriteProblem, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each runner is a process on other processors."""
    problem = write_problem()
    for _ in range(2):
        grading = grading_on(problem, "cuda")
        grading.prepare()
        assert grading.publish_us_per_set == {"small": 7.0}
    again = ["calibrate", "baselines of small", "publishing small"]
    assert measured == [*again, "calibrate"]
    now = time.monotonic()
    monkeypatch.setattr("grader.judge.grading.time.monotonic", lambda: now + CALIBRATED_S + 1)
    grading_on(problem, "cuda").prepare()
    assert measured == [*again, "calibrate", *again]
