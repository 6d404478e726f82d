"""LeetGPU: a class `Challenge` with a signature, a reference that writes its outputs, and
generators of whole tests."""

from __future__ import annotations

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
    import_file,
)

MOST_CPU_BYTES = 64 << 20
"""A case with larger tensors is left to a GPU."""
PRACTICE_BYTES = 1 << 20
"""The largest test up to this size is timed on a CPU, or else the smallest one."""


class LeetGpu(Driver):
    """A challenge. A submission is `solve(...)` with every argument in the signature's order."""

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        self._device = device
        self._challenge = import_file(folder, "challenge.py").Challenge(device=device)
        if getattr(self._challenge, "num_gpus", 1) != 1:
            raise UnsupportedError("it needs several GPUs")
        self._roles = {
            name: role for name, (_, role) in self._challenge.get_solve_signature().items()
        }

    def cases(self, device: str) -> list[SetCase]:
        found = [SetCase("example", "test")]
        functional = self._challenge.generate_functional_test()
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
            Value(name, _drawn(made[name], self._device), role)
            for name, role in self._roles.items()
        ]
        data = {"tuple": [{"value": i} for i in range(len(values))]}
        return Inputs(values, data)

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
