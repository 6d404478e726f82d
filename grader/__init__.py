"""grade: a leaderboard and grading system for GPU kernels.

The judge never runs what it judges, and the judge's word is the only word.
"""

import os

# A GPU's number is its place on the PCI bus, as in the driver's files and in nvidia-smi. CUDA alone
# counts the fastest first, and would time another GPU than the one that is locked and handed out.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

__version__ = "0.1.0"
