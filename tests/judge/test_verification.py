"""Eager PyTorch passes on every variant; parts of mutation testing that no problem here reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from grader.judge.problem_code import ProblemCode
from grader.judge.verification.author_checks import variant_row, watchable_row
from grader.judge.verification.case_check import _rounding, case_values, check_case
from grader.judge.verification.mutants import OutputTensor, _last_row
from grader.judge.verification.result import VerificationResult, VerificationRow
from grader.judge.verification.verify import verify
from grader.problem import Problem, ProblemError
from tests.judge.conftest import DOMAIN, INPUTS, REFERENCE, SPEC, WriteProblem
from tests.judge.verified import verified

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"


def variants(device: str) -> list[Any]:
    found = []
    for folder in sorted(PROBLEMS.iterdir()):
        problem = Problem.load(folder)
        for case in problem.cases("benchmark", device):
            for number, other in enumerate(problem.variants(case)):
                name = f"{problem.name}-{case.name}-{number}"
                found.append(pytest.param(problem, case, other, id=name))
    return found


@pytest.mark.parametrize(("problem", "case", "other"), variants("cpu"))
def test_pytorch_passes_on_every_variant(problem: Problem, case: Any, other: Any) -> None:
    row = variant_row(ProblemCode(problem, "cpu"), case, other)
    assert row.outcome == "passed", row


@pytest.mark.cuda
@pytest.mark.parametrize(("problem", "case", "other"), variants("cuda"))
def test_pytorch_passes_on_every_variant_on_a_gpu(problem: Problem, case: Any, other: Any) -> None:
    row = variant_row(ProblemCode(problem, "cuda"), case, other)
    assert row.outcome == "passed", row


def test_a_variant_that_pytorch_fails_is_found(write_problem: WriteProblem) -> None:
    """Large numbers that cancel leave nothing of small ones, in fp32 and on every processor."""
    spec = SPEC.replace("dtype: fp32}", "dtype: fp32, size: 1}").replace("fp16}", "fp16, size: 1}")
    inputs = INPUTS.replace("n, dtype)", "n, dtype, size)")
    inputs = inputs.replace('"total": total', '"total": total * size')
    reference = REFERENCE.replace("x * factor", "(x + total - total) * factor")
    problem = write_problem(spec, inputs, reference)
    code, (case,) = ProblemCode(problem, "cpu"), problem.spec.benchmarks
    found = {}
    for size in (1, 1e8):
        other = case.model_copy(update={"params": case.params | {"size": size}})
        found[size] = variant_row(code, case, other)
    assert [row.outcome for row in found.values()] == ["passed", "failed"]
    assert found[1e8].case == "small, size=100000000.0"


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.slow])]
)
@pytest.mark.parametrize("name", [folder.name for folder in sorted(PROBLEMS.iterdir())])
def test_every_problem_tells_honest_from_broken(name: str, device: Literal["cpu", "cuda"]) -> None:
    """As `grade verify` does, without torch.compile."""
    problem = Problem.load(PROBLEMS / name)
    code = ProblemCode(problem, device)
    result = verified(code, device)
    assert [row for row in result.rows if not row.ok] == []
    assert result.ok, "a mutant was never caught"
    assert code.admitted.keys() <= code.mutants.keys()
    known = {case.name for case in problem.spec.tests + problem.spec.benchmarks}
    assert all(set(cases) <= known for cases in code.admitted.values())


def test_margins_compare_the_worst_honest_with_the_mildest_mutant() -> None:
    rows = [
        VerificationRow("eager", "one", "pass", "passed", used=0.2),
        VerificationRow("one thread a row", "one", "pass", "passed", used=0.5),
        VerificationRow("zeros", "one", "fail", "failed", used=400.0),
        VerificationRow("sum in fp16", "one", "fail", "failed", used=3.0),
        VerificationRow("last column", "one", "fail", "admitted", used=0.4),
        VerificationRow("eager", "two", "pass", "passed", used=0.0),
    ]
    first, second = VerificationResult(rows).margins()
    assert (first.honest.name, first.ratio) == ("one thread a row", 6)
    assert first.mutant is not None
    assert (first.mutant.name, first.admitted) == ("sum in fp16", ["last column"])
    assert (second.mutant, second.ratio, second.admitted) == (None, None, [])


def test_a_mutant_that_passes_unannounced_is_not_ok() -> None:
    caught = VerificationRow("sum", "two", "fail", "failed")
    assert not VerificationResult([VerificationRow("sum", "one", "fail", "passed"), caught]).ok
    assert VerificationResult([VerificationRow("sum", "one", "fail", "admitted"), caught]).ok
    assert not VerificationResult([VerificationRow("sum", "one", "fail", "admitted")]).ok


def test_a_problem_s_own_implementations_are_checked(write_problem: WriteProblem) -> None:
    """`checks.py` is optional, and part of the judged version."""
    problem = write_problem()
    checks = problem.folder / "checks.py"
    checks.write_text(
        "def magnitude(x, total, factor):\n    return 3 * total.abs(), 3 * x.abs()\n"
        "HONEST = {'swapped': lambda x, total, factor: (x + total, factor * x)}\n"
        "MUTANTS = {'half': lambda x, total, factor: (total + x, x),"
        " 'elsewhere': lambda **_: None}\n"
        "ADMITTED = {'half': ['one']}\n"
    )
    changed = Problem.load(problem.folder)
    assert changed.digest != problem.digest
    assert changed.times_digest == problem.times_digest
    code = ProblemCode(changed, "cpu")
    case = changed.cases("test", "cpu")[0]
    rows = {row.name: row for row in check_case(code, case_values(code, case, 1), {})}
    assert (rows["swapped"].expected, rows["swapped"].outcome) == ("pass", "passed")
    assert (rows["half"].expected, rows["half"].outcome) == ("fail", "failed")
    assert "elsewhere" not in rows, "it returned None: it has no meaning there"
    inputs = code.inputs(case, 1)
    truth = code.run_reference(case, inputs)
    found = code.magnitude(case, inputs, truth)["out"]
    assert torch.equal(found, inputs["x"].double().abs() * 3)


@pytest.mark.parametrize(("rows", "outcome"), [(8191, "passed"), (8192, "failed")])
def test_a_benchmark_too_large_to_watch_is_found(rows: int, outcome: str) -> None:
    problem = Problem.load(PROBLEMS / "softmax")
    case = problem.spec.benchmarks[0]
    large = case.model_copy(update={"params": case.params | {"rows": rows, "cols": 65536}})
    row = watchable_row(problem, large, {"x": torch.empty(rows, 65536, device="meta")})
    assert (row.expected, row.outcome) == ("pass", outcome)
    assert ("make the case smaller" in row.detail) == (outcome == "failed")


@pytest.mark.parametrize(("domain", "count"), [("", 0), (DOMAIN, 8)])
def test_code_that_is_right_on_the_listed_shapes_only_is_a_mutant(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch, domain: str, count: int
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # it takes seconds
    result = verify(write_problem(spec=SPEC + domain), "cpu")
    rows = [row for row in result.rows if row.name == "right on the listed shapes only"]
    assert [row.case for row in rows] == [f"drawn_{i + 1}" for i in range(count)]
    assert {row.outcome for row in rows} <= {"failed"}
    eager = [row for row in result.rows if (row.name, row.outcome) == ("eager", "passed")]
    assert len(eager) == 4 + count
    zeros = [row for row in result.rows if row.name == "zeros" and row.case.startswith("drawn_")]
    assert [row.outcome for row in zeros] == ["failed"] * count


def test_integers_have_no_rounding_error() -> None:
    truth = torch.tensor([3.0, -7.0], dtype=torch.float64)
    assert _rounding(truth, torch.int32).tolist() == [0, 0]
    assert (_rounding(truth, torch.float16) > 0).all()


def test_the_last_row_of_a_strided_output_is_dropped() -> None:
    """Eager PyTorch may return a transposed view."""
    value = torch.arange(1.0, 25).reshape(2, 3, 4).transpose(1, 2)
    dropped = _last_row(OutputTensor(value, value, None, None, None, last=True, listed=False))
    assert torch.equal(dropped[:, :-1], value[:, :-1])
    assert torch.equal(dropped[0], value[0])
    assert not dropped[-1, -1].any()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile takes long, and is not what is tested."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def unexpected(problem: Problem) -> dict[str, list[tuple[str, str]]]:
    """Row → cases with the opposite of the expected outcome, and why."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in verify(problem, "cpu").rows:
        if not row.ok:
            found.setdefault(row.name, []).append((row.case, row.detail))
    return found


