"""Expert kernels are accepted, and prepared library calls compute the right result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grader.cli.commands.baseline import expert_files
from grader.judge import grade
from grader.judge.problem_code import ProblemCode
from grader.problem import Problem
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
NAMES = sorted(path.parent.name for path in PROBLEMS.glob("*/problem.yaml"))
EXPERTS = [
    pytest.param(
        name, path, id=f"{name}/{path.name}", marks=pytest.mark.nvcc if path.suffix == ".cu" else ()
    )
    for name in NAMES
    for path in expert_files(Problem.load(PROBLEMS / name))
]


def test_every_problem_has_an_expert() -> None:
    assert [name for name in NAMES if not expert_files(Problem.load(PROBLEMS / name))] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "path"), EXPERTS)
def test_an_expert_is_accepted(name: str, path: Path) -> None:
    problem = Problem.load(PROBLEMS / name)
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    report = grade(
        problem, submission, sandbox=ForkedSandbox(), device="cpu", benchmarks=False, seed=3
    )
    expected = None if path.suffix == ".cu" else "accepted"
    assert (report.verdict, report.reason) == (
        expected,
        "right on every case" if expected else "compiled, not run: no GPU",
    )


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize(("name", "path"), EXPERTS)
def test_an_expert_is_accepted_on_a_gpu(name: str, path: Path) -> None:
    problem = Problem.load(PROBLEMS / name)
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    report = grade(
        problem, submission, sandbox=ForkedSandbox(), device="cuda", benchmarks=False, seed=3
    )
    assert (report.verdict, report.reason) == ("accepted", "right on every case")


@pytest.mark.cuda
def test_pytorch_s_int4_product_matches_the_reference() -> None:
    problem = Problem.load(PROBLEMS / "int4_matmul")
    code = ProblemCode(problem, "cuda")
    case = next(case for case in problem.cases("test", "cuda") if case.name == "batch")
    values = code.inputs(case, 1)
    call = code.prepared["int4pack_mm"](**values)
    assert call is not None
    truth = code.run_reference(case, values)["out"]
    # Its activations are bf16, with 8 bits of precision.
    assert torch.linalg.norm(call().double() - truth) < 1e-2 * torch.linalg.norm(truth)
