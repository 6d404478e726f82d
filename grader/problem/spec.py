"""The schema of `problem.yaml`. Strict: an unknown key is an error.

Plain data without torch, so that loading a problem takes milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from grader.arena.layout import ITEM_BYTES

DTYPES = ITEM_BYTES
"""Tensor element types that a problem may use, with their size in bytes."""
FLOATING_DTYPES = ("fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
"""The floating-point types, whose outputs need a tolerance."""


def _as_text(value: object) -> object:
    """A formula that is a plain number: YAML has read it as a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
FormulaText = Annotated[
    str, BeforeValidator(_as_text), StringConstraints(min_length=1, max_length=500)
]
GpuType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,39}$")]
_ONE_LINE = StringConstraints(strip_whitespace=True, pattern=r"^[^\n]+$")
Role = Literal["in", "out", "inout"]
CaseDevice = Literal["any", "cpu", "cuda"]
Topic = Literal["first kernels", "fusion", "matmul", "quantization", "optimizers", "attention"]
LimitedBy = Literal["memory", "compute", "latency"]


class ProblemError(Exception):
    """A problem folder is not usable. One line for a person: file, place, what to do."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tolerance(_Strict):
    """Error bounds for outputs of one dtype, or for one output; all must hold."""

    atol: float = Field(ge=0)
    """Elementwise, absolute: ``|out - ref| <= atol + rtol * |ref|``."""
    rtol: float = Field(ge=0)
    """Elementwise, relative to the reference."""
    rel_l2: float = Field(gt=0)
    """``||out - ref||_2 / ||ref||_2`` over the whole output and over the worst slice."""
    budget: float = Field(default=4.0, ge=1)
    """RMS and maximum error may always be this multiple of eager PyTorch's error at the same dtype,
    even where the bound from `accumulate` is smaller."""


class Argument(_Strict):
    """One argument of the entry, in call order."""

    name: Name
    """The parameter of the entry, in Python and in C++."""
    role: Role = "in"
    """Whether a call reads it (`in`), writes all of it (`out`), or updates it (`inout`)."""
    kind: Literal["tensor", "tensors", "scalar"] = "tensor"
    """`tensors` is a list of tensors; the input generator decides their number and sizes."""
    dtype: str
    """One of `DTYPES`, or the name of a case parameter that holds one. For a scalar: ``int64``,
    ``fp64`` or ``bool`` (in C ``int64_t``, ``double`` and ``bool``)."""
    shape: list[FormulaText] = Field(default_factory=list)
    """One formula per dimension, over the case's parameters. Only for a tensor, not for a list."""
    contiguous: bool = True
    """False if the generator may give non-contiguous tensors. Inputs only."""
    strides: list[FormulaText] = Field(default_factory=list)
    """The strides of an `out` tensor in elements, one formula per dimension, such as ``[1, rows]``
    for a matrix stored by columns. Without them it is contiguous."""
    weight: bool = False
    """True for what stays the same from call to call, such as a layer's weights. A Python
    submission may define ``<entry>_setup``, which gets all weights once, before any other input is
    there, outside of the time; its result takes their place among the entry's parameters. Inputs
    only."""
    scratch: bool = False
    """True if a call may write this input, such as a cache for later calls. What it then holds is
    not compared. Inputs only."""
    unique: bool = True
    """False if several values are right, as of the vectors of a decomposition or of the indices of
    equal elements. Then `residuals()` in `checks.py` judges it, and the reference's value is only
    one of the right ones. Outputs only."""
    optional: bool = False
    """True for an output that a call may leave as it is, or not return, such as the logarithms of
    sums beside the result of attention. What a call has written a part of is compared. Outputs of
    fp16, bf16, fp32 or fp64 only, and not all outputs."""
    structured: bool = False
    """True if the elements together have a property (sorted rows, a positive definite matrix) that
    a mixture of two tensors would break, or if a kernel may read them twice and store where they
    say, as a radix sort does. Such an input is never deferred (`deferred_inputs`). Wide integers,
    such as offsets, are never deferred anyway. Inputs only."""
    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    """By dtype, instead of the problem's: for an output that is more or less exact than the others.
    Outputs only."""

    @property
    def is_written(self) -> bool:
        """Whether a call may write it."""
        return self.role != "in" or self.scratch

    @property
    def is_strided(self) -> bool:
        """Whether a `.cu` entry gets the strides."""
        return not self.contiguous or bool(self.strides)


