"""Definitions and workloads of FlashInfer-Trace and SOL-ExecBench, which share one schema.

A definition names axes, inputs and outputs, and holds the reference's source. A workload is one
case: sizes of the axes, and where each input comes from. Keys that are not used here are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from grader.problem.spec import ProblemError
from grader.problem_sets.reading import read_file

MOST_WORKLOADS = 24
"""Each is a test and a benchmark."""
BLOB_BYTES = 16 << 20
"""Size limit of one file of tensors."""
ALL_BLOBS_BYTES = 64 << 20
LFS_POINTER = b"version https://git-lfs"

DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]

Parsed = TypeVar("Parsed", bound=BaseModel)
Item = TypeVar("Item")


def _known_dtype(dtype: str) -> str:
    if dtype in DTYPES:
        return dtype
    why = ": PyTorch does not compute in 4 bits" if dtype.startswith("float4") else ""
    raise ValueError(f"'{dtype}' is not supported{why}")


def _inner_path(path: str) -> str:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"'{path}' is outside the set's folder")
    return str(PurePosixPath(*parts))


Name = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[int, Field(ge=0, le=2**40)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class ConstAxis(_Model):
    """An axis of one size."""

    type: Literal["const"]
    value: Size


class VarAxis(_Model):
    """An axis whose size each workload gives."""

    type: Literal["var"]


class ExprAxis(_Model):
    """An axis whose size is computed of other axes."""

    type: Literal["expr"]
    expression: Annotated[str, Field(min_length=1, max_length=1000)]


class TraceTensor(_Model):
    """An input or output; without a shape it is a number."""

    shape: list[Name] | None
    dtype: Annotated[str, AfterValidator(_known_dtype)]
    description: str | None = None


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a pair, and no text") from None
    return text


class Definition(_Model):
    """The content of a definition's file."""

    name: Name
    op_type: str | None = None
    axes: dict[Name, Annotated[ConstAxis | VarAxis | ExprAxis, Field(discriminator="type")]]
    inputs: Annotated[dict[Name, TraceTensor], Field(min_length=1)]
    outputs: Annotated[dict[Name, TraceTensor], Field(min_length=1)]
    reference: Annotated[str, AfterValidator(_encodable)] = ""
    custom_inputs_entrypoint: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Definition:
        for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for name, tensor in tensors.items():
                for axis in tensor.shape or []:
                    if axis not in self.axes and not axis.isdecimal():
                        raise ValueError(f"{kind}.{name}.shape: no axis is named '{axis}'")
        if both := self.inputs.keys() & self.outputs.keys():
            raise ValueError(f"outputs.{min(both)}: an input has the same name")
        return self


class RandomInput(_Model):
    """Random values."""

    type: Literal["random"]


class ScalarInput(_Model):
    """A number."""

    type: Literal["scalar"]
    value: bool | int | float


class SafetensorsInput(_Model):
    """A tensor of a file."""

    type: Literal["safetensors"]
    path: Annotated[str, Field(min_length=1), AfterValidator(_inner_path)]
    tensor_key: str


class CustomInput(_Model):
    """What the definition's own function makes."""

    type: Literal["custom"]


class WorkloadTolerance(_Model):
    """What SOL-ExecBench's check asks of a workload, with its defaults."""

    max_atol: float = 1e-2
    max_rtol: float = 1e-2
    required_matched_ratio: float = 0.99
    max_error_cap: float | None = None
    allow_negative_inf: bool = False


class Workload(_Model):
    """One case."""

    axes: dict[str, Size]
    inputs: dict[
        str,
        Annotated[
            RandomInput | ScalarInput | SafetensorsInput | CustomInput, Field(discriminator="type")
        ],
    ]
    tolerance: WorkloadTolerance = WorkloadTolerance()

    def blobs(self) -> list[str]:
        """The paths of the files that hold its inputs."""
        given = self.inputs.values()
        return list(dict.fromkeys(i.path for i in given if isinstance(i, SafetensorsInput)))

    def check(self, definition: Definition) -> None:
        """Raise ValueError, with the key, where it does not fit its definition."""
        for name, axis in definition.axes.items():
            if isinstance(axis, VarAxis) and name not in self.axes:
                raise ValueError(f"axes.{name}: missing")
        for name, given in self.inputs.items():
            if name not in definition.inputs and not isinstance(given, CustomInput):
                raise ValueError(f"inputs.{name}: the definition has no such input")
            if isinstance(given, CustomInput) and not definition.custom_inputs_entrypoint:
                raise ValueError(
                    f"inputs.{name}: the definition has no custom_inputs_entrypoint to make it"
                )


