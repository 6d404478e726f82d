"""Cases drawn from a problem's domain: new, valid, small enough, and the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grader.judge.correctness.check import check, tolerance_of
from grader.judge.problem_code import ProblemCode, seed_for
from grader.problem import Case, Formula, Problem, ProblemError
from grader.problem.domain import DRAWN_CASES, shown
from tests.problem.conftest import YAML, MakeFolder

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
NAMES = [
    "softmax",
    "int4_matmul",
    "multi_tensor_adamw",
    "flash_attention",
    "flash_attention_backward",
    "paged_attention_decode",
]
SEEDS = range(30)
DOMAIN = "domain:\n  - {rows: {max: 50}, cols: {max: 999, multiple_of: 3}, dtype: [fp32]}\n"


def listed(problem: Problem, device: str) -> list[Case]:
    return problem.cases("test", device)


def drawn(problem: Problem, device: str) -> list[Case]:
    return [case for seed in SEEDS for case in problem.draw_cases(device, seed)]


def sizes(problem: Problem) -> list[str]:
    return [n for n, v in problem.spec.domain[0].items() if v.choices is None]


def lies_in(case: Case, entry: dict[str, Any]) -> bool:
    for name, values in entry.items():
        value = case.params[name]
        if values.choices is not None:
            if value not in values.choices:
                return False
            continue
        low, high, step = (
            Formula.parse(text).evaluate(case.params) for text in values.formulas().values()
        )
        if not low <= value <= high or value % step:
            return False
    return True


def test_ranked_gradings_draw_at_least_eight() -> None:
    assert DRAWN_CASES["cuda"] >= 8
    assert DRAWN_CASES["cpu"] >= 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_drawn_cases_lie_in_the_domain_and_are_new_and_light(name: str, device: str) -> None:
    problem = Problem.load(PROBLEMS / name)
    tests, every = listed(problem, device), [*problem.spec.tests, *problem.spec.benchmarks]
    taken = [[case.params.get(n) for n in sizes(problem)] for case in every]
    for case in drawn(problem, device):
        assert any(lies_in(case, entry) for entry in problem.spec.domain), case
        assert [case.params[n] for n in sizes(problem)] not in taken
        assert problem.bytes(case) <= fmean(map(problem.bytes, tests))
        assert problem.flops(case) <= fmean(map(problem.flops, tests))
        for n in sizes(problem):
            assert case.params[n] <= max(test.params[n] for test in tests)


@pytest.mark.parametrize("name", NAMES)
def test_listed_cases_lie_within_the_ranges_of_the_domain(name: str) -> None:
    """So that the domain is no smaller than the problem."""
    problem = Problem.load(PROBLEMS / name)
    for case in [*problem.spec.tests, *problem.spec.benchmarks]:
        for n in sizes(problem):
            highest = max(
                int(Formula.parse(entry[n].max or "").evaluate(case.params))
                for entry in problem.spec.domain
            )
            assert case.params[n] <= highest, (case.name, n)


@pytest.mark.parametrize("name", NAMES)
def test_a_grading_draws_no_size_twice_and_names_its_cases(name: str) -> None:
    problem = Problem.load(PROBLEMS / name)
    for device, count in DRAWN_CASES.items():
        for seed in SEEDS:
            cases = problem.draw_cases(device, seed)
            assert [case.name for case in cases] == [f"drawn_{i + 1}" for i in range(count)]
            values = [tuple(case.params[n] for n in sizes(problem)) for case in cases]
            assert len(set(values)) == count
            assert list(cases[0].params)[:2] == list(problem.spec.tests[0].params)[:2]


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name: str) -> None:
    problem = Problem.load(PROBLEMS / name)
    draws = [problem.draw_cases("cuda", seed) for seed in SEEDS]
    assert draws == [problem.draw_cases("cuda", seed) for seed in SEEDS]
    assert all(draws.count(cases) == 1 for cases in draws)


def test_odd_sizes_and_the_ends_of_a_range_are_preferred() -> None:
    problem = Problem.load(PROBLEMS / "softmax")
    cols = [case.params["cols"] for case in drawn(problem, "cuda")]
    assert sum(n % 2 for n in cols) > 0.7 * len(cols)
    assert 1 in cols
    assert max(cols) > 65536
    rows = [case.params["rows"] for case in drawn(problem, "cuda")]
    assert 100003 in rows


def expect_pytorch_to_pass(name: str, device: str, seeds: int) -> None:
    problem = Problem.load(PROBLEMS / name)
    code = ProblemCode(problem, device)
    for seed in range(seeds):
        for case in problem.draw_cases(device, seed):
            inputs = code.inputs(case, seed_for(seed, case.name))
            truth, eager = code.run_reference(case, inputs), code.run_eager(case, inputs)
            for argument in code.written:
                initial = inputs[argument.name] if argument.role == "inout" else None
                bounds = tolerance_of(problem, argument, case)
                out, right = eager[argument.name], truth[argument.name]
                found = check(argument.name, out, right, out, bounds, initial)
                assert found.failure is None, shown(case)


@pytest.mark.parametrize("name", NAMES)
def test_plain_pytorch_passes_on_drawn_cases(name: str) -> None:
    expect_pytorch_to_pass(name, "cpu", seeds=5)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_plain_pytorch_passes_on_drawn_cases_on_a_gpu(name: str) -> None:
    expect_pytorch_to_pass(name, "cuda", seeds=20)


def test_a_problem_without_a_domain_draws_nothing(make_folder: MakeFolder) -> None:
    assert Problem.load(make_folder()).draw_cases("cpu", 1) == []


def test_a_drawn_case_shows_its_parameters(make_folder: MakeFolder) -> None:
    problem = Problem.load(make_folder(YAML, YAML + DOMAIN))
    case = problem.draw_cases("cpu", 4)[0]
    rows, cols = case.params["rows"], case.params["cols"]
    assert shown(case) == f"'drawn_1' (rows={rows} cols={cols} dtype=fp32)"
    assert (1 <= rows <= 2, cols % 3) == (True, 0)


BAD = [
    ("max: 50", "max: fifty", "domain[0].rows.max: 'fifty' uses 'fifty', which is not declared"),
    ("max: 50", "max: cols", "domain[0].rows.max: 'cols' uses 'cols', which is not declared"),
    ("max: 50", "max: 7 / 2", "domain[0].rows: '7 / 2' is 3.5, not a whole number"),
    ("max: 50", "mix: 50", "domain[0].rows.mix: unknown key; did you mean 'min'?"),
    ("{max: 50}", "{min: 5}", "domain[0].rows.max: missing; a parameter has a max, or is a list"),
    ("{max: 50}", "{choices: [5], max: 7}", "domain[0].rows: has choices and max; remove one"),
    ("{max: 50}", "[]", "domain[0].rows.choices: list should have at least 1 item"),
    ("{max: 50}, cols: {max: 999, multiple_of: 3}", "[5], cols: [9]", "domain[0]: no parameter"),
    ("multiple_of: 3", "multiple_of: 0", "domain[0].cols: multiple_of is 0; it must be 1 or more"),
    (", dtype: [fp32]", "", "domain[0].dtype: missing; every test has this parameter"),
    (
        "dtype: [fp32]",
        "dtype: [fp33]",
        "domain: args[0].dtype: parameter 'dtype' of case 'drawn_1' is 'fp33'",
    ),
    ("[fp32]}\n", "[[1]]}\n", "domain[0].dtype: must be a number, true or false, or a word"),
    ("rows: {max: 50}", "call: {max: 50}", "domain[0].call: the name 'call' is reserved"),
    ("dtype: [fp32]", "dtype: {max: 3}", "tests[0].params.dtype: is 'fp32'; the domain has whole"),
    ("max: 999", "max: 3", "domain: only 1 of 8 cases were found whose sizes no listed case"),
    ("name: wide", "name: drawn_7", "tests[1].name: begins with drawn_, as the names of drawn"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_domain_is_refused(make_folder: MakeFolder, old: str, new: str, message: str) -> None:
    text = YAML + DOMAIN
    assert old in text
    folder = make_folder(YAML, text.replace(old, new, 1))
    with pytest.raises(ProblemError) as caught:
        Problem.load(folder)
    assert str(caught.value).startswith(f"{folder / 'problem.yaml'}: {message}")
