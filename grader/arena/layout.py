"""Where each tensor of each argument set lies in a lent block.

All inputs of all sets come first and everything a call may write (`out`, `inout`) after them, so
that one copy takes all outputs and one comparison covers all inputs. Between any two tensors lies a
gap that belongs to nobody: a write there is seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ALIGNMENT = 512
"""Every tensor starts on this many bytes, as the CUDA allocator of PyTorch does it."""
GUARD_BYTES = 512
"""At least this much lies between two tensors."""
GATE_BYTES = 4
"""The first word of a block, an int32 in the guard that it begins with: the number of the last
round whose inputs are all there. A stream of the runner's can wait for it."""

_ELEMENTS: dict[str, tuple[str, int]] = {
    "fp64": ("float64", 8),
    "fp32": ("float32", 4),
    "fp16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "int64": ("int64", 8),
    "int32": ("int32", 4),
    "int16": ("int16", 2),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "bool": ("bool", 1),
}
"""Our name of an element type → its name in torch, and its size in bytes."""

ITEM_BYTES = {dtype: size for dtype, (_, size) in _ELEMENTS.items()}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor in the block: byte offset, dtype, shape and strides (in elements)."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes from the first to behind the last element."""
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
        """As the runner reads it."""
        sets = [[pack(value) for value in values] for values in self.sets]
        return json.dumps(
            {"nbytes": self.nbytes, "writable_at": self.writable_at, "sets": sets},
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """Runner's side: the layout that `to_json` wrote."""
        data = json.loads(text)
        sets = [[unpack(value) for value in values] for values in data["sets"]]
        return cls(data["nbytes"], data["writable_at"], sets)


def extent(dtype: str, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Bytes a strided tensor spans; 0 when it has no element."""
    if len(shape) == 1:  # thousands of vectors pass through here
        return (((shape[0] - 1) * strides[0]) + 1) * ITEM_BYTES[dtype] if shape[0] else 0
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * ITEM_BYTES[dtype]


def arrange(sets: list[list[tuple[bool, Value]]]) -> Layout:
    """Give every tensor its place, from (writable, value) per argument; offsets are ignored."""
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
                    slots = []
                    for slot in value:
                        slot, cursor = _place(slot, cursor)
                        slots.append(slot)
                    into[i] = slots
                elif not isinstance(value, TensorSpec | list):
                    into[i] = value
    complete = [[value for value in values if value is not None] for values in placed]
    return Layout(cursor, writable_at, complete)


def view(buffer: torch.Tensor, slot: TensorSpec) -> torch.Tensor:
    """The tensor of `slot` in `buffer` (uint8, one dimension), sharing its memory."""
    import torch

    dtype = getattr(torch, _ELEMENTS[slot.dtype][0])
    flat = buffer[slot.offset : slot.offset + slot.nbytes].view(dtype)
    return flat.as_strided(slot.shape, slot.strides)


def views(buffer: torch.Tensor, slots: list[TensorSpec]) -> list[torch.Tensor]:
    """A tensor over each slot; many vectors in a row are cut at once, which is 20 times faster."""
    import torch

    if len(slots) < 8 or any(s.strides != (1,) or s.dtype != slots[0].dtype for s in slots):
        return [view(buffer, slot) for slot in slots]
    size = ITEM_BYTES[slots[0].dtype]
    start, end = slots[0].offset, slots[-1].offset + slots[-1].shape[0] * size
    flat = buffer[start:end].view(getattr(torch, _ELEMENTS[slots[0].dtype][0]))
    cuts: list[int] = []
    for slot, following in zip(slots, [*slots[1:], None], strict=True):
        cuts.append(slot.shape[0])
        if following is not None:
            cuts.append((following.offset - slot.offset) // size - slot.shape[0])
    return list(flat.split(cuts))[::2]


def tensor_like(slot: TensorSpec, device: str) -> torch.Tensor:
    """A tensor of zeros with the dtype, shape and strides of a slot, in memory of its own."""
    import torch

    buffer = torch.zeros(slot.nbytes, dtype=torch.uint8, device=device)
    return view(buffer, replace(slot, offset=0))


def dtype_of(tensor: torch.Tensor) -> str | None:
    """The name of its element type in a spec, such as ``fp32``; None where a spec has none."""
    names = {f"torch.{name}": dtype for dtype, (name, _) in _ELEMENTS.items()}
    return names.get(str(tensor.dtype))


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """A slot (at offset 0) with the dtype, shape and strides of `tensor`; ValueError where a spec
    cannot name the dtype."""
    dtype = dtype_of(tensor)
    if dtype is None:
        raise ValueError(f"no argument can be of {tensor.dtype}")
    return TensorSpec(0, dtype, tuple(tensor.shape), tuple(tensor.stride()))


def _place(slot: TensorSpec, cursor: int) -> tuple[TensorSpec, int]:
    end = cursor + slot.nbytes + GUARD_BYTES
    end += -end % ALIGNMENT
    return TensorSpec(cursor, slot.dtype, slot.shape, slot.strides), end


def pack(value: Value) -> Any:
    """A value as JSON takes it."""
    if isinstance(value, TensorSpec):
        return {"t": [value.offset, value.dtype, value.shape, value.strides]}
    if isinstance(value, list):
        return {"l": [[s.offset, s.dtype, s.shape, s.strides] for s in value]}
    return {"s": value}


def unpack(data: Any) -> Value:
    """What `pack` made of a value."""
    if "t" in data:
        return _spec(data["t"])
    if "l" in data:
        return [_spec(item) for item in data["l"]]
    return data["s"]  # type: ignore[no-any-return]


def _spec(item: list[Any]) -> TensorSpec:
    offset, dtype, shape, strides = item
    return TensorSpec(offset, dtype, tuple(shape), tuple(strides))