LIBRARY = """

def prepare(x, total, factor):
    x, total = x.clone(), total.clone()
    return lambda: (total + x, x.to(torch.bfloat16) * factor {change})

PREPARED = {{"library": prepare}}
"""
OUT = "import torch\n" + REFERENCE


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("reference", "name", "detail"),
    [
        # Its result is float64 again, but no more exact than a submission's.
        (REFERENCE.replace("x * factor", "(x.float() * factor).double()"), "float64 reference", ""),
        (
            REFERENCE.replace("x * factor", "x.bfloat16().exp().log() * factor + 0 * x"),
            "float64 reference",
            "_to_copy gives torch.bfloat16",
        ),
        (
            REFERENCE + "\nBASELINES = {'less': lambda x, total, factor: (total + x, x)}\n",
            "baseline less",
            "",
        ),
        (OUT + LIBRARY.format(change="+ 0.1"), "baseline library", "relative L2"),
        # NumPy writes without PyTorch's knowledge.
        (
            REFERENCE + "\ndef eager(x, total, factor):\n    outputs = total + x, x * factor\n"
            "    x.numpy()[-1] = 0\n    return outputs\n",
            "inputs unchanged",
            "wrote its input 'x'",
        ),
    ],
)
def test_an_authors_mistake_is_found(
    write_problem: WriteProblem, reference: str, name: str, detail: str
) -> None:
    found = unexpected(write_problem(reference=reference))
    assert name in found
    assert all(detail in why for _, why in found[name])


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("reference", [REFERENCE, OUT + LIBRARY.format(change="")])
def test_an_honest_problem_passes(write_problem: WriteProblem, reference: str) -> None:
    """A library's call may round its inputs."""
    rows = verify(write_problem(reference=reference), "cpu").rows
    passed = {row.name for row in rows if row.expected == "pass"}
    assert all(row.ok for row in rows if row.expected == "pass")
    assert passed >= {"float64 reference", "inputs unchanged"}
    assert ("baseline library" in passed) == (reference != REFERENCE)


