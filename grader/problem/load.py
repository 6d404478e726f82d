"""Loads a problem folder: its files, the validated spec, and their digests."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from grader.files import UnreadableFileError, read_regular_file
from grader.problem import domain, strict_yaml, validation
from grader.problem.imported import ImportedProblem, ScalarForm
from grader.problem.judged_version import JudgedVersion
from grader.problem.prototype import set_prototype
from grader.problem.set_file import SET_FILE, SET_FILE_BYTES, pack, unpack
from grader.problem.spec import Argument, Case, ProblemError, Spec

FILES = ("problem.yaml", "reference.py", "inputs.py", "statement.md")
"""The files of a problem."""
CHECKS_FILE = "checks.py"
"""A file that a problem may have besides. It holds what the check of this problem needs: the
magnitude behind its error bound, honest implementations, mutants."""

FILE_BYTES = 1 << 20
"""Size limit of each file."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Problem:
    """A loaded and validated problem."""

    folder: Path
    name: str
    """The folder's name."""
    spec: Spec
    digest: str
    """Of `judged`: results with the same digest are ranked together."""
    times_digest: str
    """SHA-256, hexadecimal, over what times depend on: arguments, benchmarks, reference, inputs."""
    statement: str
    """Markdown."""
    judged: JudgedVersion = field(repr=False, compare=False)
    """What changes a verdict or a time."""
    files: Mapping[str, bytes] = field(repr=False, compare=False, default_factory=dict)
    """The contents of the files. The judge runs these bytes, which `judged` covers, whatever the
    folder holds by then."""
    selected: frozenset[str] | None = None
    """The names of the cases to run; None for all."""
    imported: ImportedProblem | None = field(default=None, repr=False, compare=False)
    """What a problem of another set has besides; None for our own."""

    @classmethod
    def load(cls, folder: Path) -> Problem:
        """Read the problem in `folder`. Raises `ProblemError` with one line for a person."""
        folder = Path(folder)
        name = Path(os.path.abspath(folder)).name
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "no such problem folder"
            raise ProblemError(f"{folder}: {what}")
        if not _NAME.fullmatch(name):
            raise ProblemError(
                f"{folder}: a problem folder is named in lower case, digits and underscores, "
                f"starting with a letter; {name!r} is not"
            )
        if (folder / SET_FILE).is_file():
            return cls._load_set_file(folder)
        contents = {file: _read(folder / file) for file in FILES}
        if os.path.lexists(folder / CHECKS_FILE):
            contents[CHECKS_FILE] = _read(folder / CHECKS_FILE)
        with validation.error_at(str(folder / "problem.yaml")):
            spec = _spec(contents["problem.yaml"])
        with validation.error_at(str(folder / "statement.md")):
            statement = _decode(contents["statement.md"])
            validation.check_text(statement, allowed="\t\r")
        timed = spec.model_dump_json(
            include={"args", "benchmarks"},
            exclude={"args": {"__all__": {"tolerances"}}},
            exclude_defaults=True,
        ).encode()
        timed_code = {file: contents[file] for file in ("reference.py", "inputs.py")}
        times_digest = _digest({"timed": timed} | timed_code)
        judged = JudgedVersion.of(name, spec, contents)
        return cls(folder, name, spec, judged.digest, times_digest, statement, judged, contents)

    @classmethod
    def of_set(cls, spec: Spec, imported: ImportedProblem) -> Problem:
        """A problem of another set, as its code described it. What decides its results and times
        is the set's files, which its digest covers."""
        source = imported.source
        digest, statement = source.digest(), _set_statement(spec, imported)
        files = {SET_FILE: pack(spec, imported)}
        return cls(
            source.folder, source.name, spec, digest, digest, statement, source.judged, files,
            imported=imported,
        )  # fmt: skip

    @classmethod
    def _load_set_file(cls, folder: Path) -> Problem:
        with validation.error_at(str(folder / SET_FILE)):
            data, imported = unpack(_read(folder / SET_FILE, SET_FILE_BYTES))
            return cls.of_set(spec_from(data), imported)

    def cases(self, kind: Literal["test", "benchmark"], device: str) -> list[Case]:
        """The cases to run on `device` (``cpu`` or ``cuda``), in spec order."""
        every = self.spec.tests if kind == "test" else self.spec.benchmarks
        return self._selected(case for case in every if case.device in ("any", device))

    def draw_cases(self, device: str, seed: int, count: int | None = None) -> list[Case]:
        """Test cases of the spec's domain that are in no list, the same for the same seed: `count`,
        or as many as a grading on `device` needs. Empty if the spec has no domain."""
        count = domain.DRAWN_CASES[device] if count is None else count
        return self._selected(domain.draw_cases(self.spec, device, seed, count))

    def _selected(self, cases: Iterable[Case]) -> list[Case]:
        return [case for case in cases if self.selected is None or case.name in self.selected]

    def variants(self, case: Case) -> list[Case]:
        """The benchmark with other parameter values, from the spec's `variants`."""
        return validation.variants(self.spec, case)

    @property
    def set_prototype(self) -> str:
        """The C prototype in which another set's users write a `.cu` file; empty if it has none."""
        if self.imported is None or not self.imported.has_c_prototype:
            return ""
        form = next(iter(self.imported.forms.values()))
        pairs = zip(self.spec.args, form.values, strict=True)
        numbers = {a.name: v.form.c_type for a, v in pairs if isinstance(v.form, ScalarForm)}
        return set_prototype(self.spec, numbers)

    def shape(self, argument: Argument, case: Case) -> tuple[int, ...]:
        """Shape of a tensor argument in a case; empty for scalars and lists."""
        return validation.shape(argument, case)

    def strides(self, argument: Argument, case: Case) -> tuple[int, ...]:
        """Strides in elements of an `out` tensor in a case."""
        return validation.strides(argument, case)

    def dtype(self, argument: Argument, case: Case) -> str:
        """Dtype of an argument in a case, one of `DTYPES`."""
        return validation.dtype(argument, case)

    def accumulation(self, case: Case) -> validation.Accumulation | None:
        """How an honest kernel computes in a case; None if the spec does not say."""
        return validation.accumulation(self.spec, case)

    def bytes(self, case: Case) -> float:
        """Minimum device memory traffic of one call, in bytes; without a cost in the spec, the size
        of the tensor arguments."""
        return validation.moved_bytes(self.spec, case)

    def flops(self, case: Case) -> float:
        """Minimum floating-point operations of one call; 0 without a cost in the spec."""
        return validation.operations(self.spec, case)

    @property
    def takes_solutions(self) -> bool:
        """Whether a submission may be a Solution, a JSON file with several sources."""
        return self.imported is not None and self.imported.takes_solutions

    @property
    def unit(self) -> Literal["fp32", "tensor"]:
        """The GPU's ceiling that limits the operations."""
        return "fp32" if self.spec.cost is None else self.spec.cost.unit


