"""SwiGLU by exp(g) / (1 + exp(g)), which is NaN beyond 88."""


def swiglu(x, out):
    gate, up = x.float().chunk(2, dim=-1)
    power = gate.exp()
    out.copy_(gate * power / (1 + power) * up)