@pytest.mark.usefixtures("no_compiler")
def test_benchmark_inputs_that_ignore_their_seed_are_found(write_problem: WriteProblem) -> None:
    """Those of a test may be constant, such as all zeros."""
    constant = "    x, total = x * 0 + 1.5, total * 0 - 0.5\n    return"
    verify(
        write_problem(inputs=INPUTS.replace("    return", f"    if n == 65: {constant.strip()}")),
        "cpu",
    )
    problem = write_problem(inputs=INPUTS.replace("    return", constant))
    with pytest.raises(
        ProblemError, match=r"inputs.py: .* the same inputs of case 'small' for two"
    ):
        verify(problem, "cpu")


def rows_of(problem: Problem, name: str) -> list[VerificationRow]:
    return [row for row in verify(problem, "cpu").rows if row.name == name]


@pytest.mark.usefixtures("no_compiler")
def test_plausible_bugs_of_every_argument_are_tried(write_problem: WriteProblem) -> None:
    result = verify(write_problem(), "cpu")
    tried = {row.name: row for row in result.rows if row.expected == "fail once"}
    assert tried.keys() == {
        *("'x' off by one row", "'x' taken as 1", "'x' without its sign"),
        *("'total' off by one row", "'total' taken as 1", "'total' without its sign"),
        *("'factor' taken as 1", "'factor' without its sign"),
        "outputs 'total' and 'out' swapped",
    }
    assert result.never_caught() == [], "x and factor are positive: their sign changes nothing"


