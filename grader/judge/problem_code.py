"""A problem's own code at work: inputs from a seed, the float64 truth, and PyTorch's answer.

`inputs.py` and `reference.py` are the problem author's, not a submission's; they run in the judge.
Whatever goes wrong in them is a `ProblemError`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from grader.arena.layout import dtype_of
from grader.problem import Problem, ProblemError
from grader.problem.spec import Argument, Case

Values = dict[str, Any]
"""Argument name → tensor, list of tensors, or scalar."""


def seed_for(master: int, *path: object) -> int:
    """A 63-bit seed for one place in a grading. One-way, so one case's inputs tell nothing of
    another's."""
    text = "/".join([str(master), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class ProblemCode:
    """The two modules of a problem, imported once. Raises `ProblemError` when they don't import."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem = problem
        self.device = device
        self._checked: set[str] = set()
        """Cases and variants whose inputs were found to be as declared; thousands of tensors take a
        while."""
        self._inputs = _import(problem, "inputs.py")
        self._reference = _import(problem, "reference.py")
        self._generate = self._function(self._inputs, "inputs.py", "generate")
        self.reference = self._function(self._reference, "reference.py", "reference")
        self.eager: Callable[..., Any] = getattr(self._reference, "eager", self.reference)
        extra = getattr(self._reference, "BASELINES", {})
        self.baselines: dict[str, Callable[..., Any]] = {"eager": self.eager, **extra}
        self.prepared: dict[str, Callable[..., Any]] = getattr(self._reference, "PREPARED", {})
        """By name, functions of the inputs that do what a library does once, and return a callable
        to be timed; or None where the library has no such call for this device or case."""
        self.written = [a for a in problem.spec.args if a.role != "in"]

    def inputs(self, case: Case, seed: int, call: int = 0) -> Values:
        """Every `in`, `inout` and scalar argument of a case, on the judge's device."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        try:
            values = self._generate(generator, call=call, **case.params)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise self._blame("inputs.py", f"generate() for case '{case.name}'", error) from error
        key = f"{case.name} {case.params}"  # a benchmark's variants go by its name
        if key not in self._checked:
            self._check_inputs(case, values)
            self._checked.add(key)
        return {a.name: values[a.name] for a in self.problem.spec.args if a.role != "out"}

    def check_deterministic(self, case: Case) -> None:
        """Raise `ProblemError` unless the same seed gives the same inputs twice."""
        first, second = self.inputs(case, 1), self.inputs(case, 1)
        for name, value in first.items():
            if not _same(value, second[name]):
                raise ProblemError(
                    f"{self.problem.folder / 'inputs.py'}: generate() is not deterministic: "
                    f"'{name}' of case '{case.name}' differs between two runs with the same seed; "
                    "draw every random number from the generator it is given"
                )

    def truth(self, case: Case, inputs: Values) -> Values:
        """The reference in float64. Inputs are not modified."""
        return self.run(self.reference, "reference()", case, each(inputs, _upcast))

    def plain(self, case: Case, inputs: Values) -> Values:
        """What plain PyTorch computes at the inputs' own dtypes."""
        return self.run(self.eager, "eager()", case, inputs)

    def run(self, function: Callable[..., Any], what: str, case: Case, inputs: Values) -> Values:
        """Call one of the problem's own functions; its results by the names of the outputs."""
        try:
            with torch.no_grad():
                result = function(**inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise self._blame("reference.py", f"{what} for case '{case.name}'", error) from error
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(self.written):
            raise ProblemError(
                f"{self.problem.folder / 'reference.py'}: {what} returned {len(results)} values; "
                f"{len(self.written)} arguments are out or inout"
            )
        values = {a.name: value for a, value in zip(self.written, results, strict=True)}
        for argument in self.written:
            self._check_output(case, argument, values[argument.name], inputs, what)
        return values

    def _check_output(
        self, case: Case, argument: Argument, value: Any, inputs: Values, what: str
    ) -> None:
        expected: Any
        got: Any
        if argument.kind == "tensors":
            expected = [tuple(t.shape) for t in inputs[argument.name]]
            got = (
                [tuple(t.shape) for t in value] if isinstance(value, list | tuple) else type(value)
            )
        else:
            expected = self.problem.shape(argument, case)
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value)
        if got != expected:
            raise ProblemError(
                f"{self.problem.folder / 'reference.py'}: {what} gave '{argument.name}' of case "
                f"'{case.name}' as {got}, not {expected}"
            )

    def _check_inputs(self, case: Case, values: Any) -> None:
        where = f"{self.problem.folder / 'inputs.py'}: generate() for case '{case.name}'"
        if not isinstance(values, dict):
            raise ProblemError(f"{where} returned a {type(values).__name__}, not a dict")
        for argument in self.problem.spec.args:
            if argument.role == "out":
                continue
            if argument.name not in values:
                raise ProblemError(f"{where} gave no '{argument.name}'")
            value = values[argument.name]
            if argument.kind == "scalar":
                if not isinstance(value, int | float):
                    raise ProblemError(f"{where} gave '{argument.name}' as {type(value).__name__}")
                continue
            tensors = value if argument.kind == "tensors" else [value]
            if len(tensors) == 0:
                raise ProblemError(f"{where} gave '{argument.name}' as an empty list")
            dtype = self.problem.dtype(argument, case)
            for tensor in tensors:
                if not isinstance(tensor, torch.Tensor) or dtype_of(tensor) != dtype:
                    raise ProblemError(f"{where} gave '{argument.name}' not as {dtype} tensor")
                if _overlaps(tensor):
                    raise ProblemError(
                        f"{where} gave '{argument.name}' with elements that share memory; "
                        "clone it after expand() or the like"
                    )
            if argument.kind == "tensor":
                shape = self.problem.shape(argument, case)
                if tuple(value.shape) != shape:
                    raise ProblemError(
                        f"{where} gave '{argument.name}' as {tuple(value.shape)}, not {shape}"
                    )
                if argument.contiguous and not value.is_contiguous():
                    raise ProblemError(f"{where} gave '{argument.name}' not contiguous")

    def _function(self, module: ModuleType, file: str, name: str) -> Callable[..., Any]:
        function = getattr(module, name, None)
        if not callable(function):
            raise ProblemError(f"{self.problem.folder / file}: no function named '{name}'")
        return function  # type: ignore[no-any-return]

    def _blame(self, file: str, what: str, error: Exception) -> ProblemError:
        text = str(error).splitlines()[0] if str(error) else ""
        return ProblemError(
            f"{self.problem.folder / file}: {what} raised {type(error).__name__}: {text}"
        )


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether some elements may lie on others, so that they cannot be written one by one."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _import(problem: Problem, file: str) -> ModuleType:
    path = problem.folder / file
    name = f"_grade_problem_{problem.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProblemError(
            f"{path}: importing it raised {type(error).__name__}: {error}"
        ) from error
    return module


def each(values: Values, function: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    """`function` on every tensor; scalars stay as they are."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [function(t) for t in value]
        return function(value) if isinstance(value, torch.Tensor) else value

    return {name: one(value) for name, value in values.items()}


def _upcast(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, torch.Tensor):
        same = (
            torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
            if a.is_floating_point()
            else (torch.equal(a, b))
        )
        return bool(same)
    return bool(a == b) or (math.isnan(a) and math.isnan(b))
