"""Makes a `Problem` of a problem of another set, as its own code, in a sandbox, describes it.

The set's own check always decides. Ours is added where the reference computes in float64: it bounds
the relative L2 error of each output and of its worst slice, which stops what a generous elementwise
tolerance lets pass, such as an output that is too large by a factor.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace

import torch

from grader.judge.correctness.check import check
from grader.judge.gpu.lock import gpu_lock
from grader.judge.memory.argument_sets import item_bytes, layout_of
from grader.judge.memory.shared_block import block_bytes
from grader.judge.problem_code import Values, seed_for
from grader.judge.set_code import SetCode
from grader.judge.set_host import SetHost, SetMemoryError, SetProblemError, open_host
from grader.judge.set_spec import UNBOUNDED, DescribedCase, build_spec
from grader.problem import Problem
from grader.problem.imported import CaseForm, ImportedProblem, SetSource
from grader.problem.spec import FLOATING_DTYPES, Case, ProblemError, Tolerance
from grader.sandbox.base import Device, Sandbox
from grader.wire import REQUEST_BYTES

REL_L2 = {
    "fp64": 1e-7,
    "fp32": 1e-3,
    "fp16": 1e-2,
    "bf16": 2e-2,
    "fp8_e4m3": 4e-2,
    "fp8_e5m2": 8e-2,
}
"""Least bound of the relative L2 error by dtype: about ten roundings, and for float32 the products
of TF32, which the set's own tolerance then judges."""
OWN_ERROR = 4.0
"""The bound is at least this multiple of the reference's own error at its own dtype."""
SPARE_BYTES = 2048
"""Left in a request for what is not of the set."""
BESIDES_BYTES = 8 << 30
"""Device memory that a grading takes besides its case's tensors: the contexts of four processes,
and what is computed of pieces of tensors."""
MOST_REL_L2 = 0.04
"""With a larger bound, an output that is 5 % too large would pass, so the gate is coarse:"""
COARSE_REL_L2 = 0.5
"""it then only stops what is wrong as a whole, such as a slice that was left out. With a larger
bound than that, there is no gate."""


def import_problem(source: SetSource, sandbox: Sandbox, device: Device) -> Problem:
    """The problem as its set's code describes it on `device`. Others that time nothing may use the
    GPU meanwhile.

    Raises `ProblemError` when it cannot be judged, with the reason.
    """
    with gpu_lock(device, shared=True):
        return _imported(source, sandbox, device)


def on_device(problem: Problem, sandbox: Sandbox, device: Device) -> Problem:
    """The problem as a grading on `device` needs it: one of another set that was described on the
    other device is imported again, as it may have other cases and bounds here.

    Raises `ProblemError` when it cannot be judged on this device.
    """
    imported = problem.imported
    if imported is None or imported.device == device:
        return problem
    return replace(import_problem(imported.source, sandbox, device), selected=problem.selected)


def _imported(source: SetSource, sandbox: Sandbox, device: Device) -> Problem:
    host = open_host(source, sandbox, device)
    cases, left_out = _described(host, source)
    spec = build_spec(source, cases, {})
    numbers = {head.name: number for number, head in enumerate(host.heads)}
    forms = {case.head.name: case.form for case in cases}
    plain = ImportedProblem(source, numbers, forms, frozenset(), (), device)
    problem = Problem.of_set(spec, plain)
    _expect_requests_to_fit(problem)
    gate = _gate(problem, host, device)
    code = SetCode(problem, device, host)
    public = sum(map(code.has_public_data, spec.tests + spec.benchmarks))
    limits = [*source.notes, *left_out, *_limits(len(cases), public, gate)]
    imported = ImportedProblem(
        source, numbers, forms, frozenset(gate.bounds), tuple(limits), device
    )
    return Problem.of_set(build_spec(source, cases, gate.bounds), imported)


