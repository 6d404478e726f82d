"""Tensors of a GPU's that have no memory: enough to compile kernels for, without a context on it.

Each is one of PyTorch's on no device ("meta") that says it is on the GPU, and while `FakeCudaMode`
lasts, what is made on the GPU is such a one. Shapes, strides, types and alignment are as they would
be; what needs values raises an exception, and so does an operator of somebody's own, of which
nothing would be done.
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
"""For these PyTorch loads half of its compiler when one is first asked for on no device: a third of
a second in each process, or two where the disk is cold. A copy has the same shape and strides."""


class FakeCudaTensor(torch.Tensor):
    """A tensor that says it is on the GPU."""

    meta_tensor: torch.Tensor
    """The one on no device."""

    @staticmethod
    def __new__(cls, meta_tensor: torch.Tensor) -> FakeCudaTensor:
        """One that stands for a tensor on no device."""
        made: FakeCudaTensor = torch.Tensor._make_subclass(cls, meta_tensor)
        made.meta_tensor = meta_tensor
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        """The GPU's index."""
        return int(GPU.index)

    def data_ptr(self) -> int:
        """An address in memory that is nobody else's, and not the GPU's. It is aligned as it would
        be: what it stands for has none but its offset, and the memory's begins at 256 bytes."""
        like = self.meta_tensor
        its_own: int = like.untyped_storage()._cdata << 8
        return its_own + like.data_ptr()

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Do on no device what is asked of it. Memory is not pinned: that would need a context."""
        if isinstance(function, OpOverload | OpOverloadPacket):
            raise NotImplementedError(f"{function} of a tensor that has no memory")
        if function is torch.Tensor.pin_memory:
            return arguments[0]
        if function is torch.Tensor.cuda:
            function, arguments, options = torch.Tensor.to, (arguments[0], GPU), None
        # A default device that was set is heeded, and makes what is really there.
        with torch._C.DisableTorchFunctionSubclass():
            arguments, options = tree_map(_on_no_device, (arguments, options or {}))
            options.pop("pin_memory", None)
            if type(options.get("device")) is int:
                options["device"] = "meta"
            if function in LIKE_FUNCTIONS and _is_for_no_device(*arguments, **options):
                function = _like
            return tree_map(_on_gpu, function(*arguments, **options), is_leaf=_is_size)


class FakeCudaMode(TorchFunctionMode):
    """While it lasts, what is made on the GPU is absent."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        """As of one that is absent."""
        return FakeCudaTensor.__torch_function__(function, types, arguments, options)


def _on_no_device(value: Any) -> Any:
    if isinstance(value, FakeCudaTensor):
        return value.meta_tensor
    is_gpu = (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.partition(":")[0] == "cuda"
    )
    return "meta" if is_gpu else value


def _is_for_no_device(input: torch.Tensor, *values: Any, device: Any = None, **_: Any) -> bool:
    return str(device or input.device) == "meta"


def _like(
    input: torch.Tensor,
    *values: Any,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
    **_: Any,
) -> torch.Tensor:
    """A tensor like another, on no device, where it is of no matter what would be in it."""
    made = input.to("meta").clone(memory_format=memory_format)
    return made.to(dtype or input.dtype)


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.Size)  # a tuple, which would come back as just that


def _on_gpu(value: Any) -> Any:
    return FakeCudaTensor(value) if isinstance(value, torch.Tensor) and value.is_meta else value
