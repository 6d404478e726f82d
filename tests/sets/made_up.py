"""Small problems in the formats of other sets, written for the tests."""

from __future__ import annotations

from pathlib import Path

CHALLENGE_BASE = """
class ChallengeBase:
    def __init__(self, device="cuda"):
        self.device = device


class RandTensor:
    def __init__(self, shape, low=0.0, high=1.0, dtype="float32"):
        self.shape, self.low, self.high, self.dtype = tuple(shape), low, high, dtype


class OutTensor:
    def __init__(self, shape, dtype="float32"):
        self.shape, self.dtype = tuple(shape), dtype
"""

CHALLENGE = """
import ctypes

import torch
from core.challenge_base import ChallengeBase, OutTensor, RandTensor


class Challenge(ChallengeBase):
    name = "Scaled Rows"
    atol = {atol}
    rtol = {atol}
    num_gpus = 1

    def reference_impl(self, X, Y, N, alpha):
        assert X.dtype == torch.float32
        Y.copy_(torch.softmax(X.to(torch.float32), dim=1) * alpha)

    def get_solve_signature(self):
        return {{
            "X": (ctypes.POINTER(ctypes.c_float), "in"),
            "Y": (ctypes.POINTER(ctypes.c_float), "out"),
            "N": (ctypes.c_size_t, "in"),
            "alpha": (ctypes.c_float, "in"),
        }}

    def _test(self, x):
        return {{"X": x, "Y": torch.zeros(x.shape), "N": x.shape[0], "alpha": 2.0}}

    def generate_example_test(self):
        return self._test(torch.tensor([[1.5, 2.25], [3.0, 0.5]], device=self.device))

    def generate_functional_test(self):
        drawn = {{"X": RandTensor((33, 65)), "Y": OutTensor((33, 65)), "N": 33, "alpha": 2.0}}
        return [self._test(torch.empty(7, 19, device=self.device).uniform_(-4, 4)), drawn]

    def generate_performance_test(self):
        return self._test(torch.rand(4096, 4096, device=self.device))
"""

TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "helpers.py", "source": "../helpers.py"}
lang: "py"
tests:
  - {"rows": 5, "seed": 11}
  - {"rows": 40, "seed": 12}
benchmarks:
  - {"rows": 64, "seed": 13}
ranking_by: "geom"
"""

BOARD = """
import torch
from helpers import matching


