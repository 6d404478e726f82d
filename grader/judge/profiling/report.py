"""The data of a profile: what a runner may claim, and what is told of it. No torch in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grader.judge.verdict import Fault, SubmissionFault
from grader.report import Report, Verdict, one_line

FACTS_BYTES = 1 << 20
TRACE_BYTES = 64 << 20
CODE_BYTES = 8 << 20
"""How much a runner may tell: facts, a trace, and PTX and SASS each."""

Count = Annotated[int, Field(ge=0, le=1 << 40)]
Micros = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=1 << 31)]
Name = Annotated[str, Field(max_length=300)]


class _Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class KernelClaim(_Claim):
    """One kernel, or copy by the driver, as the runner tells of it."""

    name: Name
    launches: Count = 0
    total_us: Micros = 0.0
    grid: tuple[Count, Count, Count] | None = None
    block: tuple[Size, Size, Size] | None = None
    registers: Count | None = None
    """Per thread."""
    shared_bytes: Count | None = None
    """Per block. Where nothing ran, as the compiler has it: without what a launch adds, and on
    newer GPUs with the 1 KiB that the system reserves."""
    local_bytes: Count | None = None
    """Per thread, spilled registers among them."""
    local_instructions: Count | None = None
    tensor_instructions: Count | None = None


class Counters(_Claim):
    """What Nsight Compute counted over one launch, in percent of what is possible."""

    name: Name
    dram_percent: Percent | None
    sm_percent: Percent | None
    l2_hit_percent: Percent | None
    occupancy_percent: Percent | None


class Facts(_Claim):
    """Everything that a runner may tell. Times are of a whole round: one call per set."""

    calls: Annotated[int, Field(ge=0, le=1000)]
    kernels: Annotated[list[KernelClaim], Field(max_length=40)]
    table: Annotated[str, Field(max_length=100_000)]
    notes: Annotated[list[Name], Field(max_length=20)]
    ncu: Annotated[list[Counters], Field(max_length=20)]
    eager_us: Micros | None = None
    """Launched one by one, without the profiler."""
    graph_us: Micros | None = None
    """As a CUDA graph; null where the calls cannot be captured."""
    busy_us: Micros | None = None
    """Time in which something ran on the GPU, by the profiler."""
    trace_bytes: Annotated[int, Field(ge=0, le=TRACE_BYTES)]
    ptx_bytes: Annotated[int, Field(ge=0, le=CODE_BYTES)]
    sass_bytes: Annotated[int, Field(ge=0, le=CODE_BYTES)]


class Kernel(BaseModel):
    """One kernel of a profile: what the runner told, per call, and what follows from it."""

    name: str
    launches: float
    """Per call."""
    time_us: float
    """Per call."""
    share: float
    """Of the time that the GPU worked."""
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    shared_bytes: int | None
    local_bytes: int | None
    local_instructions: int | None
    tensor_instructions: int | None
    occupancy: float | None = None
    """Share of an SM's warps that fit; null where something needed for it is not known."""
    occupancy_bound: str | None = None
    """What would have to shrink for more to fit."""
    waves: float | None = None
    """Blocks of a launch, over those that the GPU holds at once."""


class Profile(BaseModel):
    """One profile, whole: the object of ``grade profile --json``."""

    problem: str
    submission_name: str
    submission_sha256: str
    language: Literal["python", "cuda"]
    device: Literal["cpu", "cuda"]
    gpu: str | None
    sandbox: str
    case: str | None
    """Benchmark case; null where the code was compiled and not run."""
    params: dict[str, Any]
    calls: int
    time_us: float | None
    """Per call: the GPU at work, or on a CPU the wall's time."""
    eager_us: float | None
    """Per call, launched one by one."""
    graph_us: float | None
    """Per call in a CUDA graph; null where it cannot be captured."""
    gb_per_s: float | None
    tflop_per_s: float | None
    ceiling_gb_per_s: float | None
    """Of a copy, measured on this GPU."""
    ceiling_tflop_per_s: float | None
    """Of a matrix product in the unit that the problem is held against, measured on this GPU."""
    limit: str
    """What limits the kernel, in words."""
    kernels: list[Kernel]
    ncu: list[Counters]
    notes: list[str]
    log: str
    """The submission's own output, escaped and cut."""
    environment: dict[str, Any]
    files: dict[str, str] = Field(default_factory=dict)
    """What was written, by kind; filled in by who writes it."""


@dataclass(frozen=True)
class Bulk:
    """Text of the submission's making, for files and for nobody's parser."""

    table: str
    trace: bytes
    ptx: bytes
    sass: bytes


class Unprofiled(Exception):
    """The submission failed; `report` says how, with a verdict, as practice would."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.reason)
        self.report = report


def read_facts(text: bytes) -> Facts:
    """Check what a runner told. Raises `SubmissionFault` unless it is exactly a set of facts."""
    try:
        return Facts.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "all of it"
        reason = f"what it tells of itself is no profile: {where}: {first['msg']}"
        raise SubmissionFault(Fault(Verdict.RUNTIME_ERROR, one_line(reason))) from None
