"""LayerNorm's input gradient without the part along the normalized row: each row then seems to be free
to change its deviation.
"""


def layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias):
    grads, scale = dy.float(), rstd[:, None]
    normal = (x.float() - mean[:, None]) * scale
    inner = grads * weight.float()
    dx.copy_((inner - inner.mean(dim=-1, keepdim=True)) * scale)
    dweight.copy_((grads * normal).sum(dim=0))
    dbias.copy_(grads.sum(dim=0))
