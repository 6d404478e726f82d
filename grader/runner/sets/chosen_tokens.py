"""The indexer of DeepSeek's sparse attention in FlashInfer-Trace: which tokens have the largest
scores.

Keys lie in pages of a cache, in 8 bits: of each page first the codes of all its tokens, in e4m3,
then a scale of each in float32. A token's score is the sum over heads of ``weight * relu(query ·
key)``. Equal or almost equal scores make several choices right, so the set compares the scores of
the chosen tokens, in order of size, and not the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from grader.runner.sets.trace_checks import MatchLimits, flashinfer_fault

CACHE = "k_index_cache_fp8"
SCALE_BYTES = 4
LARGEST = 448.0
"""Of the finite values of e4m3."""


def random_cache(shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Normal keys of a cache [pages, tokens of a page, 1, dimensions + 4], as int8, which random
    bytes would not be."""
    pages, size, heads, width = shape
    keys = torch.randn(pages, size * heads, width - SCALE_BYTES, device=device)
    scales = keys.abs().amax(-1).clamp(min=1e-4) / LARGEST
    codes = (keys / scales[..., None]).to(torch.float8_e4m3fn)
    parts = [part.view(torch.uint8).reshape(pages, -1) for part in (codes, scales)]
    return torch.cat(parts, 1).view(torch.int8).reshape(shape)


def chosen_fault(
    inputs: Mapping[str, torch.Tensor],
    output: torch.Tensor,
    expected: torch.Tensor,
    tolerance: MatchLimits,
) -> str | None:
    """What is wrong with the chosen tokens [rows, most]; None if nothing is.

    Each must lie in a page of its row and before the row's length, at most once; a negative number
    is no token. Both choices must have as many, and their scores must agree.
    """
    page_size = inputs[CACHE].shape[1]
    got, want = torch.zeros(output.shape), torch.zeros(output.shape)
    for row, (chosen, right) in enumerate(zip(output, expected, strict=True)):
        tokens, others = (each[each >= 0].long() for each in (chosen, right))
        length = int(inputs["seq_lens"][row])
        place = torch.arange(length, device=tokens.device)
        pages = inputs["block_table"][row].long()
        known = pages[place // page_size] * page_size + place % page_size
        if not bool(torch.isin(tokens, known).all()):
            return f"row {row} has a token that is not of its sequence"
        if len(tokens.unique()) < len(tokens):
            return f"row {row} has a token twice"
        if len(tokens) != len(others):
            return f"row {row} has {len(tokens)} tokens instead of {len(others)}"
        for scores, of in ((got, tokens), (want, others)):
            scores[row, : len(of)] = _scores(inputs, row, of).sort(descending=True).values.cpu()
    if fault := flashinfer_fault(got, want, tolerance):
        return f"the scores of the chosen tokens, by size: {fault}"
    return None


def _scores(inputs: Mapping[str, torch.Tensor], row: int, tokens: torch.Tensor) -> torch.Tensor:
    cache = inputs[CACHE].view(torch.uint8)
    pages, size, heads, width = cache.shape
    flat = cache.reshape(pages, -1)
    codes_end = size * heads * (width - SCALE_BYTES)
    page, place = tokens // size, tokens % size
    codes = flat[:, :codes_end].reshape(pages, size, -1)[page, place].view(torch.float8_e4m3fn)
    scales = flat[:, codes_end:].reshape(pages, size, -1)[page, place].view(torch.float32)
    products = inputs["q_index_fp8"][row].float() @ (codes.float() * scales).T
    return (products.relu() * inputs["weights"][row][:, None]).sum(0)
