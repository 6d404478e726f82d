"""Runs other people's code on another device or in another precision than it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_TO_FLOAT64 = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
}


class Float64(TorchFunctionMode):
    """Inside, every floating-point dtype that code names means float64, also the default one. Bits
    of integers that are viewed as numbers of a dtype have that dtype, and become float64."""

    def __enter__(self) -> Float64:
        _ACTIVE["unasserted"] += 1
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._default)
        _ACTIVE["unasserted"] -= 1

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.view and not _is_widened(args[0].dtype):
            viewed = function(*args, **(kwargs or {}))
            return viewed.double() if viewed.is_floating_point() else viewed
        function = _TO_FLOAT64.get(function, function)
        return function(*map(_wide, args), **{k: _wide(v) for k, v in (kwargs or {}).items()})


def _is_widened(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _wide(value: Any) -> Any:
    is_narrow = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if is_narrow else value


class _OnCpu(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        args = tuple(map(_on_cpu, args))
        return function(*args, **{k: _on_cpu(v) for k, v in (kwargs or {}).items()})


class _CpuGenerator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _CpuGenerator:
        return super().__new__(cls, device=_on_cpu(device))  # type: ignore[call-arg]


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


_ACTIVE = {"unasserted": 0, "cpu_for_cuda": 0}
"""How many contexts of a kind are entered."""


@contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """Inside, code that names the device ``cuda`` gets the CPU."""
    kept = torch.Generator, torch.cuda.synchronize, torch.nn.Module.cuda
    _ACTIVE["cpu_for_cuda"] += 1
    torch.Generator = _CpuGenerator  # type: ignore[misc]
    torch.cuda.synchronize = lambda *_: None
    torch.nn.Module.cuda = lambda self, *_: self  # type: ignore[method-assign]
    try:
        with _OnCpu():
            yield
    finally:
        _ACTIVE["cpu_for_cuda"] -= 1
        torch.Generator, torch.cuda.synchronize, torch.nn.Module.cuda = kept  # type: ignore[misc,method-assign]


def mean_cpu_by_cuda() -> None:
    """From now on, code of this process that names the device ``cuda`` gets the CPU."""
    _ENTERED.enter_context(cpu_for_cuda())


_ENTERED = ExitStack()
"""Never left."""


@contextmanager
def unasserted() -> Iterator[None]:
    """Inside, `assertions_hold` of nothing."""
    _ACTIVE["unasserted"] += 1
    try:
        yield
    finally:
        _ACTIVE["unasserted"] -= 1


def assertions_hold(of_device: bool) -> bool:
    """Whether what a problem asserts can hold here: of a dtype in float64, or `of_device`, where
    the CPU stands for another, it may not."""
    return not _ACTIVE["unasserted"] and not (of_device and _ACTIVE["cpu_for_cuda"])
