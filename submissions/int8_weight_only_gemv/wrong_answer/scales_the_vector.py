"""Int8 matrix-vector product that scales columns instead of rows."""

import torch


def int8_weight_only_gemv(x, w, scales, out):
    repeated = scales.repeat(-(-len(x) // len(scales)))[: len(x)]
    out.copy_(torch.mv(w.float(), x.float() * repeated))
