"""KernelBench: a module `Model` with random inputs. Weights are handed over by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from grader.runner.sets.driver import (
    LITERALS,
    Driver,
    Inputs,
    SetCase,
    Tree,
    UnsupportedError,
    Value,
    close,
    estimate,
    function_of,
    import_file,
)

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Of the set's own check, both absolute and relative."""

Made = TypeVar("Made")

SPREAD = 0.1
"""Standard deviation of what is added to weights that are all alike."""


class KernelBench(Driver):
    """A module. A submission defines `ModelNew`, with the same parameters by name."""

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        module = import_file(folder, "model.py")
        self._class = function_of(module, "Model")
        self._get_inputs = function_of(module, "get_inputs")
        self._init = list(function_of(module, "get_init_inputs")())
        if not all(map(_is_literal, self._init)):
            raise UnsupportedError("get_init_inputs() gives more than numbers, words and lists")
        self._device = device

    def cases(self, device: str) -> list[SetCase]:
        return [SetCase("inputs", "test"), SetCase("timed", "benchmark")]

    def memory_bytes(self, case: SetCase) -> int:
        made: list[Any] = []

        def make() -> list[torch.Tensor]:
            model = self._on_device(lambda: self._class(*self._init))
            made.extend([model, *self._on_device(self._get_inputs)])
            return [*model.state_dict().values(), *made[1:]]

        return estimate(make, lambda _: made[0](*made[1:])).memory_bytes

    def init_inputs(self) -> list[Any]:
        """What the module is made with."""
        return self._init

    def generate(self, case: SetCase, seed: int) -> Inputs:
        model = self._made()
        for parameter in model.parameters():
            _draw_if_constant(parameter)
        values = [Value(name, tensor, weight=True) for name, tensor in model.state_dict().items()]
        given = list(self._on_device(self._get_inputs))
        parts: list[Tree] = []
        for i, value in enumerate(given):
            if isinstance(value, torch.Tensor):
                parts.append({"value": len(values)})
                values.append(Value(f"x_{i}" if len(given) > 1 else "x", value.to(self._device)))
            elif isinstance(value, LITERALS):
                parts.append({"literal": value})
            else:
                raise UnsupportedError(f"a {type(value).__name__} among its inputs")
        return Inputs(values, {"tuple": parts})

    def _made(self) -> Any:
        """A new module. A copy of one would call the other's layers where it keeps a function that
        does, as `self.f = lambda x: self.layer(x)`."""
        return self._on_device(lambda: self._class(*self._init)).to(self._device)

    def _on_device(self, make: Callable[[], Made]) -> Made:
        """What the set makes on a CPU, made on the device where its code allows: a CPU draws a
        billion numbers in seconds, and inputs are drawn ten times."""
        try:
            with torch.device(self._device):
                return make()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # such as of tensors on two devices
            return make()

    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        state = {v.name: v.value for v in inputs.values if v.weight}
        model = self._made()
        wide = any(t.dtype == torch.float64 for t in inputs.tensors())
        # Weights in float64 take the place of the module's own: one more copy may not fit.
        model.load_state_dict(state, strict=True, assign=wide)
        if wide:
            model = model.double()  # what no weight is, too
        tensors = [v.value for v in inputs.values]
        parts = inputs.data["tuple"]
        return model(*(tensors[p["value"]] if "value" in p else p["literal"] for p in parts))

    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        expected = self.reference(case, inputs)
        if not isinstance(expected, torch.Tensor):
            raise UnsupportedError("it returns more than one tensor")
        bound = TOLERANCE.get(expected.dtype, 1e-4)
        return close([output], [expected], bound, bound)


def _draw_if_constant(parameter: torch.Tensor) -> None:
    """Change weights that are all alike, such as the scale of a normalization: a kernel that leaves
    them out must be wrong."""
    if parameter.is_floating_point() and bool((parameter == parameter.reshape(-1)[0]).all()):
        parameter.add_(torch.randn_like(parameter) * SPREAD)


def _is_literal(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_literal, value))
    return isinstance(value, LITERALS)
