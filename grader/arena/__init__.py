"""Memory that the judge lends: a block of tensors, shared with the runner by file descriptor."""

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
