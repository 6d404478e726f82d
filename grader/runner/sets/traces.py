"""FlashInfer-Trace and SOL-ExecBench: a reference `run(*inputs)`, and workloads as data."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch

from grader.runner.sets.chosen_tokens import CACHE, chosen_fault, random_cache
from grader.runner.sets.driver import (
    Driver,
    Inputs,
    SetCase,
    Tree,
    UnsupportedError,
    Value,
    function_of,
    import_file,
)
from grader.runner.sets.trace_checks import MatchLimits, flashinfer_fault, sol_fault
from grader.runner.sets.trace_inputs import named_tensor, random_tensor, read_tensor, size_of

MOST_CPU_BYTES = 64 << 20
"""A workload with larger tensors is left to a GPU."""
MOST_CPU_TESTS = 6

Workload = dict[str, Any]


class Traces(Driver):
    """A definition. A submission is `run(*inputs)`, or with `*outputs` that it writes."""

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        problem = json.loads((folder / "problem.json").read_bytes())
        module = import_file(folder, "reference.py")
        self._reference = function_of(module, "run")
        self._custom = function_of(module, problem["custom"]) if problem["custom"] else None
        self._axes = problem["axes"]
        self._inputs = problem["inputs"]
        self._outputs = problem["outputs"]
        self._workloads: dict[int, Workload] = {w["number"]: w for w in problem["workloads"]}
        self._blobs = folder / "blobs"
        self._device = device
        self._proven: set[str] = set()
        """Cases whose reference passes the set's check."""

    def cases(self, device: str) -> list[SetCase]:
        tests = timed = list(self._workloads)
        if device == "cpu":
            small = [n for n in tests if self._nbytes(n) <= MOST_CPU_BYTES]
            if not small:
                raise UnsupportedError("every workload is too large for a CPU")
            tests = sorted(small, key=self._nbytes)[:MOST_CPU_TESTS]
            timed = [tests[len(tests) // 2]]  # a larger one may take too long, and be left out
        return [
            SetCase(f"{kind}_{number}", kind, self._workloads[number]["axes"])
            for kind, numbers in (("test", tests), ("benchmark", timed))
            for number in numbers
        ]

    def generate(self, case: SetCase, seed: int) -> Inputs:
        workload = self._workload(case)
        axes, given = self._sizes(workload), workload["inputs"]
        custom: dict[str, Any] = {}
        if any(source["type"] == "custom" for source in given.values()):
            assert self._custom is not None
            scalars = {n: s["value"] for n, s in given.items() if s["type"] == "scalar"}
            custom = self._custom(axes | scalars, torch.device(self._device))
        values = [
            Value(declared["name"], self._input(declared, given, axes, custom))
            for declared in self._inputs
        ]
        return Inputs(values, {"tuple": [{"value": i} for i in range(len(values))]})

    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        result = self._named(self._reference(*(v.value for v in inputs.values)))
        if case.name not in self._proven:
            if fault := self._fault(case, inputs, result, result):
                raise UnsupportedError(f"its own check refuses its reference: {fault}")
            self._proven.add(case.name)
        return result

    def outputs(self, inputs: Inputs, result: Any) -> tuple[list[Value], Tree]:
        values = [Value(name, tensor) for name, tensor in result.items()]
        return values, {"dict": {v.name: {"value": i} for i, v in enumerate(values)}}

    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        fault = self._fault(case, inputs, output, self.reference(case, inputs))
        return not fault, fault or ""

    def _random(
        self, declared: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        return random_tensor(shape, dtype, self._device)

    @abstractmethod
    def _output_fault(
        self, output: torch.Tensor, expected: torch.Tensor, tolerance: MatchLimits
    ) -> str | None:
        """What the set's check finds wrong with an output; None if nothing is."""

    def _fault(self, case: SetCase, inputs: Inputs, output: Any, expected: Any) -> str | None:
        tolerance = MatchLimits(**self._workload(case)["tolerance"])
        for name, want in expected.items():
            if fault := self._output_fault(output[name], want, tolerance):
                return f"'{name}': {fault}"
        return None

    def _named(self, result: Any) -> dict[str, torch.Tensor]:
        """The outputs by name, in memory of their own."""
        names = [declared["name"] for declared in self._outputs]
        if not isinstance(result, dict):
            parts = result if isinstance(result, tuple | list) else [result]
            if len(parts) != len(names):
                raise UnsupportedError(f"its reference returns {len(parts)} of {len(names)} values")
            result = dict(zip(names, parts, strict=True))
        if missing := [name for name in names if name not in result]:
            raise UnsupportedError(f"its reference returns no '{missing[0]}'")
        found = {}
        for declared in self._outputs:
            value = result[declared["name"]]
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=getattr(torch, declared["dtype"]))
            value = value.to(self._device).clone(memory_format=torch.contiguous_format)
            found[declared["name"]] = value
        return found

    def _input(
        self,
        declared: dict[str, Any],
        given: dict[str, Any],
        axes: dict[str, int],
        custom: dict[str, Any],
    ) -> Any:
        name, dtype = declared["name"], getattr(torch, declared["dtype"])
        source = given.get(name, {"type": "random"})
        if source["type"] == "scalar":
            kind = float if dtype.is_floating_point else bool if dtype is torch.bool else int
            return kind(source["value"])
        if source["type"] == "custom":
            if name not in custom:
                raise UnsupportedError(f"its own function makes no '{name}'")
            value = custom[name]
            return value.to(self._device) if isinstance(value, torch.Tensor) else value
        shape = _shape(declared, axes)
        if source["type"] == "safetensors":
            tensor = read_tensor(self._blobs / source["path"], source["tensor_key"])
            if tensor.shape != shape or tensor.dtype != dtype:
                raise UnsupportedError(
                    f"'{name}' is {tuple(tensor.shape)} {tensor.dtype} in its file, not {shape} "
                    f"{dtype}"
                )
            return tensor.to(self._device)
        if declared["shape"] is None:
            return random_tensor((), dtype, self._device).item()
        return self._random(declared, shape, dtype)

    def _workload(self, case: SetCase) -> Workload:
        return self._workloads[int(case.name.rpartition("_")[2])]

    def _sizes(self, workload: Workload) -> dict[str, int]:
        """The size of every axis."""
        sizes = {n: axis["value"] for n, axis in self._axes.items() if axis["type"] == "const"}
        sizes |= workload["axes"]
        for name, axis in self._axes.items():
            if axis["type"] == "expr":
                sizes[name] = size_of(axis["expression"], sizes)
        return sizes

    def _nbytes(self, number: int) -> int:
        sizes = self._sizes(self._workloads[number])
        return sum(
            math.prod(_shape(tensor, sizes)) * getattr(torch, tensor["dtype"]).itemsize
            for tensor in self._inputs + self._outputs
        )


class FlashInferTrace(Traces):
    """A definition of FlashInfer-Trace."""

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        super().__init__(folder, options, device)
        self._chooses_tokens = options.get("chooses_tokens", False)

    @property
    def has_one_answer(self) -> bool:
        return not self._chooses_tokens

    def _random(
        self, declared: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        if self._chooses_tokens and declared["name"] == CACHE:
            return random_cache(shape, self._device)
        return super()._random(declared, shape, dtype)

    def _fault(self, case: SetCase, inputs: Inputs, output: Any, expected: Any) -> str | None:
        if not self._chooses_tokens:
            return super()._fault(case, inputs, output, expected)
        tolerance = MatchLimits(**self._workload(case)["tolerance"])
        (name,) = expected
        given = {v.name: v.value for v in inputs.values}
        return chosen_fault(given, output[name], expected[name], tolerance)

    def _output_fault(
        self, output: torch.Tensor, expected: torch.Tensor, tolerance: MatchLimits
    ) -> str | None:
        return flashinfer_fault(output, expected, tolerance)


class SolExecBench(Traces):
    """A problem of SOL-ExecBench."""

    def _output_fault(
        self, output: torch.Tensor, expected: torch.Tensor, tolerance: MatchLimits
    ) -> str | None:
        return sol_fault(output, expected, tolerance)

    def _random(
        self, declared: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        description = declared["description"] or ""
        return named_tensor(declared["name"], shape, dtype, self._device, description)


def _shape(declared: dict[str, Any], axes: dict[str, int]) -> tuple[int, ...]:
    names = declared["shape"] or []
    return tuple(int(name) if name.isdecimal() else axes[name] for name in names)
