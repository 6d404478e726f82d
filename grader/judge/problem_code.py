"""Runs a problem's own code: inputs from a seed, the float64 reference, and eager PyTorch.

The problem's author has written it, not a submitter, so it runs in the judge. Every failure of the
code is a `ProblemError`, except running out of device memory. A call that writes its inputs is a
failure, and so is a case that cannot fit into this machine's memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from importlib.abc import SourceLoader
from types import ModuleType
from typing import Any, TypeVar

import torch

from grader.arena.layout import ITEM_BYTES, dtype_of, overlaps
from grader.judge.authors_code import run_authors_code
from grader.judge.available_memory import available_bytes
from grader.judge.pieces import pieces
from grader.precision import keep_partial_sums_in_fp32
from grader.problem import Problem, ProblemError
from grader.problem.load import CHECKS_FILE
from grader.problem.spec import FLOATING_DTYPES, Argument, Case

Result = TypeVar("Result")

Values = dict[str, Any]
"""Argument name → tensor, list of tensors, or scalar."""

SCALAR_TYPES: dict[str, type | tuple[type, ...]] = {
    "int64": int,
    "fp64": (int, float),
    "bool": (bool, int),
}
"""Dtype of a scalar → the Python types that `generate()` may give for it."""


def seed_for(master: int, *path: object) -> int:
    """A 63-bit seed for one place in a grading. SHA-256 makes it, so that the inputs of one case
    reveal nothing about those of another."""
    text = "/".join([str(master), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class ProblemCode:
    """The modules of a problem, imported once."""

    is_local = True
    """Whether the code runs in this process, where a CUDA graph can hold it."""
    has_budget = True
    """Whether errors are also held against those of eager PyTorch."""

    def __init__(
        self,
        problem: Problem,
        device: str,
        stopped: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Import the modules. Every run of the problem's code is inside a `stopped()`, in which a
        grading's clock stands still. Raises `ProblemError` when an import fails."""
        keep_partial_sums_in_fp32()
        self.problem = problem
        self.device = device
        self._stopped = stopped
        self._checked_cases: set[str] = set()
        """Cases and variants whose inputs were checked. One check is enough: that of thousands of
        tensors takes a while."""
        with stopped():
            self._inputs = _import(problem, "inputs.py")
            self._reference = _import(problem, "reference.py")
            checks = _import(problem, CHECKS_FILE) if CHECKS_FILE in problem.files else None
        self._generate = self._function(self._inputs, "inputs.py", "generate")
        self.reference = self._function(self._reference, "reference.py", "reference")
        self.eager = self.reference
        if hasattr(self._reference, "eager"):
            self.eager = self._function(self._reference, "reference.py", "eager")
        self.baselines = {"eager": self.eager, **self._functions("BASELINES")}
        self.prepared = self._functions("PREPARED")
        """Name → function of the inputs. It does a library's one-time setup, and returns the
        callable to time or None if the library does not support the device or case."""
        self._magnitude: Callable[..., Any] | None = getattr(checks, "magnitude", None)
        self.honest: dict[str, Callable[..., Any]] = getattr(checks, "HONEST", {})
        """Name → honest implementation, which the check must accept."""
        self.mutants: dict[str, Callable[..., Any]] = getattr(checks, "MUTANTS", {})
        """Name → broken implementation, which the check must reject."""
        self.admitted: dict[str, list[str]] = getattr(checks, "ADMITTED", {})
        """Name of a mutant → cases in which no check can tell it from honest rounding."""
        self.written = [a for a in problem.spec.args if a.role != "in"]
        self._residuals: Callable[..., Any] | None = getattr(checks, "residuals", None)
        if self.has_residuals and self._residuals is None:
            name = next(a.name for a in self.written if not a.unique)
            raise ProblemError(
                f"{problem.folder / CHECKS_FILE}: no function named 'residuals'; it must judge "
                f"'{name}', which is not unique"
            )

    @cached_property
    def _folder(self) -> str:
        return str(self.problem.folder)

    @cached_property
    def _extra_names(self) -> dict[Callable[..., Any], Set[str]]:
        """The names in the signatures of functions that are no arguments of the problem."""
        return {}

    @cached_property
    def _available_bytes(self) -> int:
        """Bytes left when the first inputs are made. No submission has taken any memory by then."""
        return available_bytes(self.device)

    def inputs(self, case: Case, seed: int, call: int = 0) -> Values:
        """Every `in`, `inout` and scalar argument of a case, on the judge's device.

        Raises `ProblemError` when the case does not fit into memory, when `generate()` fails, and
        when its result is not what the spec declares.
        """
        key = f"{case.name} {case.params}"  # variants share the benchmark's name
        if key not in self._checked_cases:
            self._check_memory(case)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        where = f"{self._in('inputs.py', 'generate()')} for case '{case.name}'"
        values = self._run(where, partial(self._generate, generator, call=call, **case.params))
        if key not in self._checked_cases:
            self._check_inputs(case, values)
            self._checked_cases.add(key)
        return {a.name: values[a.name] for a in self.problem.spec.args if a.role != "out"}

    def check_deterministic(self, case: Case) -> None:
        """Raise `ProblemError` unless the same seed gives the same inputs twice."""
        first, second = self.inputs(case, 1), self.inputs(case, 1)
        for name, value in first.items():
            if not same_values(value, second[name]):
                raise ProblemError(
                    f"{self.problem.folder / 'inputs.py'}: generate() is not deterministic: "
                    f"'{name}' of case '{case.name}' differs between two runs with the same seed; "
                    "draw every random number from the generator it is given"
                )

    def check_seeded(self, case: Case) -> None:
        """Raise `ProblemError` if two seeds give the same inputs. A submission could then compute
        its answers before the call."""
        first, second = self.inputs(case, 1), self.inputs(case, 2)
        if all(same_values(value, second[name]) for name, value in first.items()):
            raise ProblemError(
                f"{self.problem.folder / 'inputs.py'}: generate() gives the same inputs of case "
                f"'{case.name}' for two seeds; draw them from the generator it is given"
            )

    def run_reference(self, case: Case, inputs: Values) -> Values:
        """The outputs of `reference()` on private copies of the inputs, cast to float64.

        Raises `ProblemError` when a floating-point output is not float64.
        """
        what = self._in("reference.py", "reference()")
        copies = map_tensors(inputs, _copy_wide)
        reference = self._finished(self.bound(self.reference, case))
        outputs = self._outputs(
            what, case, inputs, self._guarded(what, case, partial(reference, **copies))
        )
        for argument in self.written:
            floating = self.problem.dtype(argument, case) in FLOATING_DTYPES
            for tensor in listed(outputs[argument.name]) if floating else ():
                if tensor.dtype != torch.float64:
                    raise ProblemError(
                        f"{what} gave '{argument.name}' of case '{case.name}' as {tensor.dtype}; "
                        "it gets torch.float64, so compute and return that"
                    )
        return outputs

    def run_eager(self, case: Case, inputs: Values) -> Values:
        """The outputs of `eager()`, or of `reference()`, at the inputs' own dtypes."""
        return self.run(self.eager, "eager()", case, inputs)

    def magnitude(self, case: Case, inputs: Values, truth: Values) -> Values:
        """For each output element, the sum of its terms' absolute values: name of the output →
        float64, of either sign.

        The problem's `magnitude()` computes it from inputs cast to float64. Without that function,
        the result is `truth`, the reference's outputs.
        """
        if self._magnitude is None:
            return truth
        inputs = map_tensors(inputs, _copy_wide)
        magnitude = self._finished(self.bound(self._magnitude, case))
        return self.run(magnitude, "magnitude()", case, inputs, CHECKS_FILE)

    @property
    def has_weights(self) -> bool:
        """Whether some inputs stay the same from call to call."""
        return any(a.weight for a in self.problem.spec.args)

    def weights(self, inputs: Values) -> Values:
        """Those of the inputs that are weights."""
        return {a.name: inputs[a.name] for a in self.problem.spec.args if a.weight}

    @property
    def has_residuals(self) -> bool:
        """Whether an output may have several right values."""
        return not all(a.unique for a in self.written)

    def residuals(self, case: Case, inputs: Values, outputs: Values) -> dict[str, float]:
        """What `residuals()` of `checks.py` finds of the outputs of one call: a property in words →
        how far it is off, as a share of what is allowed.

        It gets private copies of inputs and outputs by name, floating-point ones in float64. Raises
        `ProblemError` when it fails, and when it finds nothing.
        """
        assert self._residuals is not None
        what = f"{self.problem.folder / CHECKS_FILE}: residuals()"
        copies = [map_tensors(values, _copy_wide) for values in (inputs, outputs)]
        function = partial(self.bound(self._residuals, case), *copies)
        found = self._guarded(what, case, self._finished(function))
        if not isinstance(found, dict) or not found:
            raise ProblemError(
                f"{what} for case '{case.name}' returned {found!r}; it must return a dict: what "
                "was looked at → its error, divided by the largest that is right"
            )
        return {str(words): float(share) for words, share in found.items()}

    def is_incomparable(self, case: Case, inputs: Values, truth: Values) -> bool:
        """Whether outputs for these inputs cannot be compared with `truth`, the reference's in
        float64, and `residuals()` alone judge them."""
        return False

    def note_gates(self, case: Case, compared: bool, judged: bool) -> None:
        """A call was checked: whether its outputs passed the comparison with the reference, and
        `residuals()`. Of no interest here."""

    def notes(self) -> list[str]:
        """What to tell of the checks of a grading."""
        return []

    def run(
        self,
        function: Callable[..., Any],
        what: str,
        case: Case,
        inputs: Values,
        file: str = "reference.py",
    ) -> Values:
        """Call one of the problem's functions. Returns its results by name of the output.

        Raises `ProblemError` when it fails, and when its results are not the declared outputs.
        """
        what = self._in(file, what)
        call = partial(self.bound(function, case), **inputs)
        result = self._unwritten(what, case, [inputs], call)
        return self._outputs(what, case, inputs, result)

    def bound(self, function: Callable[..., Any], case: Case) -> Callable[..., Any]:
        """`function` with the parameters of the case that its signature names, beside arguments of
        the problem: an axis, or a number of groups, that the entry itself is not given."""
        if function not in self._extra_names:
            arguments = {argument.name for argument in self.problem.spec.args}
            try:
                names = inspect.signature(function).parameters.keys() - arguments
            except ValueError:  # a function written in C
                names = set()
            self._extra_names[function] = names
        given = {n: case.params[n] for n in self._extra_names[function] & case.params.keys()}
        return partial(function, **given) if given else function

    def call(
        self, what: str, case: Case, inputs: list[Values], function: Callable[[], Result]
    ) -> Result:
        """Call a function of `reference.py` that works on these inputs.

        Raises `ProblemError` when it fails or writes the inputs. Only writes by PyTorch's operators
        are seen.
        """
        return self._unwritten(self._in("reference.py", what), case, inputs, function)

    def _in(self, file: str, what: str) -> str:
        return f"{os.path.join(self._folder, file)}: {what}"

    def _unwritten(
        self, what: str, case: Case, inputs: list[Values], function: Callable[[], Result]
    ) -> Result:
        before = [_versions(values) for values in inputs]
        result = self._guarded(what, case, function)
        for values, versions in zip(inputs, before, strict=True):
            after = _versions(values)
            if after != versions:
                name = next(name for name in after if after[name] != versions[name])
                raise ProblemError(
                    f"{what} for case '{case.name}' wrote its input '{name}'; let it work on a copy"
                )
        return result

    def _guarded(self, what: str, case: Case, function: Callable[[], Result]) -> Result:
        try:
            with torch.no_grad():
                return self._run(f"{what} for case '{case.name}'", function)
        except ProblemError as error:
            if "does not require grad" not in str(error):
                raise
            raise ProblemError(
                f"{error}; PyTorch records no gradients here: compute inside "
                "`with torch.enable_grad():`, on x.detach().requires_grad_()"
            ) from error

    def _run(self, what: str, function: Callable[[], Result]) -> Result:
        with self._stopped():
            return run_authors_code(what, function)

    def _finished(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """`function`, but it returns only when its kernels have ended. Float64 is slow on a GPU,
        and that time is the problem's."""

        def call(**inputs: Any) -> Result:
            result = function(**inputs)
            if self.device == "cuda":
                torch.cuda.synchronize()
            return result

        return call

    def _outputs(self, what: str, case: Case, inputs: Values, result: Any) -> Values:
        """What a function returned, by name of the output."""
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
            got = list(map(_shape, value)) if isinstance(value, list | tuple) else _shape(value)
        else:
            expected = self.problem.shape(argument, case)
            got = _shape(value)
        if got != expected:
            raise ProblemError(
                f"{what} gave '{argument.name}' of case '{case.name}' as {got}, not {expected}"
            )

    def _check_memory(self, case: Case) -> None:
        """Raise `ProblemError` if a case cannot fit. Each tensor is held at least three times: as
        generated, as lent, and in float64.

        The sizes of lists are not known before `generate()` runs. The part of `cost.bytes` that is
        not traffic of the other tensors is theirs: an element is moved once, or twice if `inout`.
        """
        needed_bytes = 0.0
        moved_bytes = self.problem.bytes(case)
        list_shares = []
        for argument in self.problem.spec.args:
            if argument.kind == "scalar":
                continue
            dtype = self.problem.dtype(argument, case)
            wide_bytes = 8 if dtype in FLOATING_DTYPES else ITEM_BYTES[dtype]
            held_bytes = 2 * ITEM_BYTES[dtype] + wide_bytes
            traffic_bytes = ITEM_BYTES[dtype] * (2 if argument.role == "inout" else 1)
            if argument.kind == "tensor":
                count = math.prod(self.problem.shape(argument, case))
                needed_bytes += count * held_bytes
                moved_bytes -= count * traffic_bytes
            else:
                list_shares.append(held_bytes / traffic_bytes)
        if list_shares:
            needed_bytes += math.ceil(max(0.0, moved_bytes) * min(list_shares))
        if needed_bytes > self._available_bytes:
            where = "the GPU" if self.device == "cuda" else "this machine"
            raise ProblemError(
                f"{self.problem.folder / 'problem.yaml'}: case '{case.name}' needs at least "
                f"{needed_bytes:,.0f} bytes of memory for its arguments and their float64 copies; "
                f"{where} has {self._available_bytes:,} left; make the case smaller"
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
                if not isinstance(value, SCALAR_TYPES[argument.dtype]):
                    raise ProblemError(
                        f"{where} gave '{argument.name}' as {type(value).__name__}, "
                        f"not {argument.dtype}"
                    )
                continue
            if argument.kind == "tensors" and not isinstance(value, list):
                raise ProblemError(
                    f"{where} gave '{argument.name}' as {type(value).__name__}, not as a list"
                )
            tensors = listed(value)
            if len(tensors) == 0:
                raise ProblemError(f"{where} gave '{argument.name}' as an empty list")
            dtype = self.problem.dtype(argument, case)
            for tensor in tensors:
                if not isinstance(tensor, torch.Tensor) or dtype_of(tensor) != dtype:
                    raise ProblemError(f"{where} gave '{argument.name}' not as {dtype} tensor")
                if tensor.layout != torch.strided or tensor.device.type != self.device:
                    raise ProblemError(
                        f"{where} gave '{argument.name}' not as a dense tensor on {self.device}; "
                        "make it on the generator's device"
                    )
                if overlaps(tensor.shape, tensor.stride()):
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

    def _functions(self, name: str) -> dict[str, Callable[..., Any]]:
        """A table of functions in `reference.py`; empty if there is none."""
        table = getattr(self._reference, name, {})
        if not isinstance(table, dict) or not all(
            isinstance(key, str) and callable(function) for key, function in table.items()
        ):
            raise ProblemError(
                f"{self.problem.folder / 'reference.py'}: {name} must be a dict: name → function"
            )
        return table


class _DigestedSource(SourceLoader):
    """Imports the bytes that the problem's digest covers, even if the file has changed since."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if path != self._path:
            raise OSError("there is no cached bytecode")
        return self._source


def _import(problem: Problem, file: str) -> ModuleType:
    """Import a file as a module of the problem's package, so that `checks.py` may say ``from
    .reference import …``. Each version has a package of its own."""
    path = problem.folder / file
    package = f"_grade_problem_{problem.name}_{problem.digest[:16]}"
    sys.modules.setdefault(package, ModuleType(package))
    name = f"{package}.{path.stem}"
    loader = _DigestedSource(str(path), problem.files[file])
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    run_authors_code(f"{path}: importing it", partial(loader.exec_module, module))
    return module


def map_tensors(values: Values, function: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    """Apply `function` to every tensor; scalars stay as they are."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [function(t) for t in value]
        return function(value) if isinstance(value, torch.Tensor) else value

    return {name: one(value) for name, value in values.items()}


def _copy_wide(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; of a floating-point tensor, in float64."""
    return tensor.to(torch.float64 if tensor.is_floating_point() else tensor.dtype, copy=True)


def listed(value: Any) -> list[Any]:
    """The tensors of an argument that is one or a list of them."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _shape(value: Any) -> Any:
    """Shape of a tensor; type of any other value."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value)


def _versions(values: Values) -> dict[str, list[int]]:
    """Argument name → number of writes by PyTorch's operators, for each tensor."""
    return {
        name: [
            tensor._version
            for tensor in listed(value)
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference()
        ]
        for name, value in values.items()
    }


def same_values(a: Any, b: Any) -> bool:
    """Whether two values of one argument are equal; NaN equals NaN."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_values, a, b))
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and all(_same_elements(*pair) for pair in pieces(a, b))
    return bool(a == b) or (math.isnan(a) and math.isnan(b))


def _same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    a, b = (value.float() if value.element_size() == 1 else value for value in (a, b))
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
