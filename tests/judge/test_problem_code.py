"""A problem's code is called with private copies, within memory, and its results are checked."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grader.judge import problem_code
from grader.judge.problem_code import ProblemCode
from grader.judge.timing.baselines import time_baselines
from grader.problem import Problem, ProblemError
from tests.judge.conftest import INPUTS, REFERENCE, SPEC, Judge, WriteProblem

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
HONEST = """
def scale(x, total, factor, out):
    total += x
    out.copy_(x * factor)
"""


def test_a_reference_may_write_what_it_gets(write_problem: WriteProblem) -> None:
    """It gets copies, of float64 and integer inputs too."""
    spec = SPEC.replace("dtype: dtype", "dtype: fp64").replace("cuda_dtypes: [fp32, fp16]\n", "")
    spec = spec.replace("  fp16:", "  fp64: {atol: 0, rtol: 1.0e-9, rel_l2: 1.0e-9}\n  fp16:")
    inputs = INPUTS.replace(".to(TYPES[dtype])", ".double()")
    reference = REFERENCE.replace("    return", "    x.mul_(1), total.add_(0)\n    return")
    problem = write_problem(spec, inputs, reference)
    code, case = ProblemCode(problem, "cpu"), problem.spec.tests[1]
    values = code.inputs(case, 1)
    versions = [values[name]._version for name in ("x", "total")]
    code.run_reference(case, values)
    assert [values[name]._version for name in ("x", "total")] == versions


@pytest.mark.parametrize(
    ("returned", "argument"),
    [("(total + x).float(), x * factor", "total"), ("total + x, (x * factor).half()", "out")],
)
def test_a_reference_returns_float64(
    write_problem: WriteProblem, returned: str, argument: str
) -> None:
    problem = write_problem(reference=REFERENCE.replace("total + x, x * factor", returned))
    code, case = ProblemCode(problem, "cpu"), problem.spec.tests[0]
    with pytest.raises(ProblemError, match=rf"reference\.py: reference\(\) gave '{argument}' of"):
        code.run_reference(case, code.inputs(case, 1))


WRITES = {
    "eager": "def eager(x, total, factor):\n    total += x\n    return total, x * factor\n",
    "baseline": "def wrong(x, total, factor):\n    x *= factor\n    return total + x, x\n"
    "BASELINES = {'wrong': wrong}\n",
    "setup": "def wrong(x, total, factor):\n    x.zero_()\n    return None\n"
    "PREPARED = {'wrong': wrong}\n",
    "library call": "def wrong(x, total, factor):\n"
    "    return lambda: (total.add_(x), x * factor)\nPREPARED = {'wrong': wrong}\n",
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_baseline_may_not_write_its_inputs(write_problem: WriteProblem, kind: str) -> None:
    problem = write_problem(reference=f"{REFERENCE}\n\n{WRITES[kind]}")
    with pytest.raises(ProblemError, match=r"\(\) for case 'small' wrote its input '(x|total)'"):
        time_baselines(ProblemCode(problem, "cpu"), problem.spec.benchmarks[0])


def test_an_eager_that_writes_its_inputs_is_not_blamed_on_a_submission(judge: Judge) -> None:
    with pytest.raises(ProblemError, match=r"eager\(\) for case 'one' wrote its input 'total'"):
        judge(HONEST, reference=f"{REFERENCE}\n\n{WRITES['eager']}")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("eager = 5\n", "no function named 'eager'"),
        ("BASELINES = [reference]\n", "BASELINES must be a dict: name → function"),
        ("PREPARED = {'fast': None}\n", "PREPARED must be a dict: name → function"),
    ],
)
def test_baselines_are_functions(write_problem: WriteProblem, reference: str, message: str) -> None:
    problem = write_problem(reference=f"{REFERENCE}\n\n{reference}")
    with pytest.raises(ProblemError, match=rf"reference\.py: {message}"):
        ProblemCode(problem, "cpu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"factor": 2.0 + call',
            '"factor": torch.tensor(2.0)',
            "gave 'factor' as Tensor, not fp64",
        ),
        ('"x": x', '"x": x.to_sparse()', "gave 'x' not as a dense tensor on cpu"),
        (
            '"x": x',
            '"x": torch.empty(n, device="meta").to(x.dtype)',
            "not as a dense tensor on cpu",
        ),
    ],
)
def test_inputs_are_as_declared(
    write_problem: WriteProblem, old: str, new: str, message: str
) -> None:
    problem = write_problem(inputs=INPUTS.replace(old, new))
    with pytest.raises(ProblemError, match=message):
        ProblemCode(problem, "cpu").inputs(problem.spec.tests[0], 1)


def test_a_case_larger_than_memory_is_refused_before_it_is_made(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three arguments of 46341² elements, each twice in fp32 and once in float64."""
    spec = SPEC.replace("n: 4096", f"n: {46341**2}")
    made = "def generate(generator, call, n, dtype): raise AssertionError('made')"
    problem = write_problem(spec=spec, inputs=made)
    case = problem.spec.benchmarks[0]
    needed_bytes = 3 * 46341**2 * (4 + 4 + 8)
    monkeypatch.setattr(problem_code, "available_bytes", lambda device: needed_bytes - 1)
    with pytest.raises(ProblemError) as caught:
        ProblemCode(problem, "cpu").inputs(case, 1)
    assert str(caught.value) == (
        f"{problem.folder / 'problem.yaml'}: case 'small' needs at least {needed_bytes:,} bytes of "
        "memory for its arguments and their float64 copies; this machine has "
        f"{needed_bytes - 1:,} left; make the case smaller"
    )
    monkeypatch.setattr(problem_code, "available_bytes", lambda device: needed_bytes)
    with pytest.raises(ProblemError, match=re.escape("raised AssertionError: made")):
        ProblemCode(problem, "cpu").inputs(case, 1)