def _described(host: SetHost, source: SetSource) -> tuple[list[DescribedCase], list[str]]:
    """The cases whose arguments are like the first one's, or which have more or fewer of them, and
    a line for each other."""
    found: list[DescribedCase] = []
    most: CaseForm | None = None
    why_not: dict[str, list[str]] = {}
    for number, head in enumerate(host.heads):
        try:
            form = host.describe(number)
        except SetProblemError as error:
            if not host.is_running:
                raise
            why_not.setdefault(_reason(error, source), []).append(head.name)
            continue
        if most is None or (form.aligned(most) is None and most.aligned(form) is not None):
            most = form
        if form.aligned(most) is None:
            why_not.setdefault("it has other arguments than the rest", []).append(head.name)
        else:
            found.append(DescribedCase(head, form))
    left_out = [_left_out(names, why) for why, names in why_not.items()]
    kinds = {case.head.kind for case in found}
    if "test" not in kinds:
        why = left_out[0] if left_out else "it has no test"
        raise SetProblemError(f"{source.folder}: {why}")
    if "benchmark" not in kinds:
        why = left_out[-1] if left_out else "it has no benchmark"
        raise SetProblemError(f"{source.folder}: {why}")
    assert most is not None
    alike = [(case.head, case.form.aligned(most)) for case in found]
    return [DescribedCase(head, form) for head, form in alike if form is not None], left_out


def _expect_requests_to_fit(problem: Problem) -> None:
    """Raise `ProblemError` if a request to the runner could not hold what it is told."""
    imported, args = problem.imported, problem.spec.args
    assert imported is not None
    loaded = {"names": [a.name for a in args], "roles": [a.role for a in args]}
    loaded |= imported.convention()
    for request in (loaded, *map(imported.placement, imported.forms)):
        if len(json.dumps(request)) > REQUEST_BYTES - SPARE_BYTES:
            raise SetProblemError(
                f"{problem.folder}: its {len(args)} arguments are more than a request of "
                f"{REQUEST_BYTES} bytes describes"
            )


def _left_out(names: list[str], why: str) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    more = f" and {len(names) - 3} more are" if names[3:] else " are" if names[1:] else " is"
    return f"{'cases' if names[1:] else 'case'} {shown}{more} left out: {why}"


def _reason(error: ProblemError, source: SetSource) -> str:
    return str(error).removeprefix(f"{source.folder}: ")


@dataclass
class _Gate:
    """The float64 gate of a problem's cases, with a reason for each case where it is less."""

    bounds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of the relative L2 error, by case and output."""
    why_none: list[str] = field(default_factory=list)
    why_coarse: list[str] = field(default_factory=list)
    why_not_of: dict[str, list[str]] = field(default_factory=dict)
    """By output: why the gate of a case leaves it out."""


def _gate(problem: Problem, host: SetHost, device: Device) -> _Gate:
    gate = _Gate()
    assert problem.imported is not None
    listed = [*problem.cases("test", device), *problem.cases("benchmark", device)]
    if not any(a.unique for a in problem.spec.args if a.role != "in"):
        return _Gate(why_none=["several answers are right"] * len(listed))
    in_float64 = replace(problem.imported, wide=frozenset(case.name for case in listed))
    code = SetCode(replace(problem, imported=in_float64), device, host)
    for case in listed:
        try:
            own_errors = _own_errors(code, host, case)
        except SetProblemError as error:
            if not host.is_running:
                raise
            gate.why_none.append(_reason(error, problem.imported.source))
        else:
            _add(gate, code, case, own_errors)
    return gate


def _add(gate: _Gate, code: SetCode, case: Case, own_errors: dict[str, float]) -> None:
    """Give a case's outputs their bounds, or say why they have none or a coarse one."""
    bounds: dict[str, float] = {}
    why_coarse: list[str] = []
    why_not: dict[str, str] = {}
    for argument in code.written:
        name, dtype = argument.name, code.problem.dtype(argument, case)
        if (own_error := own_errors.get(name)) is None:
            continue
        bound = max(REL_L2[dtype], OWN_ERROR * own_error)
        why = f"its own error in {dtype} is {own_error:.1e} of the result in float64"
        if bound > COARSE_REL_L2:
            why_not[name] = why
        elif bound > MOST_REL_L2:
            bounds[name] = COARSE_REL_L2
            why_coarse.append(why)
        else:
            bounds[name] = bound
    if why_not and not bounds:
        gate.why_none.append(next(iter(why_not.values())))
        return
    gate.bounds[case.name] = bounds
    gate.why_coarse += why_coarse[:1]
    for name, why in why_not.items():
        gate.why_not_of.setdefault(name, []).append(why)


