# grade: rule=memory_tampered
"""Computes the gradient in place of the logits, as training code does to save memory, and then copies
it. Here logits are an input, and the judge compares them with its own copy.
"""

import torch


def softmax_cross_entropy(logits, labels, scale, loss, grad):
    logarithms = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    loss.copy_(-logarithms.gather(1, labels[:, None])[:, 0])
    probabilities = logarithms.exp()
    ones = torch.ones_like(labels, dtype=torch.float32)
    probabilities.scatter_add_(1, labels[:, None], -ones[:, None])
    logits.copy_(probabilities * scale)
    grad.copy_(logits)