class Case(_Strict):
    """One test or benchmark case."""

    name: Name
    """Reports and recorded times name the case by it; unique among tests and benchmarks."""
    params: dict[str, Any]
    """Dimensions and other arguments of the generator: integers, numbers, booleans, words."""
    calls: int = Field(default=1, ge=1, le=64)
    """Consecutive calls that carry `inout` state from one to the next, for optimizers."""
    device: CaseDevice = "any"
    """`cuda`: too heavy for a CPU. `cpu`: practice size, never run on a GPU."""
    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    """By name or dtype of the output, in place of all others, such as of the argument: for a case
    that is harder than the rest."""


def _as_choices(value: object) -> object:
    """A list is short for its choices."""
    return {"choices": value} if isinstance(value, list) else value


class ParameterDomain(_Strict):
    """The values that a case parameter may have: a range of whole numbers, or choices.

    A formula may use the parameters that are declared before. In YAML a list is enough for choices.
    """

    min: FormulaText = "1"
    """The least value of a range."""
    max: FormulaText | None = None
    """The largest value of a range. Either this or `choices` is given."""
    multiple_of: FormulaText = "1"
    """Values of a range are multiples of it."""
    choices: Annotated[list[Any], Field(min_length=1)] | None = None
    """The values, one of which is drawn."""

    def __str__(self) -> str:
        """``1 … 300``, ``2 … 64, a multiple of 2``, or ``fp32 | fp16``."""
        if self.choices is not None:
            return " | ".join(map(str, self.choices))
        step = "" if self.multiple_of == "1" else f", a multiple of {self.multiple_of}"
        return f"{self.min} … {self.max}{step}"

    def formulas(self) -> dict[str, str]:
        """The formulas of a range by key; empty for choices."""
        if self.choices is not None or self.max is None:
            return {}
        return {"min": self.min, "max": self.max, "multiple_of": self.multiple_of}


class Accumulate(_Strict):
    """How an honest kernel computes, from which its largest rounding error follows
    (`judge/correctness/error_bound`)."""

    dtype: str
    """Precision of products and sums: one of `FLOATING_DTYPES`, or a case parameter's name."""
    terms: FormulaText
    """Number of terms of the longest sum behind an output element, over the case's parameters."""
    roundings: int = Field(default=16, ge=0, le=100_000)
    """Roundings besides those of the sum: of elementary functions, scaling and division. An error
    of one unit in the last place counts as two."""
    operands: str | None = None
    """Precision to which a kernel may round the factors of each term before it multiplies them, as
    tensor cores ask: a dtype, or a case parameter's name."""


class Cost(_Strict):
    """The minimum work of one call, as formulas over a case's parameters.

    `itemsize` is the size in bytes of the case's `dtype` parameter, if it has one.
    """

    bytes: FormulaText
    """Device memory that must be read and written, counting each byte once."""
    flops: FormulaText
    """Operations; those that tensor cores do at twice the rate of bf16, as of 8-bit numbers, count
    half."""
    unit: Literal["fp32", "tensor"] = "fp32"
    """The GPU's ceiling that limits the operations."""