def generate_input(rows, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(rows, 48, device="cuda", generator=gen)
    return x, {"weight": torch.rand(48, device="cuda")}, {"eps": 1e-5}


def ref_kernel(data):
    x, weights, config = data
    scale = torch.rsqrt(x.float().square().mean(dim=1, keepdim=True) + config["eps"])
    return x * scale * weights["weight"]


check_implementation = matching(ref_kernel)
"""

CACHED = """
from dataclasses import dataclass

import torch
from helpers import matching
from torch import nn


@dataclass(frozen=True)
class Setup:
    width: int
    shape: tuple
    weight: torch.Tensor


class Rows(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.register_buffer("kept", torch.zeros(shape))
        self.count = 0

    def forward(self, x):
        self.kept[self.count : self.count + len(x)] = x
        self.count += len(x)
        return self.kept[: self.count]


def generate_input(rows, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    weight = torch.randn(16, 16, device="cuda", generator=gen)
    rows_before = Rows((rows + 2, 16)).to("cuda")
    rows_before(torch.randn(rows, 16, device="cuda", generator=gen))
    x = torch.randn(1, 16, device="cuda", generator=gen)
    return Setup(16, (rows + 2, 16), weight), x, rows_before


def ref_kernel(data):
    setup, x, kept = data
    seen = kept(x @ setup.weight)
    return seen.sum(dim=0), kept.kept


check_implementation = matching(ref_kernel)
"""
"""A board whose inputs are objects of its own classes. One is a cache, to which each call adds a
row."""

PARTS = """
import torch
from helpers import matching


def generate_input(rows, parts, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(rows, 16, device="cuda", generator=gen)
    weights = {}
    for i in range(parts):
        weights[f"part.{i}.weight"] = torch.randn(16, 24, device="cuda", generator=gen)
    weights["last.weight"] = torch.randn(24, 16, device="cuda", generator=gen)
    return x, weights, {"parts": parts}


def ref_kernel(data):
    x, weights, config = data
    inner = [x @ weights[f"part.{i}.weight"] for i in range(config["parts"])]
    return sum(inner) @ weights["last.weight"]


check_implementation = matching(ref_kernel)
"""
"""A board with a dictionary that has more entries in some cases than in others."""

PARTS_TASK = TASK.replace('"rows": 5,', '"rows": 5, "parts": 2,')
PARTS_TASK = PARTS_TASK.replace('"rows": 40,', '"rows": 40, "parts": 4,')
PARTS_TASK = PARTS_TASK.replace('"rows": 64,', '"rows": 64, "parts": 3,')

HELPERS = """
import torch


def matching(reference, tolerance=1e-1):
    def check(data, output):
        expected = reference(data)
        if isinstance(output, torch.Tensor):
            output, expected = [output], [expected]
        for got, right in zip(output, expected, strict=True):
            if not torch.allclose(got, right, rtol=tolerance, atol=tolerance):
                return False, f"differs by {float((got - right).abs().max()):.3g}"
        return True, ""

    return check
"""

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.inner = nn.Linear(features, outputs)
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, x):
        return torch.relu(self.norm(self.inner(x)))


def get_inputs():
    return [torch.rand(16, 24)]


def get_init_inputs():
    return [24, 12]
"""


DEFINITION = """
from typing import Any

import torch
from problem import Problem


class row_sums(Problem):
    is_exact = False
    parameters = [
        {"name": "X", "type": "float", "pointer": True, "const": True},
        {"name": "scale", "type": "float", "pointer": False, "const": True},
        {"name": "sums", "type": "float", "pointer": True, "const": False},
        {"name": "shape", "type": "size_t", "pointer": True, "const": True},
        {"name": "ndim", "type": "size_t", "pointer": False, "const": False},
    ]

    def __init__(self):
        super().__init__(name="row-sums")

    def reference_solution(self, x, scale):
        assert x.dtype == torch.float32
        with torch.no_grad(), torch.autocast("cuda", enabled=False, dtype=x.dtype):
            return torch.sum(x, dim=-1, keepdim=True) * scale

    def generate_test_cases(self):
        dtype = self.param_dtype(0)
        cases = []
        for shape in [(32, 16), (4, 8, 16), (1 << 15, 1 << 15)]:
            seed = Problem.get_seed(f"{self.name}_{shape}")
            cases.append({
                "name": f"shape = {shape}",
                "shape": shape,
                "create_inputs": lambda shape=shape, seed=seed: (
                    torch.rand(
                        shape,
                        device="cuda",
                        dtype=dtype,
                        generator=torch.Generator(device="cuda").manual_seed(seed),
                    ),
                    2,
                ),
            })
        return cases

    def generate_sample(self):
        return {
            "name": "sample",
            "shape": (2, 2),
            "create_inputs": lambda: (
                torch.tensor([[1.5, 2.0], [0.25, 1.0]], device="cuda", dtype=self.param_dtype("X")),
                3,
            ),
        }

    def verify_result(self, expected_output, actual_output):
        close = torch.allclose(actual_output, expected_output, rtol=1e-3, atol=1e-3)
        worst = (actual_output - expected_output).abs().max().item()
        return close, {} if close else {"max_difference": worst}

    def get_extra_params(self, test_case):
        shape = test_case["shape"]
        return [torch.tensor(shape, dtype=torch.int64), len(shape)]
"""

PAGE = """---
slug: "row-sums"
title: "Sums of Rows"
difficulty: "EASY"
---

Sum the last dimension.
"""


def leetgpu(root: Path, atol: float = 1e-4, text: str = CHALLENGE) -> Path:
    """A challenge of two rows of tests and one literal example; its folder."""
    folder = root / "challenges" / "easy" / "1_scaled_rows"
    (root / "challenges" / "core").mkdir(parents=True)
    (root / "challenges" / "core" / "challenge_base.py").write_text(CHALLENGE_BASE)
    folder.mkdir(parents=True)
    (folder / "challenge.py").write_text(text.format(atol=atol))
    return folder


def kernelbot(root: Path, board: str = BOARD, task: str = TASK) -> Path:
    """A board with nested inputs and a generous tolerance; its folder."""
    folder = root / "problems" / "made_up" / "rms_py"
    folder.mkdir(parents=True)
    (folder / "task.yml").write_text(task)
    (folder / "reference.py").write_text(board)
    (folder.parent / "helpers.py").write_text(HELPERS)
    return folder


FUNCTIONS_TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "eval.py"}
lang: "py"
config:
  main: "eval.py"
tests:
  - {"columns": 40}
  - {"columns": 61}
benchmarks:
  - {"columns": 96}
"""

FUNCTIONS = """
import torch

DTYPE = torch.bfloat16


def reference_forward(x, index):
    return x.float().pow(2).sum(dim=1)[index]


def reference_backward(x, index, gradient):
    out = torch.zeros_like(x.float())
    out.index_add_(0, index, 2 * x.float()[index] * gradient[:, None])
    return out.to(x.dtype)


def generate_inputs(rows, columns, seed=42):
    torch.manual_seed(seed)
    x = torch.randn(rows, columns, dtype=DTYPE, device="cuda")
    index = torch.randint(0, rows, (rows,), device="cuda")
    return x, index, torch.randn(rows, dtype=torch.float32, device="cuda")
"""

EVALUATION = """
import sys

import torch
from reference import DTYPE, generate_inputs, reference_backward, reference_forward

ROWS = 24


def check_correctness(module, columns):
    x, index, gradient = generate_inputs(ROWS, columns)
    wanted = reference_forward(x, index)
    sums = module.squares_forward(x, index)
    assert sums.dtype == torch.float32, f"expected float32, got {sums.dtype}"
    forward = torch.allclose(sums, wanted, atol=0.5, rtol=0.5)
    got = module.squares_backward(x, index, gradient)
    assert got.dtype == DTYPE, "another dtype"
    backward = torch.allclose(got, reference_backward(x, index, gradient), atol=0.5, rtol=0.5)
    return forward, backward, (sums - wanted).abs().max().item()


def load_submission():
    import submission

    return submission


if __name__ == "__main__":
    sys.exit(0 if all(check_correctness(load_submission(), 40)[:2]) else 1)
"""


def functions(root: Path, board: str = FUNCTIONS, evaluation: str = EVALUATION) -> Path:
    """A KernelBot board whose submissions define two functions; its folder."""
    folder = kernelbot(root, board, FUNCTIONS_TASK)
    (folder / "eval.py").write_text(evaluation)
    return folder


def kernelbench(root: Path, text: str = MODEL) -> Path:
    """A module with weights and running statistics; its file."""
    file = root / "KernelBench" / "level1" / "7_Linear_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def tensara(root: Path, text: str = DEFINITION) -> Path:
    """Sums over the last of two or three dimensions; its folder."""
    folder = root / "problems" / "row-sums"
    folder.mkdir(parents=True)
    (folder / "def.py").write_text(text)
    (folder / "problem.md").write_text(PAGE)
    return folder
