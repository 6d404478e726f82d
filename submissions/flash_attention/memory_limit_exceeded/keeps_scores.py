"""Keeps the scores of an endless number of imaginary heads until it is killed."""

import torch


def flash_attention(q, k, v, out, causal, scale):
    heads = []
    while True:
        heads.append(torch.full((16384, 16384), scale))
