"""Tensara: a subclass of the set's `Problem` with test cases, a reference and a check.

The set keeps `Problem` elsewhere, so the one here stands in for it. A submission is
`solution(...)` with the inputs, then the outputs, which it writes, then the extra parameters.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from grader.runner.sets.driver import (
    CaseEstimate,
    Driver,
    Inputs,
    SetCase,
    UnsupportedError,
    Value,
    estimate,
    import_file,
)

DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
    "int": torch.int32,
    "size_t": torch.int64,
    "uint8_t": torch.uint8,
    "uint32_t": torch.uint32,
    "uint64_t": torch.int64,
}
"""What the set calls an element type → its dtype."""
MOST_BYTES = 4 << 30
"""The inputs and outputs of the largest case that is judged."""


class ProblemBase:
    """Stands in for the set's base class of problems."""

    parameters: list[dict[str, Any]]
    seed = 0
    """What `get_seed` depends on besides its text, so that inputs are drawn anew."""

    def __init__(self, name: str, time_limit: float = 100) -> None:
        self.name = name
        self.time_limit = time_limit

    @staticmethod
    def get_seed(text: str) -> int:
        """The seed of a case's own generator."""
        drawn = hashlib.sha256(f"{ProblemBase.seed} {text}".encode()).digest()
        return int.from_bytes(drawn[:4], "little")

    def param_dtype(self, which: int | str) -> torch.dtype:
        """The dtype of a parameter, by its place or name."""
        if isinstance(which, str):
            which = [parameter["name"] for parameter in self.parameters].index(which)
        return DTYPES[self.parameters[which]["type"]]

    def get_extra_params(self, test_case: dict[str, Any]) -> list[Any]:
        """The arguments behind the outputs."""
        return []


class Tensara(Driver):
    """A problem. Its sample is the first test; its test cases are tests and benchmarks."""

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        module = ModuleType("problem")
        vars(module)["Problem"] = ProblemBase
        sys.modules["problem"] = module
        defined = vars(import_file(folder, "def.py")).values()
        found = [c for c in defined if isinstance(c, type) and issubclass(c, ProblemBase)]
        if not found[1:]:
            raise UnsupportedError("no class derived from Problem in def.py")
        made: Callable[[], Any] = found[-1]
        self._problem = made()
        self._device = device
        self._names = [str(p["name"]) for p in self._problem.parameters]
        self._types = [str(p["type"]) for p in self._problem.parameters]
        self._outputs: dict[str, list[torch.Tensor]] = {}
        """Case → outputs without memory, once the reference has made them."""
        self._is_tuple = False

    def cases(self, device: str) -> list[SetCase]:
        listed = self._problem.generate_test_cases()
        fitting = [
            (f"_{number}", {"case": str(test.get("name", ""))[:100]})
            for number, test in enumerate(listed, 1)
            if self._fits(test, device)
        ]
        sample = (
            [("_sample", dict[str, Any]())] if hasattr(self._problem, "generate_sample") else []
        )
        tests = [SetCase(f"test{name}", "test", shown) for name, shown in sample + fitting]
        timed = fitting if device == "cuda" else (sample + fitting)[:1]
        if not timed:
            raise UnsupportedError(f"every test is too large for a {device.upper()}")
        return [*tests, *(SetCase(f"benchmark{name}", "benchmark", p) for name, p in timed)]

    def generate(self, case: SetCase, seed: int) -> Inputs:
        ProblemBase.seed = seed
        test = self._test(case)
        given = test["create_inputs"]()
        given = list(given) if isinstance(given, tuple | list) else [given]
        if case.name not in self._outputs:
            self._outputs[case.name] = self._answer([_cloned(value) for value in given])
        outputs = [torch.zeros_like(t, device=self._device) for t in self._outputs[case.name]]
        extra = list(self._problem.get_extra_params(test))
        values = [
            *(self._value(i, value) for i, value in enumerate(given)),
            *(self._value(len(given) + i, value, "out") for i, value in enumerate(outputs)),
            *(
                self._value(len(given) + len(outputs) + i, value, is_fixed=True)
                for i, value in enumerate(extra)
            ),
        ]
        return Inputs(values, {"tuple": [{"value": i} for i in range(len(values))]})

    def solve(self, arguments: list[Any]) -> None:
        """Write the outputs among the arguments of a submission, by the reference."""
        count = len(inspect.signature(self._problem.reference_solution).parameters)
        for place, output in zip(arguments[count:], self._answer(arguments[:count]), strict=False):
            place.copy_(output.reshape(place.shape))

    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        """The outputs, in the memory that the inputs have for them. One of another dtype, as in
        float64, is as the reference gives it."""
        roles = [value.role for value in inputs.values]
        first = roles.index("out")
        answer = self._answer([value.value for value in inputs.values[:first]])
        places = [value.value for value in inputs.values if value.role == "out"]
        for i, place in enumerate(places):
            if place.dtype == answer[i].dtype:
                answer[i] = place.copy_(answer[i].reshape(place.shape))
        return tuple(answer)

    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        expected = tuple(t.clone() for t in self.reference(case, inputs))
        both = (expected, tuple(output)) if self._is_tuple else (expected[0], output[0])
        right, debug = self._problem.verify_result(*both)
        found = debug.items() if isinstance(debug, dict) else []
        words = [f"{key} {value:.3g}" for key, value in found if isinstance(value, int | float)]
        return bool(right), "" if right else ", ".join(words)

    def _answer(self, given: list[Any]) -> list[torch.Tensor]:
        answer = self._problem.reference_solution(*given)
        self._is_tuple = isinstance(answer, tuple | list)
        parts = list(answer) if self._is_tuple else [answer]
        if not all(isinstance(part, torch.Tensor) for part in parts):
            raise UnsupportedError("its reference returns more than tensors")
        return [part.to(self._device) for part in parts]

    def _test(self, case: SetCase) -> dict[str, Any]:
        if case.name.endswith("sample"):
            sample = self._problem.generate_sample()
            return sample[0] if isinstance(sample, list) else sample  # type: ignore[no-any-return]
        number = int(case.name.rpartition("_")[2])
        return self._problem.generate_test_cases()[number - 1]  # type: ignore[no-any-return]

    def memory_bytes(self, case: SetCase) -> int:
        return self._cost(self._test(case)).memory_bytes

    def _cost(self, test: dict[str, Any]) -> CaseEstimate:
        return estimate(
            test["create_inputs"], lambda given: self._problem.reference_solution(*given)
        )

    def _fits(self, test: dict[str, Any], device: str) -> bool:
        cost = self._cost(test)
        return cost.fits_cpu if device == "cpu" else cost.nbytes <= MOST_BYTES

    def _value(self, place: int, value: Any, role: str = "in", is_fixed: bool = False) -> Value:
        known = place < len(self._names)
        name, kind = (self._names[place], self._types[place]) if known else (f"x_{place}", "")
        if isinstance(value, torch.Tensor):
            return Value(name, value.to(self._device), role, is_fixed=is_fixed)
        if not isinstance(value, bool | int | float):
            raise UnsupportedError(f"'{name}' is a {type(value).__name__}")
        if kind:
            value = float(value) if DTYPES[kind].is_floating_point else int(value)
        return Value(name, value, role)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
