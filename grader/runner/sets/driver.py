"""What the drivers of all problem sets have in common.

A driver runs the code of one problem as its set does. Its tensors travel as a flat list of values,
and a tree says how they lie in the set's own data: a JSON object with one key.

    {"value": 3}            the value number 3
    {"literal": "causal"}   a constant
    {"tuple": [...]}, {"list": [...]}, {"dict": {key: tree}}
    {"object": ["reference.Config", {"dict": {attribute: tree}}]}
                            an object of a class in the problem's own files
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
import math
import random
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from grader.runner.sets.redirect import assertions_hold, unasserted

Tree = dict[str, Any]
LITERALS = (int, float, bool, str, type(None))
CHECK = "check_implementation"
"""The function of a board that judges an output."""
CHECK_FUNCTIONS = "check_correctness"
"""That of a board for several functions, which it calls itself."""
MOST_CPU_BYTES = 32 << 20
MOST_CPU_FLOPS = 2e9
"""A case with larger inputs and outputs, or with more operations in matrix products, is left to a
GPU."""
MOST_STEPS = 1000
"""Calls of PyTorch after which an estimate ends."""

ROUNDING = {
    torch.float64: 1e-13,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
"""Dtype → the relative L2 difference of two answers that only rounding explains: of sums in float32
about a hundred of its roundings, and one rounding to 16 bits. Dropping one element of 1e8 at random
is more."""
NOT_FINITE = (torch.isnan, torch.isposinf, torch.isneginf)

PIECE_ELEMENTS = 1 << 24
"""Elements that are compared at a time."""
MOST_CPU_S = 3.0
"""A case whose inputs and answer take longer, in seconds of all processors together, is left to a
GPU: both are made ten times."""


class UnsupportedError(Exception):
    """The problem cannot be judged; the text says why, in a line for a person."""


@dataclass(frozen=True)
class SetCase:
    """One case of a problem, before its inputs are made."""

    name: str
    kind: str
    """``test`` or ``benchmark``."""
    params: dict[str, Any] = field(default_factory=dict)
    """What the set says of the case, to show."""


@dataclass(frozen=True)
class Value:
    """One argument of a call: a tensor or a number."""

    name: str
    value: Any
    role: str = "in"
    weight: bool = False
    """Whether it stays the same from call to call."""
    is_fixed: bool = False
    """Whether no seed changes it and none should: it says the sizes of others, or is an output that
    is handed over zeroed."""
    is_scratch: bool = False
    """Whether the reference writes it and does not return it, as a cache. A submission may, too."""
    view: str = ""
    """The dtype that it has in the set, where it travels as another of the same size."""
    c_type: str = ""
    """Of a number, its C type in the set's own prototype; empty if it has none."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call."""

    values: list[Value]
    data: Tree
    """How they lie in what the submission gets."""

    def tensors(self) -> list[torch.Tensor]:
        """The values that are tensors, in order."""
        return [v.value for v in self.values if isinstance(v.value, torch.Tensor)]

    def with_values(self, values: list[Any]) -> Inputs:
        """The same with other values, in order."""
        pairs = zip(self.values, values, strict=True)
        return replace(self, values=[replace(old, value=new) for old, new in pairs])


_CARRIED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
    torch.float4_e2m1fn_x2: torch.uint8,
}
"""A dtype that our problems do not have → that in which its bits travel."""


def to_carried(value: Value) -> Value:
    """A value as it travels, such as unsigned integers as signed ones of the same bits."""
    if not isinstance(value.value, torch.Tensor) or value.value.dtype not in _CARRIED:
        return value
    name = str(value.value.dtype).removeprefix("torch.")
    return replace(value, value=value.value.view(_CARRIED[value.value.dtype]), view=name)


def to_own(inputs: Inputs) -> Inputs:
    """The inputs as their set makes them, in the same memory."""
    return inputs.with_values([viewed(v.value, v.view) for v in inputs.values])


def viewed(value: Any, dtype: str) -> Any:
    """A tensor's bits as another dtype, if one is named."""
    return value.view(getattr(torch, dtype)) if dtype else value


class Driver(ABC):
    """One problem of a set."""

    has_output_buffer: bool = False
    """Whether the last input may be a buffer for the output, which the reference need not use."""

    @abstractmethod
    def cases(self, device: str) -> list[SetCase]:
        """The cases that fit on ``cpu`` or ``cuda``, in the set's order."""

    @abstractmethod
    def generate(self, case: SetCase, seed: int) -> Inputs:
        """The inputs of a call. All global generators are seeded already."""

    @abstractmethod
    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        """The set's own answer, in the set's own form, for inputs that it may write."""

    @abstractmethod
    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        """The set's own verdict on an output in its own form, and its message."""

    def memory_bytes(self, case: SetCase) -> int:
        """About what the inputs, the outputs and the largest tensor between them take; 0 where that
        is unknown. Nothing is computed."""
        return 0

    @property
    def has_one_answer(self) -> bool:
        """Whether the set's check compares with its reference, and does not judge properties."""
        return True

    def outputs(self, inputs: Inputs, result: Any) -> tuple[list[Value], Tree]:
        """The outputs in an answer, and how they lie in it."""
        return flatten(result, "out")


