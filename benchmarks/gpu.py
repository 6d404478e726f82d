"""What scripts that time a GPU need."""

from __future__ import annotations

import sys

from grader.sandbox.gpu_info import cuda_missing


def needs_gpu() -> None:
    """End the program where there is no NVIDIA GPU that torch can use, and say why."""
    import torch

    if (why := cuda_missing()) is not None:
        sys.exit(f"this is measured on a GPU: {why}")
    if not torch.cuda.is_available():
        sys.exit("this is measured on a GPU, and torch sees none: is it a build with CUDA?")
