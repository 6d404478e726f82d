"""LayerNorm's gradients by PyTorch's operators, in fp32."""


def layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias):
    grads, scale = dy.float(), rstd[:, None]
    normal = (x.float() - mean[:, None]) * scale
    inner = grads * weight.float()
    along = (inner * normal).mean(dim=-1, keepdim=True)
    dx.copy_((inner - inner.mean(dim=-1, keepdim=True) - normal * along) * scale)
    dweight.copy_((grads * normal).sum(dim=0))
    dbias.copy_(grads.sum(dim=0))