@dataclass(frozen=True)
class CaseEstimate:
    """What a case takes."""

    nbytes: int
    """Of its inputs and outputs."""
    flops: int
    """Of its matrix products and convolutions."""
    largest_bytes: int = 0
    """Of the largest tensor that is made."""

    @property
    def memory_bytes(self) -> int:
        """Of its inputs, its outputs and the largest tensor between them."""
        return self.nbytes + self.largest_bytes

    @property
    def fits_cpu(self) -> bool:
        """Whether a CPU can judge the case within seconds."""
        return self.nbytes <= MOST_CPU_BYTES and self.flops <= MOST_CPU_FLOPS


def estimate(make: Callable[[], Any], answer: Callable[[Any], Any]) -> CaseEstimate:
    """The cost of making inputs and an answer to them, found without computing it. What needs the
    values of tensors, or `MOST_STEPS`, ends the estimate, which is then too low."""
    nbytes = 0
    counter, steps = FlopCounterMode(display=False), _Steps()
    with torch.no_grad(), FakeTensorMode(), steps, counter, unasserted():
        try:
            inputs = make()
            nbytes = _nbytes(inputs)
            nbytes += _nbytes(answer(inputs))
        except Exception:  # noqa: BLE001 - the set's own code, on tensors without values
            pass
    return CaseEstimate(nbytes, counter.get_total_flops(), steps.largest_bytes)


def estimate_call(driver: Driver, case: SetCase) -> CaseEstimate:
    """The cost of a case of a driver, of which a copy keeps what it learns meanwhile."""
    other = copy.copy(driver)
    made: list[Inputs] = []

    def make() -> list[torch.Tensor]:
        made.append(other.generate(case, 1))
        return made[0].tensors()

    return estimate(make, lambda _: other.reference(case, made[0]))


