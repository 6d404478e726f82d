"""The loss is right; its gradient is that of an unscaled loss."""

import torch


def softmax_cross_entropy(logits, labels, scale, loss, grad):
    logarithms = torch.log_softmax(logits.float(), dim=-1)
    loss.copy_(-logarithms.gather(1, labels[:, None])[:, 0])
    probabilities = logarithms.exp()
    probabilities[torch.arange(len(labels), device=labels.device), labels] -= 1
    grad.copy_(probabilities)