def _own_errors(code: SetCode, host: SetHost, case: Case) -> dict[str, float]:
    """The reference's own error by output, where it is a floating-point one. Raises
    `SetProblemError` where the case has no float64 gate.

    That is decided here and never in a grading, where a submission could leave too little memory.
    """
    inputs = code.inputs(case, seed_for(0, case.name))
    try:
        truth = code.run_reference(case, inputs)
    except (SetMemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise _no_gate(host, "its answer in float64 needs more memory than there is") from None
    needed_bytes = _needed_bytes(code.problem, case, inputs, host.peak_bytes)
    if needed_bytes > _device_bytes(code.device):
        raise _no_gate(host, f"its answer in float64 needs about {needed_bytes / 1e9:.0f} GB")
    return _compared(code, host, case, code.run_eager(case, inputs), truth, inputs)


def _no_gate(host: SetHost, why: str) -> SetProblemError:
    return SetProblemError(f"{host.source.folder}: {why}")


def _needed_bytes(problem: Problem, case: Case, inputs: Values, peak_bytes: int) -> int:
    """About how much device memory a grading of a case takes with the float64 gate, of whose
    reference the sandbox has taken `peak_bytes`."""
    layout = layout_of(problem, case, inputs)
    input_bytes, output_bytes = layout.writable_at, layout.nbytes - layout.writable_at
    written = [a for a in problem.spec.args if a.role != "in"]
    wide_bytes = sum(8 * math.prod(problem.shape(argument, case)) for argument in written)
    in_reference = input_bytes + peak_bytes
    plain_bytes = max(output_bytes, peak_bytes // 2 - input_bytes)
    in_own_check = wide_bytes + layout.nbytes + plain_bytes
    is_timed = case.name in {one.name for one in problem.spec.benchmarks}
    kept_bytes = output_bytes if is_timed else 0  # by the runner, for the next round
    block = block_bytes(layout, item_bytes(problem, case))
    return BESIDES_BYTES + block + kept_bytes + max(in_reference, in_own_check)


def _device_bytes(device: str) -> float:
    """Memory of the device; unlimited on a CPU, which is given small cases."""
    return torch.cuda.get_device_properties().total_memory if device == "cuda" else math.inf


def _compared(
    code: SetCode, host: SetHost, case: Case, eager: Values, truth: Values, inputs: Values
) -> dict[str, float]:
    """The errors as `check` measures them."""
    errors: dict[str, float] = {}
    anything = Tolerance(atol=UNBOUNDED, rtol=0, rel_l2=UNBOUNDED, budget=UNBOUNDED)
    for argument in code.written:
        if not argument.unique:
            continue
        dtype = code.problem.dtype(argument, case)
        name = argument.name
        initial = inputs[name] if argument.role == "inout" else None
        result = check(name, eager[name], truth[name], None, anything, initial)
        if result.failure is not None:
            raise _no_gate(host, f"in {dtype}, '{name}' is unlike the result in float64")
        if dtype in FLOATING_DTYPES:
            errors[name] = max(result.rel_l2 or 0.0, result.worst_slice_rel_l2 or 0.0)
    return errors


def _limits(count: int, public: int, gate: _Gate) -> list[str]:
    """What is judged less strictly, in lines."""
    lines = []
    if gate.why_none:
        why = gate.why_none
        lines.append(f"no float64 gate in {len(why)} of {count} cases: {why[0]}")
    for name, why in gate.why_not_of.items():
        lines.append(f"no float64 gate of '{name}' in {len(why)} of {count} cases: {why[0]}")
    if gate.why_coarse:
        why = gate.why_coarse
        lines.append(f"a coarse float64 gate in {len(why)} of {count} cases: {why[0]}")
    if public:
        lines.append(f"{public} of {count} cases have public data that no seed changes")
    return lines