def test_lists_count_in_the_memory_that_a_case_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AdamW moves 28 bytes per element of its lists, and each of them is held for at least two."""
    problem = Problem.load(PROBLEMS / "multi_tensor_adamw")
    case = next(case for case in problem.spec.benchmarks if case.name == "one_100m")
    needed_bytes = 2 * 28 * 100_000_000
    monkeypatch.setattr(problem_code, "available_bytes", lambda device: needed_bytes - 1)
    code = ProblemCode(problem, "cpu")
    with pytest.raises(ProblemError, match=f"at least {needed_bytes:,} bytes of memory"):
        code.inputs(case, 1)

    def made(*_: object, **__: object) -> None:
        raise AssertionError("made")

    monkeypatch.setattr(problem_code, "available_bytes", lambda device: needed_bytes)
    code = ProblemCode(problem, "cpu")
    monkeypatch.setattr(code, "_generate", made)
    with pytest.raises(ProblemError, match="raised AssertionError: made"):
        code.inputs(case, 1)


@pytest.mark.parametrize("problem", sorted(PROBLEMS.iterdir()), ids=lambda folder: folder.name)
def test_no_case_of_our_problems_is_taken_to_need_more_than_it_does(
    problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments' own bytes, lent and as generated, and in float64."""
    code = ProblemCode(Problem.load(problem), "cpu")
    for case in code.problem.cases("test", "cpu"):
        monkeypatch.setattr(code, "_available_bytes", math.inf)
        outputs = code.run_eager(case, inputs := code.inputs(case, 1))
        tensors = [
            tensor
            for a in code.problem.spec.args
            for value in [outputs[a.name] if a.role == "out" else inputs[a.name]]
            for tensor in (value if isinstance(value, list) else [value])
            if isinstance(tensor, torch.Tensor)
        ]
        held_bytes = sum(
            t.numel() * (2 * t.itemsize + (8 if t.is_floating_point() else t.itemsize))
            for t in tensors
        )
        monkeypatch.setattr(code, "_available_bytes", held_bytes)
        code._check_memory(case)


