"""Runs a problem's own code: inputs from a seed, the float64 reference, and eager PyTorch.

`inputs.py` and `reference.py` belong to the problem's author, not to a submission, so they run in
the judge. Every failure in them is a `ProblemError`, except running out of device memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from importlib.abc import SourceLoader
from types import ModuleType
from typing import Any

import torch

from grader.arena.layout import dtype_of
from grader.problem import Problem, ProblemError
from grader.problem.load import CHECKS_FILE
from grader.problem.spec import Argument, Case

Values = dict[str, Any]
"""Argument name → tensor, list of tensors, or scalar."""


def seed_for(master: int, *path: object) -> int:
    """A 63-bit seed for one place in a grading, by SHA-256: the inputs of one case reveal nothing
    about those of another."""
    text = "/".join([str(master), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class ProblemCode:
    """The two modules of a problem, imported once. Raises `ProblemError` when they don't import."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem = problem
        self.device = device
        self._checked_cases: set[str] = set()
        """Cases and variants whose inputs were checked once; thousands of tensors take a while."""
        self._inputs = _import(problem, "inputs.py")
        self._reference = _import(problem, "reference.py")
        self._generate = self._function(self._inputs, "inputs.py", "generate")
        self.reference = self._function(self._reference, "reference.py", "reference")
        self.eager: Callable[..., Any] = getattr(self._reference, "eager", self.reference)
        extra = getattr(self._reference, "BASELINES", {})
        self.baselines: dict[str, Callable[..., Any]] = {"eager": self.eager, **extra}
        self.prepared: dict[str, Callable[..., Any]] = getattr(self._reference, "PREPARED", {})
        """Name → function of the inputs that does a library's one-time setup and returns the
        callable to time, or None if the library does not support the device or case."""
        checks = _import(problem, CHECKS_FILE) if CHECKS_FILE in problem.files else None
        self._magnitude: Callable[..., Any] | None = getattr(checks, "magnitude", None)
        self.honest: dict[str, Callable[..., Any]] = getattr(checks, "HONEST", {})
        """Name → honest implementation, which the check must accept."""
        self.mutants: dict[str, Callable[..., Any]] = getattr(checks, "MUTANTS", {})
        """Name → broken implementation, which the check must reject."""
        self.admitted: dict[str, list[str]] = getattr(checks, "ADMITTED", {})
        """Name of a mutant → cases in which no check could tell it from honest rounding."""
        self.written = [a for a in problem.spec.args if a.role != "in"]

    def inputs(self, case: Case, seed: int, call: int = 0) -> Values:
        """Every `in`, `inout` and scalar argument of a case, on the judge's device.

        Raises `ProblemError` when `generate()` fails or does not give what the spec declares.
        """
        generator = torch.Generator(device=self.device).manual_seed(seed)
        where = f"{self.problem.folder / 'inputs.py'}: generate() for case '{case.name}'"
        with _authors_code(where):
            values = self._generate(generator, call=call, **case.params)
        key = f"{case.name} {case.params}"  # variants share the benchmark's name
        if key not in self._checked_cases:
            self._check_inputs(case, values)
            self._checked_cases.add(key)
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

    def run_reference(self, case: Case, inputs: Values) -> Values:
        """The outputs of `reference()` on inputs cast to float64. Does not modify the inputs."""
        return self.run(self.reference, "reference()", case, map_tensors(inputs, _upcast))

    def run_eager(self, case: Case, inputs: Values) -> Values:
        """The outputs of `eager()`, or of `reference()`, at the inputs' own dtypes."""
        return self.run(self.eager, "eager()", case, inputs)

    def magnitude(self, case: Case, inputs: Values, truth: Values) -> Values:
        """The sum of the absolute values of the terms behind each element, float64, by name of the
        output: what the problem's `magnitude()` gives for inputs cast to float64, or without one
        the magnitude of the reference's outputs `truth`."""
        if self._magnitude is None:
            return map_tensors(truth, torch.abs)
        inputs = map_tensors(inputs, _upcast)
        return self.run(self._magnitude, "magnitude()", case, inputs, CHECKS_FILE)

    def run(
        self,
        function: Callable[..., Any],
        what: str,
        case: Case,
        inputs: Values,
        file: str = "reference.py",
    ) -> Values:
        """Call one of the problem's functions. Returns its results by name of the output.

        Raises `ProblemError` when it fails or returns something else than the declared outputs.
        """
        what = f"{self.problem.folder / file}: {what}"
        with _authors_code(f"{what} for case '{case.name}'"), torch.no_grad():
            result = function(**inputs)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(self.written):
            raise ProblemError(
                f"{what} returned {len(results)} values; "
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
                f"{what} gave '{argument.name}' of case '{case.name}' as {got}, not {expected}"
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


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory, so that they cannot be written independently."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


class _DigestedSource(SourceLoader):
    """Imports the bytes that the problem's digest covers, whatever the file holds by now."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if path != self._path:
            raise OSError("nothing is cached")
        return self._source


def _import(problem: Problem, file: str) -> ModuleType:
    path = problem.folder / file
    name = f"_grade_problem_{problem.name}_{path.stem}"
    loader = _DigestedSource(str(path), problem.files[file])
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    with _authors_code(f"{path}: importing it"):
        loader.exec_module(module)
    return module


@contextlib.contextmanager
def _authors_code(what: str) -> Iterator[None]:
    """Run the author's code: a failure or an exit is a `ProblemError`. Running out of device memory
    passes through."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (Exception, SystemExit) as error:
        text = str(error).splitlines()[0] if str(error) else ""
        raise ProblemError(f"{what} raised {type(error).__name__}: {text}") from error


def map_tensors(values: Values, function: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    """Apply `function` to every tensor; scalars stay as they are."""

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