def read_definition(path: Path) -> Definition:
    """The definition in a file. Raises `ProblemError`."""
    return parsed(Definition, _json(read_file(path), path), path)


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON values of a file with one on each line, and where each stands."""
    for number, line in enumerate(read_file(path).splitlines(), 1):
        if line.strip():
            where = f"{path}: line {number}"
            yield where, _json(line, where)


def parsed(model: type[Parsed], data: Any, where: object) -> Parsed:
    """Validate data. Raises `ProblemError` with the key in one line."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        raise ProblemError(f"{where}: {key}: {message}" if key else f"{where}: {message}") from None


def parsed_workload(definition: Definition, data: Any, where: str) -> Workload:
    """One workload of a definition. Raises `ProblemError`."""
    workload = parsed(Workload, data, where)
    try:
        workload.check(definition)
    except ValueError as error:
        raise ProblemError(f"{where}: {error}") from None
    return workload


def _json(text: bytes, where: object) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProblemError(f"{where}: not readable as JSON ({error})") from None


@dataclass(frozen=True)
class Chosen:
    """The workloads that are run."""

    workloads: list[tuple[int, Workload]]
    """With their numbers in the set's file, from 1."""
    files: dict[str, bytes] = field(repr=False)
    """Path in the set → content."""
    notes: list[str]
    """What is left out, in lines."""


def choose(
    workloads: Sequence[Workload], locate: Callable[[str], Path | None], where: object
) -> Chosen:
    """At most `MOST_WORKLOADS` workloads whose files can be read; `locate` finds a file.

    Raises `ProblemError` when there is none.
    """
    left_out: list[str] = []
    readable = []
    for numbered in enumerate(workloads, 1):
        reasons = (_unreadable(path, locate(path)) for path in numbered[1].blobs())
        if reason := next(filter(None, reasons), None):
            left_out.append(reason)
        else:
            readable.append(numbered)
    kept, files = [], dict[str, bytes]()
    for number, workload in spread(readable, MOST_WORKLOADS):
        new = {path: _content(locate(path)) for path in workload.blobs() if path not in files}
        if sum(map(len, [*files.values(), *new.values()])) > ALL_BLOBS_BYTES:
            left_out.append(f"the data is larger than {ALL_BLOBS_BYTES >> 20} MiB in all")
        else:
            files |= new
            kept.append((number, workload))
    if not kept:
        raise ProblemError(f"{where}: {left_out[0] if left_out else 'there is no workload'}")
    notes = []
    if left_out:
        notes.append(f"{len(left_out)} of {len(workloads)} workloads are left out: {left_out[0]}")
    if len(readable) > MOST_WORKLOADS:
        notes.append(
            f"of {len(readable)} workloads, at most {MOST_WORKLOADS} are run, evenly chosen"
        )
    return Chosen(kept, files, notes)


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the items, evenly chosen, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _unreadable(name: str, path: Path | None) -> str | None:
    if path is None:
        return f"{name}: missing"
    try:
        if path.stat().st_size > BLOB_BYTES:
            return f"{name}: larger than {BLOB_BYTES >> 20} MiB"
        with path.open("rb") as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError as error:
        return f"{name}: cannot be read ({error.strerror})"
    return f"{name}: a Git LFS pointer; `git lfs pull` fetches the file" if is_pointer else None


def _content(path: Path | None) -> bytes:
    assert path is not None
    return read_file(path, BLOB_BYTES)


def problem_file(
    definition: Definition,
    workloads: Iterable[tuple[int, Workload]],
    rule: Mapping[str, Any] | None,
) -> bytes:
    """What the driver reads besides the reference; `rule` replaces the workloads' tolerances."""
    content = {
        "axes": {name: axis.model_dump() for name, axis in definition.axes.items()},
        "inputs": [{"name": n, **t.model_dump()} for n, t in definition.inputs.items()],
        "outputs": [{"name": n, **t.model_dump()} for n, t in definition.outputs.items()],
        "custom": definition.custom_inputs_entrypoint,
        "workloads": [
            {"number": number, **workload.model_dump()} | ({"tolerance": rule} if rule else {})
            for number, workload in workloads
        ],
    }
    return json.dumps(content).encode()
