"""Int8 matrix-vector product that keeps its sum in fp16."""

import torch

STEP = 16


def int8_weight_only_gemv(x, w, scales, out):
    weights = w.half() * scales[:, None]
    out.zero_()
    for start in range(0, len(x), STEP):
        out += torch.mv(weights[:, start : start + STEP], x[start : start + STEP])
