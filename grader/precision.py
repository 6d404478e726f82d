"""PyTorch's own precision, the same in the judge and in every sandbox."""

from __future__ import annotations

import torch


def keep_partial_sums_in_fp32() -> None:
    """Have cuBLAS add the parts of a 16-bit matrix product in fp32.

    PyTorch's default lets it round them to 16 bits, where it splits k. On an H200 plain `a @ b` was
    then off by up to 10 % of a result whose parts nearly cancel, as a kernel is that sums in bf16.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
