"""A tiny problem on disk, grading of source text against it, and a GPU lock of its own."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from grader.judge import grade
from grader.judge.gpu import lock
from grader.problem import Problem
from grader.report import Report
from grader.sandbox.base import Sandbox
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox

SPEC = """
format: 1
title: Scale
summary: Twice the input, and a running sum.
entry: scale
args:
  - {name: x, role: in, dtype: dtype, shape: [n]}
  - {name: total, role: inout, dtype: fp32, shape: [n]}
  - {name: factor, kind: scalar, dtype: fp64}
  - {name: out, role: out, dtype: dtype, shape: [n]}
cuda_dtypes: [fp32, fp16]
tolerances:
  fp32: {atol: 1.0e-6, rtol: 1.0e-5, rel_l2: 1.0e-5}
  fp16: {atol: 1.0e-4, rtol: 1.0e-2, rel_l2: 1.0e-2}
cost: {bytes: "3 * n * itemsize", flops: "2 * n"}
limits: {load_s: 200, call_s: 100, total_s: 300, source_bytes: 10000}
tests:
  - {name: one, params: {n: 1, dtype: fp32}}
  - {name: many, params: {n: 1000, dtype: fp32}}
  - {name: steps, params: {n: 65, dtype: fp16}, calls: 3}
  - {name: heavy, params: {n: 100000000, dtype: fp32}, device: cuda}
benchmarks:
  - {name: small, params: {n: 4096, dtype: fp32}}
"""

DOMAIN = "domain:\n  - {n: {max: 1000}, dtype: [fp32, fp16]}\n"
"""To append to `SPEC`."""

INPUTS = """
import torch

TYPES = {"fp32": torch.float32, "fp16": torch.float16}

def generate(generator, call, n, dtype):
    device = generator.device
    # Away from zero, so that rounding is small relative to each change of the total.
    x = (1 + torch.rand(n, generator=generator, device=device)).to(TYPES[dtype])
    total = torch.randn(n, generator=generator, device=device)
    return {"x": x, "total": total, "factor": 2.0 + call}
"""

REFERENCE = """
def reference(x, total, factor):
    return total + x, x * factor
"""

HONEST = """
def scale(x, total, factor, out):
    total += x
    out.copy_(x * factor)
"""

WriteProblem = Callable[..., Problem]
Judge = Callable[..., Report]


@pytest.fixture
def write_problem(tmp_path: Path) -> WriteProblem:
    """Writes the tiny problem, with some files replaced, and loads it."""

    def write(spec: str = SPEC, inputs: str = INPUTS, reference: str = REFERENCE) -> Problem:
        folder = tmp_path / "scale"
        folder.mkdir(exist_ok=True)
        files = {"problem.yaml": spec, "inputs.py": inputs, "reference.py": reference}
        for name, text in (files | {"statement.md": "Scale it."}).items():
            (folder / name).write_text(text)
        return Problem.load(folder)

    return write


@pytest.fixture
def unused_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes `gpu_lock` lock a GPU that no other test or process uses."""
    name = f"test-{os.getpid()}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    monkeypatch.setattr(lock, "selected_gpu_node", lambda: None)
    yield
    for kind in ("gpu", "turn"):
        (lock.FOLDER / f"grade-{kind}-{name}.lock").unlink(missing_ok=True)


@pytest.fixture
def judge(write_problem: WriteProblem) -> Judge:
    """Grades a source text against the tiny problem."""

    def run(
        source: str,
        suffix: str = ".py",
        benchmarks: bool = False,
        device: Literal["cpu", "cuda"] = "cpu",
        sandbox: Sandbox | None = None,
        **changes: str,
    ) -> Report:
        problem = write_problem(**changes)
        path = problem.folder.parent / f"kernel{suffix}"
        path.write_text(textwrap.dedent(source))
        submission = Submission.read(path, problem.spec.limits.source_bytes)
        sandbox = sandbox or ForkedSandbox()
        return grade(problem, submission, sandbox=sandbox, device=device, benchmarks=benchmarks)

    return run
