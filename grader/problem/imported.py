"""What is known of a problem of another set: its files, and what its own code said of its cases.

The code ran in a sandbox, so what it said is validated like any input.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grader.problem.judged_version import JudgedVersion

IMPORT_FORMAT = 3
"""Raised when a change of ours judges the same files differently: it is part of the digest."""
MOST_CASES = 200
MOST_VALUES = 4096
MOST_DEPTH = 20
"""Levels of a tree."""
MOST_EXTENT = 2**36
"""Elements from the first to the last of a tensor: more than a GPU holds."""
Size = Annotated[int, Field(ge=0, le=2**40)]
Text = Annotated[str, Field(max_length=200)]


@dataclass(frozen=True)
class SetSource:
    """One problem of a set, as its files lie in the user's checkout."""

    set: str
    """Prefix of the set's format, such as ``leetgpu``."""
    set_title: str
    licence: str
    """Name of the set's licence."""
    link: str
    """Where the problem is published, or the set if that is not known."""
    name: str
    """The problem's name here: lower case, digits and underscores."""
    title: str
    folder: Path
    files: Mapping[str, bytes] = field(repr=False)
    """Path, as the problem's code imports it → content."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What a driver needs besides the files, as JSON data."""
    solutions: Mapping[str, tuple[bytes, bool]] = field(default_factory=dict, repr=False)
    """Submissions that the set ships: path → content, and whether it calls them right."""
    notes: tuple[str, ...] = ()
    """What is left out of the problem, each in a line."""
    statement: str = field(default="", repr=False)
    """Markdown that the licence lets a board show, with the licence's text; empty without one."""

    @property
    def judged(self) -> JudgedVersion:
        """What the problem's digest covers: the set's files and options, whose code decides. It
        needs no run of that code, and is the same on every device."""
        hashes = {name: hashlib.sha256(text).hexdigest() for name, text in self.files.items()}
        options = json.dumps(dict(self.options), sort_keys=True).encode()
        hashes["(options)"] = hashlib.sha256(options).hexdigest()
        return JudgedVersion(self.name, {"set": self.set, "import": IMPORT_FORMAT}, hashes)

    @property
    def functions(self) -> Mapping[str, list[str]]:
        """Of a KernelBot board whose submissions define several functions, each with the names of
        its arguments, which are among the inputs; empty for every other problem."""
        found: Mapping[str, list[str]] = self.options.get("functions", {})
        return found

    @property
    def optional_outputs(self) -> list[str]:
        """The outputs that a submission need not return."""
        found: list[str] = self.options.get("optional_outputs", [])
        return found

    def digest(self) -> str:
        """SHA-256, hexadecimal, of `judged`."""
        return self.judged.digest


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorForm(_Strict):
    """A tensor of a case; strides in elements."""

    dtype: Annotated[str, Field(max_length=20)]
    shape: Annotated[list[Size], Field(max_length=12)]
    strides: Annotated[list[Size], Field(max_length=12)]
    view: Annotated[str, Field(pattern=r"^(uint(16|32|64)|float[0-9a-z_]{1,20})?$")] = ""
    """Its dtype in the set, where it travels as another of the same size."""

    @model_validator(mode="after")
    def _has_strides(self) -> TensorForm:
        if len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} dimensions")
        pairs = zip(self.shape, self.strides, strict=True)
        if sum((size - 1) * stride for size, stride in pairs) > MOST_EXTENT:
            raise ValueError(f"its ends are more than {MOST_EXTENT:,} elements apart")
        return self

    def lent_shape(self, dimensions: int) -> tuple[int, ...]:
        """Its shape as an argument of this number of dimensions. A tensor without dimensions has
        one element; one of another number of dimensions is flat."""
        shape = tuple(self.shape) or (1,)
        return shape if len(shape) == dimensions else (math.prod(shape),)


class ScalarForm(_Strict):
    """A number of a case."""

    scalar: bool | int | float
    c_type: Literal["", "bool", "double", "float", "int", "int64_t", "size_t"] = ""
    """Its type in the set's own C prototype; empty if it has none."""


class ValueForm(_Strict):
    """One value of a call, input or output."""

    name: Text
    role: Literal["in", "out", "inout"]
    weight: bool
    form: TensorForm | ScalarForm
    scratch: bool = False
    """Whether the set's reference writes it, and does not return it."""
    absent: bool = False
    """Whether only other cases have it. Here the argument has one element, zero, and the set's own
    data has nothing."""

    @property
    def kind(self) -> tuple[object, ...]:
        """What it has in common with the same value of other cases."""
        return self.name, self.role, self.weight, isinstance(self.form, TensorForm)


