"""Inputs of FlashInfer-Trace and SOL-ExecBench: random ones, as each set draws them, and tensors
of safetensors files."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from grader.runner.sets.driver import UnsupportedError

Shape = tuple[int, ...]
Predicate = Callable[[str, Shape, str], bool]
"""Of a name, a shape and a description in lower case."""
Make = Callable[[Shape, torch.dtype, str], torch.Tensor]

INTEGERS = {torch.int8: 128, torch.uint8: 256}
"""Both sets draw integers of -n to n - 1 (unsigned ones of 0 to n - 1); other dtypes by `INDEX`."""
INDEX = 1024
ABOUT = 1 / 8
"""Norm weights are drawn this near to one, and norm biases to zero. The set has them constant, and
a submission that ignores them would be right."""


def random_tensor(shape: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Normal values, integers of a fixed range, or booleans, of the global generator."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(shape, dtype=dtype, device=device)
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).clamp_(-2, 2).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, device=device).bool()
    end = INTEGERS.get(dtype, INDEX)
    start = 0 if dtype is torch.uint8 else -end
    return torch.randint(start, end, shape, dtype=dtype, device=device)


def named_tensor(
    name: str, shape: Shape, dtype: torch.dtype, device: str, description: str
) -> torch.Tensor:
    """A random tensor as SOL-ExecBench draws it, whose name may tell what kind of values it has."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        for matches, make in _KINDS:
            if matches(name, shape, description.lower()):
                return make(shape, dtype, device).to(dtype)
    return random_tensor(shape, dtype, device)


def _named(pattern: str) -> Predicate:
    return lambda name, shape, description: re.fullmatch(pattern, name) is not None


def _is_causal_mask(name: str, shape: Shape, description: str) -> bool:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return False
    is_named = "attention mask" in description and "causal" in description
    return is_named or name in ("attention_mask", "causal_mask")


def _is_binary_mask(name: str, shape: Shape, description: str) -> bool:
    words = ("binary", "{0, 1}", "0 or 1", "1.0 for valid", "0.0 for masked")
    is_named = name.endswith("_mask") and any(word in description for word in words)
    return is_named or re.fullmatch("(x|text|aspect_ratio|drop|attention)_mask", name) is not None


def _is_softmax(name: str, shape: Shape, description: str) -> bool:
    is_named = "softmax" in description and "output" in description
    return is_named or name in ("attn_weights", "attention_weights", "routing_weights")


def _is_matrix(name: str, shape: Shape, description: str) -> bool:
    pattern = r"weight\d*|.*_(weights?|projs?|weight_matrix)\d*"
    return len(shape) >= 2 and re.fullmatch(pattern, name) is not None


def _uniform(low: float, high: float) -> Make:
    return lambda shape, dtype, device: torch.empty(shape, device=device).uniform_(low, high)


def _normal(change: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    return lambda shape, dtype, device: change(torch.randn(shape, device=device))


def _bits(shape: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randint(0, 2, shape, device=device)


def _causal_mask(shape: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    hidden = torch.ones(shape, dtype=torch.bool, device=device).triu(1)
    least = torch.finfo(dtype).min
    return torch.zeros(shape, dtype=dtype, device=device).masked_fill_(hidden, least)


def _decays(shape: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.empty(shape, device=device).uniform_(-0.1, 0).cumsum(-1)


_KINDS: list[tuple[Predicate, Make]] = [
    (_named(r".*norm\d*_weight"), _uniform(1 - ABOUT, 1 + ABOUT)),
    (_named(r".*norm\d*_bias"), _uniform(-ABOUT, ABOUT)),
    (_is_causal_mask, _causal_mask),
    (_is_binary_mask, _bits),
    (_named("cos|cos_cached|rope_cos"), _normal(lambda x: x.clamp(-math.pi, math.pi).cos())),
    (_named("sin|sin_cached|rope_sin"), _normal(lambda x: x.clamp(-math.pi, math.pi).sin())),
    (_named(r"(.*_)?(rstd|std|variance|var)\d*"), _normal(lambda x: x.abs() + 0.1)),
    (_named("A_cumsum"), _decays),
    (_named("A_log"), _uniform(-5, -1)),
    (_named("A"), _uniform(-1, -0.001)),
    (_named("g"), _uniform(-5, 0)),
    (_is_softmax, _normal(lambda x: x.softmax(-1))),
    (_is_matrix, _normal(lambda x: x / math.sqrt(x.shape[-1]))),
]
"""The first that matches decides."""

_SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_tensor(path: Path, key: str) -> torch.Tensor:
    """One tensor of a safetensors file: eight bytes with the length of a JSON header, the header,
    and the tensors' bytes. Raises `UnsupportedError`."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8:end])
        entry = header[key]
        dtype, shape = _SAFETENSORS[entry["dtype"]], list(entry["shape"])
        first, last = entry["data_offsets"]
        data = bytearray(content[end + first : end + last])
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
    except KeyError as error:
        raise UnsupportedError(f"{path.name}: it has no {error}") from None
    except (ValueError, TypeError, RuntimeError) as error:
        raise UnsupportedError(f"{path.name}: not a safetensors file ({error})") from None


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip


def size_of(expression: str, axes: dict[str, int]) -> int:
    """An axis computed of others by ``+ - * / // % **``. Raises `UnsupportedError`."""

    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name):
            return axes[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS[type(node.op)](value(node.operand))
        raise ValueError

    try:
        found = value(ast.parse(expression.strip(), mode="eval").body)
        size = int(found)
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError):
        raise UnsupportedError(f"the axis '{expression}' cannot be computed") from None
    if found != size or size < 0:
        raise UnsupportedError(f"the axis '{expression}' is {found}")
    return size
