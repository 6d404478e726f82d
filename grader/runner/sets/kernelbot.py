"""KernelBot: `generate_input()`, `ref_kernel()` and `check_implementation()`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from grader.runner.sets.driver import (
    CHECK,
    Driver,
    Inputs,
    SetCase,
    Tree,
    UnsupportedError,
    Value,
    estimate_call,
    flatten,
    function_of,
    import_file,
    unflatten,
)

MOST_SEED = 2**31 - 1
"""Too many for a table of answers, and still a seed for NumPy."""
SMALL_SEED = 99_991
"""The most of the set's own seeds, for a generator that adds the seed to the values: those of a
large one would all be rounded to it."""
ADDS_SEED = 1e4
"""By how much larger the values of a large seed are then, at least."""


class KernelBot(Driver):
    """A board. A submission is `custom_kernel(data)`, which returns the output."""

    has_output_buffer = True

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        module = import_file(folder, "reference.py")
        self._generate = function_of(module, "generate_input")
        self._reference = function_of(module, "ref_kernel")
        self._check = function_of(module, CHECK)
        self._modules = {path.stem for path in folder.glob("*.py")}
        self._options = options
        self._most_seed = MOST_SEED

    def cases(self, device: str) -> list[SetCase]:
        found = {
            kind: [
                SetCase(f"{kind}_{number}", kind, params)
                for number, params in enumerate(self._options[f"{kind}s"], 1)
            ]
            for kind in ("test", "benchmark")
        }
        if device == "cuda":
            self._choose_seeds(found["test"][0])
            return [*found["test"], *found["benchmark"]]
        tests = list(filter(self._fits_cpu, found["test"]))
        if not tests:
            raise UnsupportedError("every test is too large for a CPU")
        self._choose_seeds(tests[0])
        timed = next(filter(self._fits_cpu, found["benchmark"]), None)
        return [*tests, timed or SetCase("practice", "benchmark", tests[0].params)]

    def memory_bytes(self, case: SetCase) -> int:
        return estimate_call(self, case).memory_bytes

    def _fits_cpu(self, case: SetCase) -> bool:
        return estimate_call(self, case).fits_cpu

    def generate(self, case: SetCase, seed: int) -> Inputs:
        params = dict(case.params)
        if "seed" in params:
            params["seed"] = 1 + seed % self._most_seed
        return Inputs(*flatten(self._generate(**params), "data", self._modules))

    def _choose_seeds(self, case: SetCase) -> None:
        """Draw from fewer seeds if the generator adds the seed to the values."""
        small, large = (
            list(map(_size, self.generate(case, seed).values)) for seed in (0, MOST_SEED - 1)
        )
        if any(b > ADDS_SEED * a > 0 for a, b in zip(small, large, strict=False)):
            self._most_seed = SMALL_SEED

    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        return self._reference(unflatten(inputs.data, [v.value for v in inputs.values]))

    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        result = self._check(unflatten(inputs.data, [v.value for v in inputs.values]), output)
        if isinstance(result, tuple):  # (right, message), and in older boards only the message
            return bool(result[0]), str(result[1])
        return not result, str(result)

    def outputs(self, inputs: Inputs, result: Any) -> tuple[list[Value], Tree]:
        """What the reference returns, in float32 where it computes in float64 to be more exact than
        any submission."""
        found, tree = flatten(result, "out")
        if any(tensor.dtype == torch.float64 for tensor in inputs.tensors()):
            return found, tree
        wide = [one.value.dtype == torch.float64 for one in found]
        pairs = zip(found, wide, strict=True)
        return [replace(v, value=v.value.float()) if is_wide else v for v, is_wide in pairs], tree

    @property
    def has_one_answer(self) -> bool:
        code = getattr(self._check, "__code__", None)
        if code is None:  # such as a partial function
            return True
        cells = [cell.cell_contents for cell in self._check.__closure__ or ()]
        return self._reference in cells or "ref_kernel" in code.co_names


def _size(value: Value) -> float:
    """The median magnitude of a tensor's first elements; 0 of what is no tensor of numbers."""
    tensor = value.value
    if not isinstance(tensor, torch.Tensor) or tensor.element_size() == 1 or tensor.is_complex():
        return 0.0
    first = tensor.reshape(-1)[: 1 << 16]
    return float(first.double().abs().nanmedian()) if first.numel() else 0.0
