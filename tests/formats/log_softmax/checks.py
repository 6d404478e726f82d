"""The largest element is taken off first, or not."""

from torch import Tensor


def _direct(x: Tensor) -> tuple[Tensor, Tensor]:
    lse = x.exp().sum(-1).log()
    return x - lse[:, None], lse


def _log_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    lse = x.exp().sum(-1).log()
    return x - lse[:, None], x.exp().sum(-1).log2()


def _shifted(x: Tensor) -> tuple[Tensor, Tensor]:
    lse = x.exp().sum(-1).log()
    return x - 1.001 * lse[:, None], lse


HONEST = {"without the largest": _direct}
MUTANTS = {"logarithms of base two": _log_of_two, "a wrong output beside right sums": _shifted}
