"""The place of each tensor of each argument set in a lent block.

The inputs of all sets come first, then everything a call may write (`out`, `inout`), so that one
copy takes all outputs and one comparison checks all inputs. Between two tensors lies a guard gap,
where the judge detects any write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ALIGNMENT = 512
"""Bytes to which every tensor is aligned, as in PyTorch's CUDA allocator."""
GUARD_BYTES = 512
"""The smallest gap between two tensors."""
GATE_BYTES = 4
"""Size of the gate: an int32 at the start of a block, in the gap before its first tensor. It holds
the number of the last round whose inputs are complete; a runner's stream can wait for it."""

_ELEMENTS: dict[str, tuple[str, int]] = {
    "fp64": ("float64", 8),
    "fp32": ("float32", 4),
    "fp16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "fp8_e4m3": ("float8_e4m3fn", 1),
    "fp8_e5m2": ("float8_e5m2", 1),
    "int64": ("int64", 8),
    "int32": ("int32", 4),
    "int16": ("int16", 2),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "bool": ("bool", 1),
}
"""Name of an element type in problems → its name in torch, and its size in bytes."""

_NAMES = {f"torch.{name}": dtype for dtype, (name, _) in _ELEMENTS.items()}

ITEM_BYTES = {dtype: size for dtype, (_, size) in _ELEMENTS.items()}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor in the block: offset in bytes, dtype, shape, and strides in elements."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes from the start of the first to the end of the last element."""
        return extent(self.dtype, self.shape, self.strides)


Value = TensorSpec | list[TensorSpec] | int | float | bool
"""One argument of a set: a tensor, a list of tensors, or a scalar passed by value."""


@dataclass(frozen=True)
class Layout:
    """The whole block: its size, where the writable part starts, and the sets in order."""

    nbytes: int
    writable_at: int
    """Every `in` tensor of every set lies below this offset, every `out` and `inout` above."""
    sets: list[list[Value]]

    def to_json(self) -> bytes:
        """Serialize, for the runner."""
        sets = [[pack(value) for value in values] for values in self.sets]
        return json.dumps(
            {"nbytes": self.nbytes, "writable_at": self.writable_at, "sets": sets},
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """Runner's side: parse what `to_json` wrote."""
        data = json.loads(text)
        sets = [[unpack(value) for value in values] for values in data["sets"]]
        return cls(data["nbytes"], data["writable_at"], sets)


def extent(dtype: str, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Bytes that a strided tensor spans; 0 when it has no elements."""
    if len(shape) == 1:  # fast path: a set may have thousands of vectors
        return (((shape[0] - 1) * strides[0]) + 1) * ITEM_BYTES[dtype] if shape[0] else 0
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * ITEM_BYTES[dtype]


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides in elements of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of a strided tensor may share memory, so that they could not be written
    independently."""
    reach = 0  # of the dimensions so far, those with the smallest strides first
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return 0 not in shape
        reach += stride * (size - 1)
    return False


def arrange(sets: list[list[tuple[bool, Value]]]) -> Layout:
    """Lay out sets of arguments, each as (writable, value). Offsets in the values are ignored."""
    placed: list[list[Value | None]] = [[None] * len(values) for values in sets]
    cursor = GUARD_BYTES
    writable_at = 0
    for writing in (False, True):
        if writing:
            writable_at = cursor
        for into, values in zip(placed, sets, strict=True):
            for i, (writable, value) in enumerate(values):
                if isinstance(value, TensorSpec) and writable == writing:
                    into[i], cursor = _place(value, cursor)
                elif isinstance(value, list) and writable == writing:
                    specs = []
                    for spec in value:
                        spec, cursor = _place(spec, cursor)
                        specs.append(spec)
                    into[i] = specs
                elif not isinstance(value, TensorSpec | list):
                    into[i] = value
    complete = [[value for value in values if value is not None] for values in placed]
    return Layout(cursor, writable_at, complete)


def view(buffer: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor of a spec as a view of `buffer`, which is one-dimensional uint8."""
    import torch

    dtype = getattr(torch, _ELEMENTS[spec.dtype][0])
    flat = buffer[spec.offset : spec.offset + spec.nbytes].view(dtype)
    return flat.as_strided(spec.shape, spec.strides)


def views(buffer: torch.Tensor, specs: list[TensorSpec]) -> list[torch.Tensor]:
    """A view per spec. Eight or more vectors of one dtype are split at once, 20 times faster."""
    import torch

    if len(specs) < 8 or any(s.strides != (1,) or s.dtype != specs[0].dtype for s in specs):
        return [view(buffer, spec) for spec in specs]
    size = ITEM_BYTES[specs[0].dtype]
    start, end = specs[0].offset, specs[-1].offset + specs[-1].shape[0] * size
    flat = buffer[start:end].view(getattr(torch, _ELEMENTS[specs[0].dtype][0]))
    sizes: list[int] = []
    for spec, following in zip(specs, [*specs[1:], None], strict=True):
        sizes.append(spec.shape[0])
        if following is not None:
            sizes.append((following.offset - spec.offset) // size - spec.shape[0])
    return list(flat.split(sizes))[::2]


def tensor_like(spec: TensorSpec, device: str) -> torch.Tensor:
    """A new tensor of zeros with the dtype, shape and strides of a spec."""
    import torch

    buffer = torch.zeros(spec.nbytes, dtype=torch.uint8, device=device)
    return view(buffer, replace(spec, offset=0))


def dtype_of(tensor: torch.Tensor) -> str | None:
    """A tensor's dtype as problems name it, such as ``fp32``; None if they cannot use it."""
    return _NAMES.get(str(tensor.dtype))


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor, at offset 0. Raises ValueError for a dtype that problems cannot use."""
    dtype = dtype_of(tensor)
    if dtype is None:
        raise ValueError(f"no argument can be of {tensor.dtype}")
    return TensorSpec(0, dtype, tuple(tensor.shape), tuple(tensor.stride()))


def _place(spec: TensorSpec, cursor: int) -> tuple[TensorSpec, int]:
    end = cursor + spec.nbytes + GUARD_BYTES
    end += -end % ALIGNMENT
    return TensorSpec(cursor, spec.dtype, spec.shape, spec.strides), end


def pack(value: Value) -> Any:
    """A value in JSON types."""
    if isinstance(value, TensorSpec):
        return {"t": [value.offset, value.dtype, value.shape, value.strides]}
    if isinstance(value, list):
        return {"l": [[s.offset, s.dtype, s.shape, s.strides] for s in value]}
    return {"s": value}


def unpack(data: Any) -> Value:
    """The value that `pack` serialized."""
    if "t" in data:
        return _spec(data["t"])
    if "l" in data:
        return [_spec(item) for item in data["l"]]
    return data["s"]  # type: ignore[no-any-return]


def _spec(item: list[Any]) -> TensorSpec:
    offset, dtype, shape, strides = item
    return TensorSpec(offset, dtype, tuple(shape), tuple(strides))