class _Steps(TorchDispatchMode):
    """Raises after `MOST_STEPS`, and notes the size of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = MOST_STEPS
        self.largest_bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("too many steps")
        made = function(*args, **(kwargs or {}))
        sizes = [t.nbytes for t in _pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        self.largest_bytes = max(self.largest_bytes, *sizes, 0)
        return made


def _nbytes(data: Any) -> int:
    parts = _pytree.tree_leaves(data)
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))


def seed_all(seed: int) -> None:
    """Seed every global generator that a problem may use."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def cpu_limit(device: str) -> Iterator[None]:
    """On a CPU, end what takes longer than `MOST_CPU_S`, at the end of its current operation. Time
    of the processor: how busy the machine is must not decide which cases there are."""
    if device != "cpu":
        yield
        return

    def stop(*_: object) -> None:
        raise UnsupportedError(f"its inputs and answer take a CPU more than {MOST_CPU_S:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def flatten(data: Any, name: str = "x", modules: Collection[str] = ()) -> tuple[list[Value], Tree]:
    """The tensors in nested data, named after their places, and the tree that rebuilds it.

    Raises `UnsupportedError` for anything but tensors, tuples, lists, dicts, constants, and objects
    of classes in these `modules`, which are rebuilt from their attributes.
    """
    values: list[Value] = []
    return values, _flattened(data, name, values, modules)


def _flattened(part: Any, path: str, values: list[Value], modules: Collection[str]) -> Tree:
    """The tree of some of the data; adds its tensors to `values`. A function inside `flatten` that
    calls itself would keep them until Python next looks for cycles."""
    if isinstance(part, torch.Tensor):
        values.append(Value(path, part))
        return {"value": len(values) - 1}
    if isinstance(part, tuple | list):
        kind = "tuple" if isinstance(part, tuple) else "list"
        parts = [_flattened(one, f"{path}_{i}", values, modules) for i, one in enumerate(part)]
        return {kind: parts}
    if isinstance(part, dict) and all(isinstance(key, str) for key in part):
        found = {k: _flattened(one, f"{path}_{k}", values, modules) for k, one in part.items()}
        return {"dict": found}
    if isinstance(part, LITERALS):
        return {"literal": part}
    module, name = type(part).__module__, type(part).__qualname__
    is_found = getattr(sys.modules.get(module), name, None) is type(part)
    if module in modules and is_found and hasattr(part, "__dict__"):
        attributes = _flattened(_attributes(part), path, values, modules)
        return {"object": [f"{module}.{name}", attributes]}
    raise UnsupportedError(f"a {type(part).__name__} among its inputs or outputs")


def _attributes(made: Any) -> dict[str, Any]:
    """What an object holds, by name; of a module, its buffers, parameters and modules too."""
    own: dict[str, Any] = vars(made)
    if not isinstance(made, torch.nn.Module):
        return own
    inner = vars(torch.nn.Module()).keys() - {"training"}
    own = {name: value for name, value in own.items() if name not in inner}
    return own | made._buffers | made._parameters | made._modules


def _object(name: str, attributes: dict[str, Any]) -> Any:
    """An object of a class, such as ``reference.Config``, with these attributes. No constructor of
    the class runs; all tensors of a module become buffers."""
    module, _, class_name = name.partition(".")
    kind = getattr(importlib.import_module(module), class_name)
    made = object.__new__(kind)
    if not isinstance(made, torch.nn.Module):
        vars(made).update(attributes)
        return made
    torch.nn.Module.__init__(made)
    for key, value in attributes.items():
        if isinstance(value, torch.Tensor):
            made._buffers[key] = value
        else:
            setattr(made, key, value)
    return made


def has_objects(tree: Tree) -> bool:
    """Whether there is an object in what a tree describes."""
    ((kind, part),) = tree.items()
    parts = part.values() if kind == "dict" else part if kind in ("tuple", "list") else []
    return kind == "object" or any(map(has_objects, parts))


def unflatten(tree: Tree, values: list[Any]) -> Any:
    """The data that a tree describes."""
    ((kind, part),) = tree.items()
    if kind == "value":
        return values[part]
    if kind == "tuple":
        return tuple(unflatten(one, values) for one in part)
    if kind == "list":
        return [unflatten(one, values) for one in part]
    if kind == "dict":
        return {key: unflatten(one, values) for key, one in part.items()}
    if kind == "object":
        return _object(part[0], unflatten(part[1], values))
    return part


def close(
    output: list[torch.Tensor], expected: list[torch.Tensor], atol: float, rtol: float
) -> tuple[bool, str]:
    """Whether all elements are within ``atol + rtol * |expected|``, NaN where NaN is expected, and
    the worst one in words."""
    for got, want in zip(output, expected, strict=True):
        if got.shape != want.shape:
            return False, f"shape {tuple(got.shape)} instead of {tuple(want.shape)}"
        worst, values = 0.0, ""
        for some, others in zip(pieces(got), pieces(want), strict=True):
            wide, right = some.double(), others.double()
            same = (wide == right) | (torch.isnan(wide) & torch.isnan(right))
            share = (wide - right).abs() / (atol + rtol * right.abs())
            share = torch.where(same, 0.0, share).nan_to_num(math.inf, math.inf)
            if share.numel() and (most := float(share.max())) > worst:
                worst, at = most, int(share.argmax())
                values = f"{float(wide[at]):.6g} instead of {float(right[at]):.6g}"
        if worst > 1:
            return False, f"off by up to {worst:.3g} times atol {atol:g} + rtol {rtol:g}: {values}"
    return True, ""


def is_near(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of floating-point numbers of one shape differ by no more than `ROUNDING`,
    with NaN and infinities in the same places."""
    errors, sizes = [], []
    for some, others in zip(pieces(first), pieces(second), strict=True):
        if any(not torch.equal(is_kind(some), is_kind(others)) for is_kind in NOT_FINITE):
            return False
        wide, other = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (some, others))
        errors.append(float((wide - other).norm()))
        sizes.append(float(wide.norm()))
    return math.hypot(*errors) <= ROUNDING.get(first.dtype, 0.0) * math.hypot(*sizes)


def pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor's elements in order, as vectors of at most `PIECE_ELEMENTS`: what is computed of
    them in float64 must not be as large as the tensor."""
    found: tuple[torch.Tensor, ...] = tensor.reshape(-1).split(PIECE_ELEMENTS)
    return found


def import_file(folder: Path, file: str) -> ModuleType:
    """Import a file of the problem. Its assertions hold only while they can: many compare dtypes,
    and would refuse float64."""
    path = folder / file
    name = path.stem
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module
    tree = _Assertions().visit(ast.parse(path.read_bytes(), str(path)))
    vars(module)[_HOLD] = assertions_hold
    exec(compile(tree, str(path), "exec"), vars(module))  # noqa: S102 - this is the sandbox for it
    return module


_HOLD = "__assertions_hold__"


class _Assertions(ast.NodeTransformer):
    """Puts each assertion behind ``if __assertions_hold__(of_device):``."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        of_device = any(word in ast.unparse(node.test) for word in ("cuda", "device"))
        holds = ast.Call(ast.Name(_HOLD, ast.Load()), [ast.Constant(of_device)], [])
        return ast.fix_missing_locations(ast.copy_location(ast.If(holds, [node], []), node))


def function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function of a problem's file. Raises `UnsupportedError` if it is missing."""
    found = getattr(module, name, None)
    if not callable(found):
        raise UnsupportedError(f"no function named '{name}' in {module.__name__}.py")
    return found  # type: ignore[no-any-return]
