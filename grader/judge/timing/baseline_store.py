"""Recorded times: `reference/timings/<gpu>.json`, written by `grade baseline`, read by practice.

One file per GPU, and per processor where there is no GPU. It holds, per problem and per benchmark
case, the microseconds per call of every baseline, of torch.compile and of our expert kernels, with
the environment they were measured in. No torch in here.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grader.problem import Problem, ProblemError
from grader.problem.spec import Name

COMPILED = "compiled"
"""What torch.compile of a problem's eager function is called in every record."""

Micros = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Word = Annotated[str, Field(min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Environment(_Strict):
    """What a problem's times were measured in. Versions as their owners print them."""

    driver: Word | None
    """Of the GPU; null on a CPU, and where NVML does not tell."""
    cuda: Word | None
    torch: Word
    triton: Word | None
    """Null where it is not installed."""
    python: Word
    grade: Word
    measured_at: datetime


class ProblemTimes(_Strict):
    """The times of one problem on one GPU."""

    digest: Digest
    """`Problem.times_digest`: where that is another, these times say nothing of the problem's."""
    environment: Environment
    experts: list[Word]
    """The names in `cases` that are our own kernels: files of `reference/<problem>/`."""
    cases: dict[Name, dict[Word, Micros]] = Field(min_length=1)
    """Benchmark case → baseline or kernel → microseconds per call, cold L2."""


class Ceilings(_Strict):
    """The best that this hardware was seen to do, per second: `environment.Ceilings`, kept."""

    bytes_per_s: Rate
    fp32_per_s: Rate
    tensor_per_s: Rate


class Timings(_Strict):
    """A whole `reference/timings/<gpu>.json`."""

    format: Literal[1] = 1
    hardware: Word
    """The GPU's name, or the processor's."""
    device: Literal["cpu", "cuda"]
    ranked: bool
    """False for a CPU: its times are practice, and stand beside no GPU's."""
    ceilings: Ceilings | None = None
    """The newest that were measured; null in a record from before they were kept."""
    problems: dict[Name, ProblemTimes] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _only_gpus_rank(self) -> Timings:
        if self.ranked != (self.device == "cuda"):
            raise ValueError("times of a GPU are ranked, and times of a CPU are not")
        return self

    def updated(
        self, problem: str, times: ProblemTimes, ceilings: Ceilings | None = None
    ) -> Timings:
        """The same with one problem's times exchanged, and the ceilings if there are new ones."""
        problems = dict(sorted({**self.problems, problem: times}.items()))
        return self.model_copy(update={"problems": problems, "ceilings": ceilings or self.ceilings})


class Recorded(_Strict):
    """The times of one problem, and the hardware that they are of."""

    hardware: str
    device: Literal["cpu", "cuda"]
    times: ProblemTimes
    ceilings: Ceilings | None = None


def folder_of(problem: Problem) -> Path:
    """Where the times of a problem lie: `reference/timings` beside the folder `problems`, or beside
    the problem's own folder where that lies in none of this name."""
    parent = problem.folder.resolve().parent
    root = parent.parent if parent.name == "problems" else parent
    return root / "reference" / "timings"


def load(folder: Path, hardware: str) -> Timings | None:
    """The record of this hardware; None where there is none yet.

    Raises `ProblemError` when there is a file and it is no record of it.
    """
    path = folder / f"{slug(hardware)}.json"
    if not path.exists():
        return None
    timings = _read(path)
    if timings.hardware != hardware:
        raise ProblemError(f"{path}: is of '{timings.hardware}', not of '{hardware}'; rename it")
    return timings


def save(folder: Path, timings: Timings) -> Path:
    """Write a record whole, or leave what was there; gives its path.

    Raises `ProblemError` when it cannot be written.
    """
    path = folder / f"{slug(timings.hardware)}.json"
    text = json.dumps(timings.model_dump(mode="json"), indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise ProblemError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def recorded(problem: Problem) -> list[Recorded]:
    """Every record of what a problem times, GPUs first, in order of the hardware's name.

    Raises `ProblemError` when a file beside them is no record.
    """
    found = [
        Recorded(
            hardware=timings.hardware,
            device=timings.device,
            times=times,
            ceilings=timings.ceilings,
        )
        for timings in map(_read, sorted(folder_of(problem).glob("*.json")))
        if (times := timings.problems.get(problem.name)) and times.digest == problem.times_digest
    ]
    return sorted(found, key=lambda one: (one.device == "cpu", one.hardware))


def slug(hardware: str) -> str:
    """A file name for it: `NVIDIA H100 80GB HBM3` → `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")


def _read(path: Path) -> Timings:
    try:
        return Timings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ProblemError(
            f"{path}: no record of times ({where}: {first['msg']}); "
            "remove it and run grade baseline again"
        ) from None


def _replace(path: Path, text: str) -> None:
    """Write beside the file and rename over it, so that a reader sees the old or the new."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
