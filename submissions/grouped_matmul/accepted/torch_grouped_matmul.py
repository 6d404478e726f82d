"""Grouped matmul by PyTorch: one product for each expert that has tokens."""

import torch


def grouped_matmul(x, w, sizes, out):
    groups = zip(x.split(sizes.tolist()), out.split(sizes.tolist()), w, strict=True)
    for rows, results, matrix in groups:
        if len(rows):
            torch.matmul(rows, matrix, out=results)