@pytest.mark.cuda
def test_kernels_of_the_reference_are_its_own_time(write_problem: WriteProblem) -> None:
    slow = "import torch\n    torch.cuda._sleep(1_000_000_000)\n    return"
    problem = write_problem(reference=REFERENCE.replace("return", slow))
    took_s: list[float] = []

    @contextlib.contextmanager
    def stopped() -> Iterator[None]:
        start_s = time.monotonic()
        yield
        took_s.append(time.monotonic() - start_s)

    code, case = ProblemCode(problem, "cuda", stopped), problem.spec.tests[1]
    values = code.inputs(case, 1)
    code.run_reference(case, values)
    assert took_s[-1] > 0.3


@pytest.mark.cuda
def test_device_memory_counts_on_a_gpu(write_problem: WriteProblem) -> None:
    free_bytes = torch.cuda.mem_get_info()[1]
    spec = SPEC.replace("n: 100000000", f"n: {free_bytes // 20}")
    problem = write_problem(spec=spec)
    with pytest.raises(ProblemError, match="the GPU has"):
        ProblemCode(problem, "cuda").inputs(problem.spec.tests[3], 1)


def test_an_output_may_have_tolerances_of_its_own(judge: Judge) -> None:
    """Fp32 cannot meet the problem's bounds here, so what has no others fails."""
    spec = SPEC.replace("atol: 1.0e-6, rtol: 1.0e-5", "atol: 0, rtol: 1.0e-12")
    own = "tolerances: {fp32: {atol: 1.0e-6, rtol: 1.0e-5, rel_l2: 1.0e-5}}"
    for role in ("out", "inout"):
        spec = spec.replace(f"role: {role},", f"role: {role}, {own},")
        report = judge(HONEST, spec=spec, inputs=INPUTS.replace("2.0 + call", "0.3 + call"))
        failed = "of 'total' are off" in report.reason
        assert (report.verdict, failed) == (
            ("wrong_answer", True) if role == "out" else ("accepted", False)
        )


PARAMETERS = """
def reference(x, total, factor, n, dtype):
    assert n == len(x) and dtype in ("fp32", "fp16")
    return total + x, x * factor

def eager(total, x, *, n, **others):
    assert "dtype" not in others
    return total + x, x * others["factor"]

def prepare(n, x, total, factor):
    return lambda: (total + x, x[:n] * factor)

BASELINES = {"less": lambda x, total, factor, dtype: (total + x, x * factor)}
PREPARED = {"library": prepare}
"""


def test_functions_may_take_parameters_of_the_case(write_problem: WriteProblem) -> None:
    """Those that their signature names."""
    problem = write_problem(reference=PARAMETERS)
    code, case = ProblemCode(problem, "cpu"), problem.spec.benchmarks[0]
    values = code.inputs(case, 1)
    truth = code.run_reference(case, values)
    assert torch.allclose(code.run_eager(case, values)["out"].double(), truth["out"])
    assert time_baselines(code, case).keys() == {"eager", "less", "library"}


@pytest.mark.parametrize("enabled", [True, False])
def test_autograd_works_where_it_is_enabled(write_problem: WriteProblem, enabled: bool) -> None:
    reference = f"""
import torch

def reference(x, total, factor):
    with torch.set_grad_enabled({enabled}):
        leaf = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((leaf**2).sum() * factor / 2, leaf)
    return total + x, gradient
"""
    problem = write_problem(reference=reference)
    code, case = ProblemCode(problem, "cpu"), problem.spec.tests[0]
    values = code.inputs(case, 1)
    if enabled:
        expected = values["x"] * values["factor"]
        assert torch.allclose(code.run_eager(case, values)["out"], expected)
        return
    with pytest.raises(ProblemError, match=r"inside `with torch\.enable_grad\(\):`"):
        code.run_eager(case, values)
