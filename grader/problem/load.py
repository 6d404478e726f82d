"""Reading a problem folder: four files, one digest, a checked spec."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from grader.problem import strict_yaml, validation
from grader.problem.errors import ProblemError
from grader.problem.spec import Argument, Case, Spec

FILES = ("problem.yaml", "reference.py", "inputs.py", "statement.md")
"""What a problem consists of; its digest covers these."""

FILE_BYTES = 1 << 20
"""How large each file may be."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Problem:
    """One problem, loaded and checked."""

    folder: Path
    name: str
    """The folder's name."""
    spec: Spec
    digest: str
    """sha256, hex, over the names and contents of the four files: the problem's version."""
    times_digest: str
    """sha256, hex, over what its times depend on: arguments, benchmarks, reference and inputs."""
    statement: str
    """Markdown."""

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
                f"from a letter on; {name!r} is not"
            )
        contents = {file: _read(folder / file) for file in FILES}
        spec = _spec(folder / "problem.yaml", contents["problem.yaml"])
        statement = _decode(folder / "statement.md", contents["statement.md"])
        timed = spec.model_dump_json(include={"args", "benchmarks"}, exclude_defaults=True).encode()
        times_digest = _digest(
            {"timed": timed} | {file: contents[file] for file in ("reference.py", "inputs.py")}
        )
        return cls(folder, name, spec, _digest(contents), times_digest, statement)

    def cases(self, kind: Literal["test", "benchmark"], device: str) -> list[Case]:
        """The cases to run on `device` (``cpu`` or ``cuda``), in spec order."""
        every = self.spec.tests if kind == "test" else self.spec.benchmarks
        return [case for case in every if case.device in ("any", device)]

    def variants(self, case: Case) -> list[Case]:
        """A benchmark with other values of its parameters, as the spec's `variants` names them."""
        return validation.variants(self.spec, case)

    def shape(self, argument: Argument, case: Case) -> tuple[int, ...]:
        """Shape of a tensor argument in a case; empty for scalars and lists."""
        return validation.shape(argument, case)

    def dtype(self, argument: Argument, case: Case) -> str:
        """Dtype of an argument in a case, one of `DTYPES`."""
        return validation.dtype(argument, case)

    def bytes(self, case: Case) -> float:
        """Device memory one call must move at the least, bytes."""
        return validation.cost(self.spec.cost.bytes, case)

    def flops(self, case: Case) -> float:
        """Floating-point operations one call must do."""
        return validation.cost(self.spec.cost.flops, case)


def _read(path: Path) -> bytes:
    """A regular file of at most `FILE_BYTES`, never through a symbolic link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProblemError(f"{path}: missing; a problem consists of {', '.join(FILES)}") from None
    except OSError as error:
        link = " (symbolic links are not followed)" if path.is_symlink() else ""
        raise ProblemError(f"{path}: cannot be read: {error.strerror}{link}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ProblemError(f"{path}: is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > FILE_BYTES:
        raise ProblemError(f"{path}: larger than the limit of {FILE_BYTES:,} bytes")
    return content


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not UTF-8 at byte {error.start}") from None


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _spec(path: Path, content: bytes) -> Spec:
    try:
        data = strict_yaml.parse(_decode_yaml(content))
        if not isinstance(data, dict):
            raise ProblemError("top level: must be keys and values, such as 'title: …'")
        spec = _validate(data)
        validation.check(spec)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None
    return spec


def _decode_yaml(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(f"not UTF-8 at byte {error.start}") from None


def _validate(data: dict[str, Any]) -> Spec:
    try:
        # By way of JSON: strict about types (no "3" for 3), yet a list may stand for a tuple.
        return Spec.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        # A misspelt key is also a missing key; the unknown one is the one to show.
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
    """The model whose key stands at `location`; indices and dtype keys lead no deeper."""
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
