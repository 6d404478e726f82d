"""Memory the judge lends: one block, laid out in tensors, passed as a file descriptor."""

from grader.arena.layout import (
    Layout,
    TensorSpec,
    Value,
    arrange,
    pack,
    tensor_like,
    unpack,
    view,
    views,
)

__all__ = [
    "Layout",
    "TensorSpec",
    "Value",
    "arrange",
    "pack",
    "tensor_like",
    "unpack",
    "view",
    "views",
]
