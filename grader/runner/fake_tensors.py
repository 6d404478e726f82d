"""CUDA tensors without memory, on which kernels can be compiled without a CUDA context.

Each wraps a tensor on PyTorch's meta device and reports that it is on the GPU. Under `FakeCudaMode`
a tensor created on the GPU is such a fake. Shapes, strides, dtypes and alignment are those of the
real tensor. An operation that needs values raises an exception. So does a custom operator, which
would otherwise do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

GPU = torch.device("cuda", 0)
LIKE_FUNCTIONS = (
    torch.empty_like,
    torch.zeros_like,
    torch.ones_like,
    torch.full_like,
    torch.rand_like,
    torch.randn_like,
    torch.randint_like,
)
"""On the meta device the first call of one of these loads half of PyTorch's compiler: a third of a
second in each process, or two with a cold disk. They are replaced by a clone, whose shape and
strides are the same."""


class FakeCudaTensor(torch.Tensor):
    """A meta tensor that reports to be on the GPU."""

    meta_tensor: torch.Tensor
    """The wrapped tensor, on the meta device."""

    @staticmethod
    def __new__(cls, meta_tensor: torch.Tensor) -> FakeCudaTensor:
        """Wrap a meta tensor."""
        made: FakeCudaTensor = torch.Tensor._make_subclass(cls, meta_tensor)
        made.meta_tensor = meta_tensor
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        """The index of the GPU."""
        return int(GPU.index)

    def data_ptr(self) -> int:
        """A unique address that is not on the GPU, with the alignment of the real tensor.

        A meta tensor's `data_ptr` is its offset. The storage's own address is unique, and shifted
        by 8 bits it is a multiple of 256.
        """
        wrapped = self.meta_tensor
        storage: int = wrapped.untyped_storage()._cdata << 8
        return storage + wrapped.data_ptr()

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation on the meta device. Pinning is skipped, as it needs a context."""
        if isinstance(function, OpOverload | OpOverloadPacket):
            raise NotImplementedError(f"{function} of a tensor that has no memory")
        if function is torch.Tensor.pin_memory:
            return arguments[0]
        if function is torch.Tensor.cuda:
            function, arguments, options = torch.Tensor.to, (arguments[0], GPU), None
        # A default device that was set still applies, and makes a real tensor.
        with torch._C.DisableTorchFunctionSubclass():
            arguments, options = tree_map(_to_meta, (arguments, options or {}))
            options.pop("pin_memory", None)
            if type(options.get("device")) is int:
                options["device"] = "meta"
            if function in LIKE_FUNCTIONS and _is_for_meta(*arguments, **options):
                function = _like
            return tree_map(_to_fake, function(*arguments, **options), is_leaf=_is_size)


class FakeCudaMode(TorchFunctionMode):
    """While active, tensors created on the GPU are `FakeCudaTensor`."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        """See `FakeCudaTensor.__torch_function__`."""
        return FakeCudaTensor.__torch_function__(function, types, arguments, options)


def _to_meta(value: Any) -> Any:
    if isinstance(value, FakeCudaTensor):
        return value.meta_tensor
    is_gpu = (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.partition(":")[0] == "cuda"
    )
    return "meta" if is_gpu else value


def _is_for_meta(input: torch.Tensor, *values: Any, device: Any = None, **_: Any) -> bool:
    return str(device or input.device) == "meta"


def _like(
    input: torch.Tensor,
    *values: Any,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
    **_: Any,
) -> torch.Tensor:
    """A meta tensor like another; it has no values."""
    made = input.to("meta").clone(memory_format=memory_format)
    return made.to(dtype or input.dtype)


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.Size)  # `tree_map` would turn it into a plain tuple


def _to_fake(value: Any) -> Any:
    return FakeCudaTensor(value) if isinstance(value, torch.Tensor) and value.is_meta else value