class CaseForm(_Strict):
    """The values of a case, and how they lie in the set's own data."""

    values: Annotated[list[ValueForm], Field(max_length=MOST_VALUES)]
    data: dict[str, Any]
    """A tree (`grader.runner.sets.driver`) of what a submission gets."""
    result: dict[str, Any]
    """A tree of what it returns."""
    fixed: Annotated[list[Text], Field(max_length=MOST_VALUES)]
    """The tensors that are the same for every seed."""
    unique: bool
    """Whether its outputs are compared with the reference; otherwise the set's check judges them by
    their properties, and there is no float64 gate."""
    init: Annotated[list[Any], Field(max_length=100)] = []
    """What a module is made with."""

    @model_validator(mode="after")
    def _has_trees(self) -> CaseForm:
        for tree in (self.data, self.result):
            _check_tree(tree, len(self.values))
        return self

    def aligned(self, other: CaseForm) -> CaseForm | None:
        """This form with the values of another case, in its order: input tensors that this case
        lacks are absent. None if there are other differences."""
        own, values, places = list(self.values), list[ValueForm](), list[int]()
        for value in other.values:
            if own and own[0].kind == value.kind:
                places.append(len(values))
                values.append(own.pop(0))
            elif value.kind[1:] == ("in", False, True):
                assert isinstance(value.form, TensorForm)
                ones = [1] * len(value.form.shape)
                form = TensorForm(dtype=value.form.dtype, shape=ones, strides=ones)
                values.append(value.model_copy(update={"form": form, "absent": True}))
            else:
                return None
        if own:
            return None
        trees = {"data": _moved(self.data, places), "result": _moved(self.result, places)}
        return self.model_copy(update={"values": values} | trees)


def _moved(tree: dict[str, Any], places: list[int]) -> dict[str, Any]:
    """A tree of which each value has another place."""
    ((kind, part),) = tree.items()
    if kind == "value":
        return {kind: places[part]}
    if kind == "dict":
        return {kind: {key: _moved(one, places) for key, one in part.items()}}
    if kind in ("tuple", "list"):
        return {kind: [_moved(one, places) for one in part]}
    if kind == "object":
        return {kind: [part[0], _moved(part[1], places)]}
    return tree


def _check_tree(tree: Any, count: int, depth: int = 0) -> None:
    """Raise ValueError unless `tree` is one of `grader.runner.sets.driver` over `count` values."""
    if not isinstance(tree, dict) or len(tree) != 1 or depth > MOST_DEPTH:
        raise ValueError(f"no tree of at most {MOST_DEPTH} levels")
    ((kind, part),) = tree.items()
    parts: list[Any] = []
    if kind in ("tuple", "list") and isinstance(part, list):
        parts = part
    elif kind == "dict" and isinstance(part, dict):
        parts = list(part.values())
    elif kind == "object" and _is_object(part):
        parts = [part[1]]
    elif kind == "value":
        if not isinstance(part, int) or not 0 <= part < count:
            raise ValueError(f"no tree: {part!r:.40} is none of {count} values")
    elif kind != "literal" or not isinstance(part, bool | int | float | str | None):
        raise ValueError(f"no tree: {kind!r:.40}")
    for one in parts:
        _check_tree(one, count, depth + 1)


def _is_object(part: Any) -> bool:
    """Whether it is the name of a class and a tree of attributes."""
    if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], str):
        return False
    attributes = part[1].get("dict") if isinstance(part[1], dict) else None
    name = re.fullmatch(r"[A-Za-z_]\w{0,99}\.[A-Za-z_]\w{0,99}", part[0])
    return isinstance(attributes, dict) and name is not None


class CaseHead(_Strict):
    """A case before its values are known."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    kind: Literal["test", "benchmark"]
    params: dict[str, Any]


@dataclass(frozen=True)
class ImportedProblem:
    """What a problem of another set has besides its spec."""

    source: SetSource
    numbers: Mapping[str, int]
    """Case → its place in the set's own list."""
    forms: Mapping[str, CaseForm]
    """By case."""
    wide: frozenset[str]
    """The cases whose reference computes in float64."""
    limits: tuple[str, ...]
    """What is judged less strictly than in a problem of our own, each in a line."""
    device: Literal["cpu", "cuda"]
    """Where the code said so. On the other device it may have other cases and bounds."""

    def placement(self, case: str) -> dict[str, Any]:
        """For the runner: how the arguments of a case lie in the set's own data, and the shape and
        dtype of each there, which the lent one may not have."""
        form = self.forms[case]
        own = [
            [value.form.shape, value.form.view] if isinstance(value.form, TensorForm) else None
            for value in form.values
        ]
        return {"data": form.data, "result": form.result, "own": own}

    @property
    def given_files(self) -> Mapping[str, bytes]:
        """Files that a submission may import, since its set puts them beside it."""
        return self.source.files if self.source.set == "kernelbot" else {}

    def convention(self) -> dict[str, Any]:
        """For the runner: how a submission of the set is called; empty where as one of ours."""
        form = next(iter(self.forms.values()))
        if self.source.set == "kernelbot":
            return {"convention": {"kind": "data", "functions": self.source.functions}}
        if self.source.set == "kernelbench":
            shapes = {v.name: v.form.shape for v in form.values if isinstance(v.form, TensorForm)}
            names = [v.name if v.weight else None for v in form.values]
            model = {"kind": "model", "init": form.init, "weights": names, "shapes": shapes}
            return {"convention": model}
        if self.takes_solutions:
            binding = "tvm-ffi" if self.source.set == "fib" else "torch"
            return {"convention": {"kind": "run", "binding": binding}}
        return {"convention": {"kind": "arguments"}}

    @property
    def has_c_prototype(self) -> bool:
        """Whether the set's users write `.cu` files in a prototype of its own."""
        return self.source.set == "leetgpu"

    @property
    def takes_solutions(self) -> bool:
        """Whether a submission may be a Solution (`grader.runner.solution_file`)."""
        return self.source.set in ("fib", "sol")