@pytest.mark.usefixtures("no_compiler")
def test_swapped_arguments_and_outputs_are_tried(write_problem: WriteProblem) -> None:
    """Where both have one shape and dtype."""
    spec = SPEC.replace("role: inout, dtype: fp32", "role: in, dtype: dtype").replace(
        "  - {name: out,", "  - {name: sum, role: out, dtype: dtype, shape: [n]}\n  - {name: out,"
    )
    spec = spec.replace(", calls: 3", "")
    reference = "def reference(x, total, factor):\n    return x - factor * total, x * total\n"
    inputs = INPUTS.replace('"total": total', '"total": total.to(x.dtype)')
    problem = write_problem(spec=spec, inputs=inputs, reference=reference)
    result = verify(problem, "cpu")
    swapped = {row.name: row.outcome for row in result.rows if row.case == "many"}
    assert swapped["'x' and 'total' swapped"] == "failed"
    assert swapped["outputs 'sum' and 'out' swapped"] == "failed"
    assert result.never_caught() == []


@pytest.mark.usefixtures("no_compiler")
def test_a_list_is_not_swapped_with_a_tensor_of_the_same_shape(write_problem: WriteProblem) -> None:
    """A list of one tensor has its form, and is none."""
    line = "  - {name: total, role: inout, dtype: fp32, shape: [n]}"
    spec = SPEC.replace(line, "  - {name: total, role: inout, kind: tensors, dtype: fp32}")
    reference = REFERENCE.replace("total + x", "[total[0] + x]")
    inputs = INPUTS.replace('"total": total', '"total": [total]')
    names = {row.name for row in verify(write_problem(spec, inputs, reference), "cpu").rows}
    assert "'total' taken as 1" in names
    assert "outputs 'total' and 'out' swapped" not in names


@pytest.mark.usefixtures("no_compiler")
def test_a_factor_that_is_1_in_every_case_is_found(write_problem: WriteProblem) -> None:
    """A kernel that leaves it out would be accepted."""
    problem = write_problem(inputs=INPUTS.replace("2.0 + call", "1.0"))
    result = verify(problem, "cpu")
    assert (result.ok, result.never_caught()) == (False, ["'factor' taken as 1"])
    assert "let it vary" in rows_of(problem, "'factor' taken as 1")[0].detail


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("reference", "ignored"),
    [
        (REFERENCE, []),
        (REFERENCE.replace("x * factor", "x * 2.0"), ["input 'factor' is used"]),
        (REFERENCE.replace("total + x", "total + 1"), []),
        (REFERENCE.replace("x * factor", "0 * x + factor"), []),
        (
            "def reference(x, total, factor):\n    return total + factor, 0 * x + factor\n",
            ["input 'x' is used"],
        ),
    ],
)
def test_an_input_that_the_reference_ignores_is_found(
    write_problem: WriteProblem, reference: str, ignored: list[str]
) -> None:
    rows = verify(write_problem(reference=reference), "cpu").rows
    found = [row for row in rows if row.name.endswith("is used")]
    assert [row.name for row in found] == ignored
    assert not any(row.ok for row in found)


@pytest.mark.usefixtures("no_compiler")
def test_mutants_that_cannot_apply_are_left_out(write_problem: WriteProblem) -> None:
    """Half precision of integers; rows of a single number."""
    spec = """
format: 1
title: Sum
summary: The sum of some integers.
entry: total
args:
  - {name: x, role: in, dtype: int32, shape: [n]}
  - {name: out, role: out, dtype: int32, shape: [1]}
cost: {bytes: "4 * n + 4", flops: "n"}
tests:
  - {name: few, params: {n: 9}}
benchmarks:
  - {name: many, params: {n: 4096}}
"""
    inputs = (
        "import torch\n\ndef generate(generator, call, n):\n"
        "    return {'x': torch.randint(1, 9, (n,), generator=generator, "
        "device=generator.device, dtype=torch.int32)}\n"
    )
    reference = (
        "import torch\n\ndef reference(x):\n    return x.sum(0, keepdim=True, dtype=torch.int32)\n"
    )
    problem = write_problem(spec=spec, inputs=inputs, reference=reference)
    result = verify(problem, "cpu")
    left_out = {row.name: row.detail for row in result.rows if row.outcome == "left out"}
    assert result.ok, result.never_caught()
    assert left_out["half precision"] == "the outputs are integers"
    assert left_out["permuted rows"] == "the output has one row"
    assert left_out["constant"] == "the output has one element"
