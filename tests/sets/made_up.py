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

HELPERS = """
import torch


def matching(reference, tolerance=1e-1):
    def check(data, output):
        expected = reference(data)
        if torch.allclose(output, expected, rtol=tolerance, atol=tolerance):
            return True, ""
        return False, f"differs by {float((output - expected).abs().max()):.3g}"

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


def kernelbench(root: Path, text: str = MODEL) -> Path:
    """A module with weights and running statistics; its file."""
    file = root / "KernelBench" / "level1" / "7_Linear_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file