class Limits(_Strict):
    """Resource limits of a submission. Times in seconds, sizes in bytes.

    Each has a least value, below which a runner could not start or answer.
    """

    source_bytes: int = Field(default=1 << 20, ge=1 << 10)
    """The submitted file."""
    load_s: float = Field(default=120, ge=0.1)
    """Import, in which `load_inline` may take over a minute; for a `.cu` file, compiling it and,
    separately, binding the library."""
    call_s: float = Field(default=20, ge=0.1)
    """One call."""
    compile_s: float = Field(default=120, ge=0)
    """How much longer than `call_s` the first calls of all cases may take together, to compile
    kernels just in time or to tune them."""
    total_s: float = Field(default=600, ge=10)
    """The whole grading but the problem's own code. Starting a runner, which imports torch, takes
    seconds of it."""
    memory_bytes: int = Field(default=8 << 30, ge=1 << 29)
    """Of the runner's sandbox, and of the sandbox that compiles a `.cu` file. A runner with torch
    takes 0.3 GB, and more with a GPU."""
    device_memory_bytes: int = Field(default=16 << 30, ge=1 << 26)
    """Device memory that the submission allocates, beyond the memory that the judge lends. The
    least is a kernel's module and the 32 MiB that cuBLAS works in."""
    scratch_bytes: int = Field(default=1 << 30, ge=1 << 24)
    """Files, with those that compilers write."""
    output_bytes: int = Field(default=64 << 20, ge=1 << 12)
    """stdout and stderr together; an import may warn."""
    pids: int = Field(default=1024, ge=64)
    """Processes and threads together; torch starts a thread per CPU."""


class Spec(_Strict):
    """The content of `problem.yaml`."""

    format: Literal[1]
    """Version of this format."""
    title: Annotated[str, _ONE_LINE, Field(max_length=120)]
    """Heading of the problem's pages."""
    summary: Annotated[str, _ONE_LINE, Field(max_length=300)]
    """What to compute, in one sentence, for lists of problems."""
    topic: Topic | None = None
    """The group in which the problem is listed."""
    difficulty: int | None = Field(default=None, ge=1, le=5)
    """Effort to come near the roofline: 1 is a first kernel, 5 takes an expert days."""
    limited_by: LimitedBy | None = None
    """What limits a good kernel at the benchmarks' sizes: bandwidth, arithmetic, or launches."""
    entry: Name
    """The function that a submission defines, and the symbol in a `.cu` file."""
    args: list[Argument] = Field(min_length=1)
    nested: dict[Name, Any] = Field(default_factory=dict)
    """Parameters of a Python entry that are made of several arguments: name → a tree of lists,
    which become tuples, and mappings, whose leaves are names of arguments. A parameter has the
    place of its first argument. A `.cu` entry gets the arguments one by one."""
    cuda_dtypes: list[str] = Field(default_factory=list)
    """Dtypes for which a `.cu` file must define a symbol, if the arguments' dtype is a case
    parameter. The first has the plain symbol, the others the symbol followed by ``_<dtype>``."""
    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    """By dtype of the output. Integers and booleans must be exact."""
    accumulate: Accumulate | None = None
    """Without it, the error budget follows from eager PyTorch's error alone."""
    cost: Cost | None = None
    """Without it, reports have no throughput and no share of the roofline, and no time is too short
    to be true."""
    limits: Limits = Limits()
    """What a submission may use, where the defaults do not fit."""
    gpu: GpuType | None = None
    """Default GPU type on a server, as words of the GPU's name: ``H100`` or ``A100 80GB``. None
    allows any worker."""
    tests: list[Case] = Field(min_length=1)
    """Cases that are checked and not timed."""
    benchmarks: list[Case] = Field(min_length=1)
    """Cases that are timed, with every timed output checked. The score is the geometric mean of
    those for a GPU."""
    variants: dict[str, list[Any]] = Field(default_factory=dict)
    """Other values of benchmark parameters, such as other distributions; shapes, dtypes and scalars
    must not change. One untimed round, at a secret position, has one set with inputs of each (or
    several rounds, if one has fewer sets), to find code that is correct only for usual inputs."""
    domain: list[dict[str, Annotated[ParameterDomain, BeforeValidator(_as_choices)]]] = Field(
        default_factory=list
    )
    """The values that the parameters of a case may have together; several entries where these
    depend on each other. Every grading also tests cases drawn from it by its secret seed, so that
    code which is right only for the listed shapes fails."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a Python entry in order: name → the name of its argument, or a tree of
        such names as in `nested`."""
        owners = {leaf: name for name, tree in self.nested.items() for leaf in leaves(tree)}
        names = dict.fromkeys(owners.get(a.name, a.name) for a in self.args)
        return {name: self.nested.get(name, name) for name in names}


def leaves(tree: Any) -> list[Any]:
    """What a tree of lists and mappings has at its ends, in order."""
    if isinstance(tree, list):
        return [leaf for part in tree for leaf in leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    return [tree]
