"""The data of a problem: what `problem.yaml` may say. Strict: an unknown key is an error.

Everything here is plain data with no torch in it, so that loading a problem costs milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from grader.arena.layout import ITEM_BYTES

DTYPES = ITEM_BYTES
"""Tensor element types a problem may use, with their size in bytes."""
FLOATING_DTYPES = ("fp64", "fp32", "fp16", "bf16")
"""Those of them that are rounded, so that a tolerance must say how far."""


def _as_text(value: object) -> object:
    """YAML reads a formula that is one plain number as that number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Formula = Annotated[str, BeforeValidator(_as_text), StringConstraints(min_length=1, max_length=500)]
GpuType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,39}$")]
Role = Literal["in", "out", "inout"]
Device = Literal["any", "cpu", "cuda"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Argument(_Strict):
    """One argument of the entry, in call order."""

    name: Name
    role: Role = "in"
    kind: Literal["tensor", "tensors", "scalar"] = "tensor"
    """`tensors` is a list of tensors whose count and sizes the input generator decides."""
    dtype: str
    """One of `DTYPES`, or the name of a case parameter that holds one. For a scalar: ``int64``,
    ``fp64`` or ``bool`` (what C sees as ``int64_t``, ``double`` and ``bool``)."""
    shape: list[Formula] = Field(default_factory=list)
    """A formula per dimension over the case's parameters. Tensors only; a list has none."""
    contiguous: bool = True
    """False where the generator may hand in other strides. Inputs only."""
    structured: bool = False
    """True where its elements keep a property together (sorted rows, a positive definite matrix),
    which a mixture of two tensors would not have: it never comes late (`deferred_inputs`). What
    is told by other inputs, such as offsets, needs no mark: wide integers never do. Inputs only."""


class Case(_Strict):
    """One test or benchmark case."""

    name: Name
    params: dict[str, Any]
    """Dimensions and whatever else the generator takes: integers, numbers, booleans, words."""
    calls: int = Field(default=1, ge=1, le=64)
    """Calls in a row with `inout` state carried from one to the next, for optimizers."""
    device: Device = "any"
    """`cuda`: too heavy for a CPU. `cpu`: practice size, never run on a GPU."""


class Tolerance(_Strict):
    """Bounds on the error of an output of one dtype; all of them must hold."""

    atol: float = Field(ge=0)
    rtol: float = Field(ge=0)
    """Elementwise: ``|out - ref| <= atol + rtol * |ref|``."""
    rel_l2: float = Field(gt=0)
    """``||out - ref||_2 / ||ref||_2`` over the whole output and over the worst slice."""
    budget: float = Field(default=4.0, ge=1)
    """RMS and maximum error may be this many times what plain PyTorch makes at the same dtype."""


class Cost(_Strict):
    """What one call must do at the least: formulas over a case's parameters.

    `itemsize` is the size in bytes of the case's `dtype` parameter where there is one.
    """

    bytes: Formula
    """Device memory that must be read and written, each byte once."""
    flops: Formula
    """Floating-point operations."""
    unit: Literal["fp32", "tensor"] = "fp32"
    """Which of the GPU's ceilings the operations are held against."""


class Limits(_Strict):
    """What a submission may use. Times in seconds, sizes in bytes."""

    source_bytes: int = Field(default=1 << 20, gt=0)
    load_s: float = Field(default=120, gt=0)
    """Import, in which `load_inline` was seen to take 67 s; of a `.cu`, its compiler, and then to
    bind what it made."""
    call_s: float = Field(default=20, gt=0)
    """One call; the first one includes just-in-time compilation."""
    total_s: float = Field(default=600, gt=0)
    memory_bytes: int = Field(default=8 << 30, gt=0)
    """Of the runner's sandbox, and as much of the one in which a `.cu` is compiled."""
    device_memory_bytes: int = Field(default=16 << 30, gt=0)
    """Device memory of the submission's own, beyond what the judge lends."""
    scratch_bytes: int = Field(default=1 << 30, gt=0)
    output_bytes: int = Field(default=64 << 20, gt=0)
    """stdout and stderr together."""
    pids: int = Field(default=1024, gt=0)
    """Processes and threads together."""


class Spec(_Strict):
    """A whole `problem.yaml`."""

    format: Literal[1]
    title: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    summary: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    entry: Name
    args: list[Argument] = Field(min_length=1)
    cuda_dtypes: list[str] = Field(default_factory=list)
    """Dtypes a `.cu` file must have a symbol for, when arguments' dtype is a case parameter.
    The first has the plain symbol, each other one the symbol with ``_<dtype>`` behind it."""
    tolerances: dict[str, Tolerance]
    """By dtype of the output."""
    cost: Cost
    limits: Limits = Limits()
    gpu: GpuType | None = None
    """The type of GPU that a server grades it on unless the submitter asks for another, as words of
    the GPU's name: ``H100`` or ``A100 80GB``. None takes any worker."""
    tests: list[Case] = Field(min_length=1)
    benchmarks: list[Case] = Field(min_length=1)
    variants: dict[str, list[Any]] = Field(default_factory=dict)
    """Other values of a benchmark's parameter, such as other distributions; shapes, dtypes and
    scalars must stay. A round that is not timed, nobody knows which, has inputs of each for one set
    (several rounds, where one has fewer sets), so that code that is right for the usual inputs only
    is found."""
