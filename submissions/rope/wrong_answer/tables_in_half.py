"""Keeps the tables in the dtype of the model, here fp16, as if angles needed few digits."""


def rope(x, positions, cosines, sines, out):
    cos, sin = cosines.half()[positions][:, None], sines.half()[positions][:, None]
    first, second = x.float().chunk(2, dim=-1)
    half = x.shape[-1] // 2
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
