"""LeetGPU: a class `Challenge` with a signature, a reference that writes its outputs, and
generators of whole tests."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from grader.runner.sets.driver import (
    Driver,
    Inputs,
    SetCase,
    UnsupportedError,
    Value,
    close,
    cpu_limit,
    estimate_call,
    import_file,
    is_near,
)

MOST_CPU_BYTES = 64 << 20
"""A case with larger tensors is left to a GPU."""
PRACTICE_BYTES = 1 << 20
"""The largest test up to this size is timed on a CPU, or else the smallest one."""

C_TYPES = {
    ctypes.c_bool: "bool",
    ctypes.c_double: "double",
    ctypes.c_float: "float",
    ctypes.c_int: "int",
    ctypes.c_int64: "int64_t",
    ctypes.c_size_t: "size_t",
}
"""What a signature calls a number → its type in C."""
MARKS = 113, 97
"""What an output holds before the reference runs twice: what keeps both was not written."""


class LeetGpu(Driver):
    """A challenge. A submission is `solve(...)` with every argument in the signature's order."""

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        self._device = device
        self._challenge = import_file(folder, "challenge.py").Challenge(device=device)
        if getattr(self._challenge, "num_gpus", 1) != 1:
            raise UnsupportedError("it needs several GPUs")
        self._zeroed: set[str] = set()
        """Outputs that are handed over zeroed, and written in part."""
        signature = self._challenge.get_solve_signature()
        self._roles = {name: role for name, (_, role) in signature.items()}
        self._c_types = {name: C_TYPES.get(kind, "") for name, (kind, _) in signature.items()}

    def cases(self, device: str) -> list[SetCase]:
        found = [SetCase("example", "test")]
        functional = self._challenge.generate_functional_test()
        with suppress(Exception):  # of the set's own code: its case says so when it is described
            for test in [self._challenge.generate_example_test(), *functional]:
                self._note_zeroed(test)
        found += [SetCase(f"test_{i + 1}", "test") for i in range(len(functional))]
        if device == "cuda":
            return [*found, SetCase("performance", "benchmark")]
        sizes = [_nbytes(test) for test in functional]
        small = [size for size in sizes if size <= MOST_CPU_BYTES]
        if not small:
            raise UnsupportedError("every test is too large for a CPU")
        kept = [found[0], *(c for c, size in zip(found[1:], sizes, strict=True) if size in small)]
        timed = max((size for size in small if size <= PRACTICE_BYTES), default=min(small))
        return [*kept, SetCase(f"practice_{sizes.index(timed) + 1}", "benchmark")]

    def generate(self, case: SetCase, seed: int) -> Inputs:
        if case.name == "example":
            made = self._challenge.generate_example_test()
        elif case.name == "performance":
            made = self._challenge.generate_performance_test()
        else:
            number = int(case.name.rpartition("_")[2])
            made = self._challenge.generate_functional_test()[number - 1]
        if missing := [name for name in self._roles if name not in made]:
            raise UnsupportedError(f"its generator makes no '{missing[0]}'")
        values = [
            Value(
                name,
                _drawn(made[name], self._device),
                role,
                is_fixed=name in self._zeroed,
                c_type=self._c_types[name],
            )
            for name, role in self._roles.items()
        ]
        data = {"tuple": [{"value": i} for i in range(len(values))]}
        return Inputs(values, data)

    def _note_zeroed(self, test: dict[str, Any]) -> None:
        """Note the outputs of which the reference leaves a part as it was, or to which it adds: the
        set hands them over zeroed, so they are inputs too."""
        if _nbytes(test) > PRACTICE_BYTES or any(name not in test for name in self._roles):
            return
        given = {name: _drawn(test[name], self._device) for name in self._roles}
        outs = [
            name
            for name, role in self._roles.items()
            if role == "out" and isinstance(given[name], torch.Tensor) and not given[name].any()
        ]
        with cpu_limit(self._device):
            first, second = (self._marked(given, outs, mark) for mark in MARKS)
        for name in outs:
            # Looked for by itself: of a large output, one such element is less than rounding.
            left = (first[name] == MARKS[0]) & (second[name] == MARKS[1])
            if bool(left.any()) or not is_near(first[name], second[name]):
                self._roles[name] = "inout"
                self._zeroed.add(name)

    def _marked(self, given: dict[str, Any], outs: list[str], mark: int) -> dict[str, Any]:
        """The arguments after the reference has run with outputs full of a mark."""
        values = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        for name in outs:
            values[name].fill_(mark)
        self._challenge.reference_impl(**values)
        return values

    def memory_bytes(self, case: SetCase) -> int:
        return estimate_call(self, case).memory_bytes

    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        self._challenge.reference_impl(**{v.name: v.value for v in inputs.values})
        return tuple(v.value for v in inputs.values if v.role != "in")

    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        expected = self.reference(case, inputs)
        atol, rtol = float(self._challenge.atol), float(self._challenge.rtol)
        return close(list(output), list(expected), atol, rtol)


def _nbytes(test: dict[str, Any]) -> int:
    shapes = [getattr(value, "shape", ()) for value in test.values()]
    return sum(4 * torch.Size(shape).numel() for shape in shapes)


def _drawn(value: Any, device: str) -> Any:
    """A value, or what one of the set's descriptions of random tensors describes."""
    kind = type(value).__name__
    if not kind.endswith("Tensor") or isinstance(value, torch.Tensor):
        return value
    dtype = getattr(torch, value.dtype)
    made = torch.empty(value.shape, dtype=dtype, device=device)
    if kind == "RandTensor":
        return made.uniform_(value.low, value.high)
    if kind == "RandnTensor":
        return made.normal_(value.mean, value.std)
    if kind == "RandIntTensor":
        drawn = torch.randint(value.low, value.high, value.shape, device=device)
        return drawn.to(dtype)
    if kind == "FullTensor":
        return made.fill_(value.value)
    if kind == "OutTensor":
        return made.zero_()
    raise UnsupportedError(f"a {kind}, which is unknown here, among its inputs")
