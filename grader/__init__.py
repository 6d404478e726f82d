"""grade: a leaderboard and grading system for GPU kernels.

The judge never runs submitted code in its own process, and only the judge decides a verdict.
Programs use `grade`, `check`, `explain` and `Grader` (docs/automation.md).
"""

import importlib
import os
from typing import Any

# Number GPUs by PCI bus, as the driver's files and nvidia-smi do. By default CUDA puts the fastest
# first, and the timed GPU could differ from the GPU that is locked and passed to the sandbox.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

__version__ = "0.1.0"
FOR_PROGRAMS = ("Grader", "Item", "Result", "check", "explain", "grade", "profile")
"""Imported from `grader.automation` when they are used: the runner needs none of it. Their types
are in `__init__.pyi`."""


def __getattr__(name: str) -> Any:
    if name in FOR_PROGRAMS:
        return getattr(importlib.import_module("grader.automation"), name)
    raise AttributeError(f"module 'grader' has no attribute {name!r}")
