"""A problem of another set in one file, ``set.json``: its set's files, and what its code said.

Slots of a hosted board get this file. It holds all that a grading needs, so no checkout has to be
there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from grader.problem.imported import CaseForm, ImportedProblem, SetSource
from grader.problem.spec import ProblemError, Spec

SET_FILE = "set.json"
"""The only file of such a problem's folder."""
SET_FILE_BYTES = 256 << 20
"""The size limit of the file: a set's data may have 64 MiB, in base64."""


class PackedSource(BaseModel):
    """A `SetSource` as JSON, without the submissions that its set ships."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    set: str
    set_title: str
    licence: str
    link: str
    name: str
    title: str
    folder: Path
    files: dict[str, bytes]
    options: dict[str, Any]
    notes: tuple[str, ...]
    statement: str

    @classmethod
    def of(cls, source: SetSource) -> PackedSource:
        """The same as JSON."""
        return cls(**{name: getattr(source, name) for name in cls.model_fields})

    def source(self) -> SetSource:
        """The problem's files as they were read."""
        return SetSource(**{name: getattr(self, name) for name in PackedSource.model_fields})


class _Packed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: PackedSource
    spec: dict[str, Any]
    """As in a `problem.yaml`."""
    numbers: dict[str, int]
    forms: dict[str, CaseForm]
    wide: frozenset[str]
    limits: tuple[str, ...]
    device: Literal["cpu", "cuda"]


def pack(spec: Spec, imported: ImportedProblem) -> bytes:
    """The content of the file."""
    packed = _Packed(
        source=PackedSource.of(imported.source),
        spec=spec.model_dump(mode="json", exclude_defaults=True),
        numbers=dict(imported.numbers),
        forms=dict(imported.forms),
        wide=imported.wide,
        limits=imported.limits,
        device=imported.device,
    )
    return packed.model_dump_json().encode()


def unpack(content: bytes) -> tuple[dict[str, Any], ImportedProblem]:
    """The spec as in a `problem.yaml`, and the rest. Raises `ProblemError`."""
    try:
        packed = _Packed.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise ProblemError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return packed.spec, ImportedProblem(
        packed.source.source(),
        packed.numbers,
        packed.forms,
        packed.wide,
        packed.limits,
        packed.device,
    )
