"""The data of a profile: what a runner may report, and what is shown. No torch in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grader.judge.verdict import Fault, SubmissionFault
from grader.report import Report, Verdict, one_line

PROFILE_DATA_BYTES = 1 << 20
TRACE_BYTES = 64 << 20
CODE_BYTES = 8 << 20
"""Size limits of what a runner reports: profile data, trace, and each of PTX and SASS."""

Count = Annotated[int, Field(ge=0, le=1 << 40)]
Microseconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=1 << 31)]
ShortText = Annotated[str, Field(max_length=300)]


class _Reported(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReportedKernel(_Reported):
    """One kernel, or copy by the driver, as the runner reports it. Totals are over all calls."""

    name: ShortText
    launches: Count = 0
    total_us: Microseconds = 0.0
    grid: tuple[Count, Count, Count] | None = None
    block: tuple[Size, Size, Size] | None = None
    registers: Count | None = None
    """Per thread."""
    shared_bytes: Count | None = None
    """Per block. If nothing ran, the compiler's number: without dynamic shared memory, and on newer
    GPUs with the 1 KiB that CUDA reserves."""
    local_bytes: Count | None = None
    """Per thread, including spilled registers."""
    local_instructions: Count | None = None
    tensor_instructions: Count | None = None


class NcuCounters(_Reported):
    """Nsight Compute's counters for one launch, in percent of the peak."""

    name: ShortText
    dram_percent: Percent | None
    sm_percent: Percent | None
    l2_hit_percent: Percent | None
    occupancy_percent: Percent | None


class ProfileData(_Reported):
    """Everything that a runner may report. Times are of a whole round: one call per set."""

    calls: Annotated[int, Field(ge=0, le=1000)]
    kernels: Annotated[list[ReportedKernel], Field(max_length=40)]
    table: Annotated[str, Field(max_length=100_000)]
    notes: Annotated[list[ShortText], Field(max_length=20)]
    ncu: Annotated[list[NcuCounters], Field(max_length=20)]
    eager_us: Microseconds | None = None
    """Launched one by one, without the profiler."""
    graph_us: Microseconds | None = None
    """As a CUDA graph; null if the calls cannot be captured."""
    busy_us: Microseconds | None = None
    """Time during which the GPU was busy, from the profiler."""
    trace_bytes: Annotated[int, Field(ge=0, le=TRACE_BYTES)]
    ptx_bytes: Annotated[int, Field(ge=0, le=CODE_BYTES)]
    sass_bytes: Annotated[int, Field(ge=0, le=CODE_BYTES)]


class KernelProfile(BaseModel):
    """One kernel of a profile: the runner's numbers per call, and what follows from them."""

    name: str
    launches: float
    """Per call."""
    time_us: float
    """Per call."""
    share: float
    """Fraction of the time that the GPU was busy."""
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    shared_bytes: int | None
    local_bytes: int | None
    local_instructions: int | None
    tensor_instructions: int | None
    occupancy: float | None = None
    """Fraction of an SM's warps that are resident; null if it cannot be computed."""
    occupancy_bound: str | None = None
    """The resource that limits the occupancy."""
    waves: float | None = None
    """Blocks of a launch, divided by the blocks that the GPU holds at once."""


class Profile(BaseModel):
    """A complete profile: the object of ``grade profile --json``."""

    problem: str
    submission_name: str
    submission_sha256: str
    language: Literal["python", "cuda"]
    device: Literal["cpu", "cuda"]
    gpu: str | None
    sandbox: str
    case: str | None
    """Benchmark case; null if the code was compiled and not run."""
    params: dict[str, Any]
    calls: int
    time_us: float | None
    """Per call: time that the GPU was busy; on a CPU, wall time."""
    eager_us: float | None
    """Per call, launched one by one."""
    graph_us: float | None
    """Per call in a CUDA graph; null if it cannot be captured."""
    gb_per_s: float | None
    tflop_per_s: float | None
    ceiling_gb_per_s: float | None
    """Measured on this GPU with a copy."""
    ceiling_tflop_per_s: float | None
    """Measured on this GPU with a matrix product, in the unit that the problem names."""
    limit: str
    """What limits the kernel, in words."""
    kernels: list[KernelProfile]
    ncu: list[NcuCounters]
    notes: list[str]
    log: str
    """The submission's output, escaped and truncated."""
    environment: dict[str, Any]
    files: dict[str, str] = Field(default_factory=dict)
    """Kind → path of a written file; filled in by the command."""


@dataclass(frozen=True)
class ProfileArtifacts:
    """Files of a profile. The submission controls their content, so nothing parses them."""

    table: str
    trace: bytes
    ptx: bytes
    sass: bytes


class ProfilingError(Exception):
    """The submission failed before it could be profiled; `report` has the verdict and reason."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.reason)
        self.report = report


def parse_profile_data(text: bytes) -> ProfileData:
    """Parse what a runner reported. Raises `SubmissionFault` unless it follows the schema."""
    try:
        return ProfileData.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "all of it"
        reason = f"its profile data is invalid: {where}: {first['msg']}"
        raise SubmissionFault(Fault(Verdict.RUNTIME_ERROR, one_line(reason))) from None