def _set_statement(spec: Spec, imported: ImportedProblem) -> str:
    """Of the set's own text, only what its licence lets a page show."""
    source = imported.source
    functions = [f"`{name}({', '.join(names)})`" for name, names in source.functions.items()]
    theirs = f" ({', '.join(functions)})" if functions else ""
    lines = [
        f"# {source.title}",
        "",
        f"A problem of [{source.set_title}]({source.link}), licence: {source.licence}.",
        "",
        f"A submission is what that set's users write{theirs}, or our own "
        f"`{spec.entry}(…, out)` with the arguments of the problem in their order.",
    ]
    lines += ["", *(f"- {line}" for line in imported.limits)] if imported.limits else []
    original = f"[The original]({source.link}) says what to compute."
    lines += ["", source.statement.strip() or original]
    return "\n".join(lines) + "\n"


def _read(path: Path, most_bytes: int = FILE_BYTES) -> bytes:
    try:
        return read_regular_file(path, most_bytes, follow_link=False)
    except FileNotFoundError:
        raise ProblemError(f"{path}: missing; a problem consists of {', '.join(FILES)}") from None
    except UnreadableFileError as error:
        raise ProblemError(str(error)) from None


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(f"not UTF-8 at byte {error.start}") from None


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _spec(content: bytes) -> Spec:
    """The validated spec. Making one takes 20 ms; a worker process loads the same problem for every
    grading."""
    data = strict_yaml.parse(_decode(content))
    if not isinstance(data, dict):
        raise ProblemError("top level: must be keys and values, such as 'title: …'")
    return spec_from(data)


def spec_from(data: dict[str, Any]) -> Spec:
    """A validated spec of the content of a `problem.yaml`. Raises `ProblemError`."""
    spec = _validate(data)
    validation.check(spec)
    domain.check(spec)
    return spec


def _validate(data: dict[str, Any]) -> Spec:
    try:
        # Strict about types (no "3" for 3). JSON mode still accepts a list for a tuple.
        return Spec.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        # A misspelt key also leaves a key missing; report the unknown one.
        problems = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ProblemError(_describe(problems[0])) from None


def _describe(error: ErrorDetails) -> str:
    """``tests[3].parms: unknown key; did you mean 'params'?``"""
    path = ""
    for step in error["loc"]:
        path = strict_yaml.join(path, step)
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown key; {_suggest(error['loc'])}"
    if error["type"] == "missing":
        return f"{path}: missing"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{path}: {message}, got {_short(error['input'])}"


def _suggest(location: tuple[int | str, ...]) -> str:
    known = list(_model_at(location[:-1]).model_fields)
    return validation.did_you_mean(str(location[-1]), known) or f"known keys: {', '.join(known)}"


def _model_at(location: Iterable[int | str]) -> type[BaseModel]:
    """The model that has the key at `location`; indices and dtype keys do not change the model."""
    model: type[BaseModel] = Spec
    for step in location:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
