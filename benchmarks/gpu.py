"""The requirement that all scripts share which time a GPU."""

from __future__ import annotations

import sys

from grader.sandbox.gpu_info import cuda_missing


def require_gpu() -> None:
    """Exit with a reason unless torch can use an NVIDIA GPU."""
    import torch

    if (why := cuda_missing()) is not None:
        sys.exit(f"this script needs a GPU: {why}")
    if not torch.cuda.is_available():
        sys.exit("this script needs a GPU, and torch sees none; install a torch with CUDA")
