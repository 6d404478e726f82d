"""Int4 matmul that returns its output, with the scales applied to each group's partial product."""

import torch

GROUP = 128


def int4_matmul(a, b_packed, scales):
    nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
    groups = (nibbles.half() - 8).unflatten(0, (-1, GROUP))
    total = torch.zeros(a.shape[0], nibbles.shape[1], dtype=torch.float32, device=a.device)
    for group, (weights, scale) in enumerate(zip(groups, scales, strict=True)):
        columns = a[:, group * GROUP : (group + 1) * GROUP]
        # Sums of fp16 values times integers up to 8: nearly exact in fp32.
        total.addcmul_(columns.float() @ weights.float(), scale.float())
    return total.half()
