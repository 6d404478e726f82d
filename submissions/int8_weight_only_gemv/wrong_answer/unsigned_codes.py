"""Int8 matrix-vector product that reads the codes as unsigned bytes."""

import torch


def int8_weight_only_gemv(x, w, scales, out):
    out.copy_(torch.mv(w.view(torch.uint8).float(), x.float()) * scales)
