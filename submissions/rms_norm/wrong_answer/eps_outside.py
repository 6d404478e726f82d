"""RMSNorm that adds eps to the root instead of to the mean under it."""


def rms_norm(x, weight, out, eps):
    values = x.float()
    root = values.square().mean(dim=-1, keepdim=True).sqrt()
    out.copy_(values / (root + eps) * weight.float())
