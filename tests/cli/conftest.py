"""A fake judge with fake sandboxes, and a small problem."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from grader.cli import main
from grader.cli.dependencies import Dependencies
from grader.report import Report
from grader.sandbox.base import Runner, RunnerDevice, RunnerLimits, Sandbox

SPEC = """\
format: 1
title: Doubling
summary: Write twice x.
entry: doubled
args:
  - {name: x, role: in, dtype: dtype, shape: [n]}
  - {name: out, role: out, dtype: dtype, shape: [n]}
cuda_dtypes: [fp32, fp16]
tolerances:
  fp32: {atol: 1e-6, rtol: 1e-6, rel_l2: 1e-6}
cost: {bytes: 2 * n * itemsize, flops: n}
tests:
  - {name: one, params: {n: 1, dtype: fp32}}
  - {name: odd, params: {n: 4097, dtype: fp32}}
benchmarks:
  - {name: small, params: {n: 1024, dtype: fp32}, device: cpu}
"""

REFERENCE = '''\
"""Twice x."""

import torch

FACTOR = 2


def reference(x):
    return x * FACTOR


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def eager(x):
    return _twice(x)


BASELINES = {"add": lambda x: x + x}
'''

INPUTS = """\
import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def generate(generator, call, n, dtype):
    x = torch.randn(n, generator=generator, device=generator.device)
    return {"x": x.to(DTYPES[dtype])}
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """Folder of the problem `double`."""
    return write_problem(tmp_path)


def write_problem(root: Path) -> Path:
    """Write the problem `double`, alone in the folder ``problems``. Returns its folder."""
    folder = root / "problems" / "double"
    folder.mkdir(parents=True)
    (folder / "problem.yaml").write_text(SPEC)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "inputs.py").write_text(INPUTS)
    (folder / "statement.md").write_text("# Doubling\n\nWrite $2x$ to `out`.\n")
    return folder


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A submission; the fake judge never reads it."""
    path = tmp_path / "kernel.py"
    path.write_text("def doubled(x, out):\n    out.copy_(x * 2)\n")
    return path


class FakeSandbox(Sandbox):
    """A sandbox that starts no runner."""

    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self) -> str:
        return f"{self.name} (fake)"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        raise AssertionError("the fake judge starts no runner")


@dataclass
class FakeJudge:
    """Returns the same report for every submission, and records its calls."""

    make: Callable[..., Report]
    changes: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Any] = field(default_factory=list)

    def __call__(self, problem: Any, submission: Any, **options: Any) -> Report:
        self.calls.append(options)
        self.problems.append(problem)
        if self.error is not None:
            raise self.error
        fields: dict[str, Any] = {
            "problem": problem.name,
            "problem_digest": problem.digest,
            "submission_sha256": submission.sha256,
            "submission_name": submission.name,
            "language": submission.language,
            "device": options["device"],
            "sandbox": options["sandbox"].describe(),
            "seed": 7 if options["seed"] is None else options["seed"],
        }
        return self.make(**fields | self.changes)


@dataclass
class Shell:
    """Runs `grade` with fake dependencies and returns what a shell would see."""

    deps: Dependencies
    judge: FakeJudge
    capture: pytest.CaptureFixture[str]

    def __call__(self, *args: object) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        status = main([str(arg) for arg in args], self.deps)
        out, err = self.capture.readouterr()
        return status, out, err

    def json(self, *args: object) -> tuple[int, dict[str, Any]]:
        """Exit status, and the JSON object on stdout."""
        status, out, _ = self(*args, "--json")
        assert out.endswith("\n")
        assert out.count("\n") == 1
        shown = json.loads(out)
        assert isinstance(shown, dict)
        return status, shown

    def change(self, **fields: Any) -> None:
        """Replace dependencies."""
        self.deps = replace(self.deps, **fields)


@pytest.fixture
def shell(
    make_report: Callable[..., Report],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """`grade` with a fake judge and fake sandboxes, a GPU and Docker, and an empty board."""
    monkeypatch.setenv("GRADE_DB", f"sqlite:///{tmp_path}/board.sqlite3")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("GRADE_SERVER", "GRADE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    judge = FakeJudge(make_report)
    deps = Dependencies(
        grade=judge,
        prestart=lambda sandbox, *_: nullcontext(sandbox),
        sandbox=FakeSandbox,
        docker_missing=lambda: None,
        cuda_missing=lambda: None,
    )
    return Shell(deps, judge, capsys)
