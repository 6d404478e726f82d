"""grade: a leaderboard and grading system for GPU kernels.

The judge never runs submitted code in its own process, and only the judge decides a verdict.
"""

import os

# Number GPUs by PCI bus, as the driver's files and nvidia-smi do. By default CUDA puts the fastest
# first, and the timed GPU could differ from the GPU that is locked and passed to the sandbox.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

__version__ = "0.1.0"
