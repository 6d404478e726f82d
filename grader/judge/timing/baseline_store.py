"""Recorded baselines: `<gpu>.json`, written by `grade baseline`.

The user's are in the folder of their data; the project's, which `grade baseline --record` writes,
in `reference/timings`. Where both have times of one GPU, the user's are read.
There is one file per GPU, and per processor for machines without a GPU. It holds, per problem and
benchmark case, the microseconds per call of every baseline, of torch.compile and of our expert
kernels, and the environment of the measurement. No torch in here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grader.files import user_data_folder
from grader.problem import Problem, ProblemError
from grader.problem.spec import Name

CPUINFO = Path("/proc/cpuinfo")
COMPILED = "compiled"
"""Name of the baseline that is torch.compile of the problem's eager function."""

Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Word = Annotated[str, Field(min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BaselineEnvironment(_Strict):
    """The environment in which a problem's baselines were measured. Versions as text."""

    driver: Word | None
    """Of the GPU; null on a CPU, and without NVML."""
    cuda: Word | None
    torch: Word
    triton: Word | None
    """Null if it is not installed."""
    python: Word
    grade: Word
    measured_at: datetime


class ProblemBaselines(_Strict):
    """The baselines of one problem on one GPU or processor."""

    digest: Digest
    """`Problem.times_digest`; the times are valid only for a problem with the same digest."""
    environment: BaselineEnvironment
    experts: list[Word]
    """The names in `cases` that are our expert kernels: files of `reference/<problem>/`."""
    cases: dict[Name, dict[Word, Microseconds]] = Field(min_length=1)
    """Benchmark case → baseline or kernel → microseconds per call, cold L2."""


class RecordedCeilings(_Strict):
    """`grader.judge.gpu.environment.Ceilings` in a file: the highest measured rates, per second."""

    bytes_per_s: Rate
    fp32_per_s: Rate
    tensor_per_s: Rate


class BaselineFile(_Strict):
    """The content of one `<gpu>.json`."""

    format: Literal[1] = 1
    hardware: Word
    """The GPU's name, or the processor's."""
    device: Literal["cpu", "cuda"]
    ranked: bool
    """False for a CPU: its times are for practice, and are not compared with a GPU's."""
    ceilings: RecordedCeilings | None = None
    """The newest measurement; null in files of older versions."""
    problems: dict[Name, ProblemBaselines] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _only_gpus_rank(self) -> BaselineFile:
        if self.ranked != (self.device == "cuda"):
            raise ValueError("times of a GPU are ranked, and times of a CPU are not")
        return self

    def updated(
        self, problem: str, times: ProblemBaselines, ceilings: RecordedCeilings | None = None
    ) -> BaselineFile:
        """A copy with the times of one problem replaced, and the ceilings if new ones are given."""
        problems = dict(sorted({**self.problems, problem: times}.items()))
        return self.model_copy(update={"problems": problems, "ceilings": ceilings or self.ceilings})


class RecordedBaselines(_Strict):
    """The baselines of one problem, with their hardware."""

    hardware: str
    device: Literal["cpu", "cuda"]
    times: ProblemBaselines
    ceilings: RecordedCeilings | None = None


def user_folder() -> Path:
    """The folder for the baselines that this user measures. Raises `ProblemError` without a home
    directory."""
    try:
        return user_data_folder() / "timings"
    except RuntimeError:
        raise ProblemError(
            "this user has no home directory for times; set XDG_DATA_HOME to a folder"
        ) from None


def folder_of(problem: Problem) -> Path:
    """The folder for the project's baselines of a problem: `reference/timings` beside the folder
    `problems` that contains the problem, or else beside the problem's own folder."""
    parent = problem.folder.resolve().parent
    root = parent.parent if parent.name == "problems" else parent
    return root / "reference" / "timings"


def load(folder: Path, hardware: str) -> BaselineFile | None:
    """The file of this hardware; None if there is none yet.

    Raises `ProblemError` when the file is invalid or of other hardware.
    """
    path = folder / f"{slug(hardware)}.json"
    if not path.exists():
        return None
    file = _read(path)
    if file.hardware != hardware:
        raise ProblemError(f"{path}: is of '{file.hardware}', not of '{hardware}'; rename it")
    return file


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others from changing a file of the folder between `load` and `save`: all problems' times
    on one GPU are in one file. Raises `ProblemError` when the folder cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ProblemError(f"{folder}: cannot be made or opened: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def save(folder: Path, file: BaselineFile) -> Path:
    """Write the file atomically. Returns its path.

    Raises `ProblemError` when it cannot be written; the old file stays then.
    """
    path = folder / f"{slug(file.hardware)}.json"
    text = json.dumps(file.model_dump(mode="json"), indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise ProblemError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def load_recorded(problem: Problem) -> list[RecordedBaselines]:
    """The recorded baselines of a problem's current version, GPUs first, then by hardware name; the
    user's before the project's of the same hardware.

    Raises `ProblemError` when any file of either folder is invalid.
    """
    folders = [folder_of(problem)]
    with contextlib.suppress(ProblemError):
        folders.append(user_folder())
    paths = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    found = {
        file.hardware: RecordedBaselines(
            hardware=file.hardware,
            device=file.device,
            times=times,
            ceilings=file.ceilings,
        )
        for file in map(_read, paths)
        if (times := file.problems.get(problem.name)) and times.digest == problem.times_digest
    }
    return sorted(found.values(), key=lambda one: (one.device == "cpu", one.hardware))


def slug(hardware: str) -> str:
    """A file name without extension: `NVIDIA H100 80GB HBM3` → `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")


def processor_name() -> str:
    """The processor's name as Linux reports it: the hardware of a machine without a GPU."""
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else ():
        key, _, name = line.partition(":")
        if key.strip() == "model name":
            return " ".join(name.split())
    return platform.machine() or "unknown processor"


def _read(path: Path) -> BaselineFile:
    try:
        return BaselineFile.model_validate_json(path.read_bytes())
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
    """Write beside the file and rename over it, so that readers see the old or the new content."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
