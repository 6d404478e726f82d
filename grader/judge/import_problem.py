"""Makes a `Problem` of a problem of another set, as its own code, in a sandbox, describes it.

The set's own check always decides. Ours is added where the reference computes in float64: it bounds
the relative L2 error of each output and of its worst slice, which stops what a generous elementwise
tolerance lets pass, such as an output that is too large by a factor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

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
    bounds, why_not, why_coarse = _bounds(problem, host, device)
    code = SetCode(problem, device, host)
    public = sum(map(code.has_public_data, spec.tests + spec.benchmarks))
    limits = [*source.notes, *left_out, *_limits(len(cases), public, why_not, why_coarse)]
    imported = ImportedProblem(source, numbers, forms, frozenset(bounds), tuple(limits), device)
    return Problem.of_set(build_spec(source, cases, bounds), imported)


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


def _bounds(
    problem: Problem, host: SetHost, device: Device
) -> tuple[dict[str, dict[str, float]], list[str], list[str]]:
    """The bounds of the float64 gate by case and dtype; why cases have none, and why coarse
    ones."""
    found: dict[str, dict[str, float]] = {}
    why_not: list[str] = []
    why_coarse: list[str] = []
    assert problem.imported is not None
    listed = [*problem.cases("test", device), *problem.cases("benchmark", device)]
    if not any(a.unique for a in problem.spec.args if a.role != "in"):
        return {}, ["several answers are right"] * len(listed), []
    in_float64 = replace(problem.imported, wide=frozenset(case.name for case in listed))
    code = SetCode(replace(problem, imported=in_float64), device, host)
    for case in listed:
        try:
            bounds = _bounds_of(code, host, case)
            if (why := _too_large(bounds, MOST_REL_L2)) is not None:
                why_coarse.append(why)
                bounds = dict.fromkeys(bounds, COARSE_REL_L2)
            found[case.name] = bounds
        except SetProblemError as error:
            if not host.is_running:
                raise
            why_not.append(_reason(error, problem.imported.source))
    return found, why_not, why_coarse


def _bounds_of(code: SetCode, host: SetHost, case: Case) -> dict[str, float]:
    """The bounds of a case's float64 gate by dtype. Raises `SetProblemError` where it has none.

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
    bounds = _own_error(code, case, code.run_eager(case, inputs), truth, inputs)
    if (why := _too_large(bounds, COARSE_REL_L2)) is not None:
        raise _no_gate(host, why)
    return bounds


def _too_large(bounds: dict[str, float], most: float) -> str | None:
    """Why a bound is above `most`; None if none is."""
    for dtype, bound in bounds.items():
        if bound > most:
            return f"its own error in {dtype} is {bound / OWN_ERROR:.1e} of the result in float64"
    return None


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


def _own_error(
    code: SetCode, case: Case, eager: Values, truth: Values, inputs: Values
) -> dict[str, float]:
    """The bound by dtype from the reference's own error, as `check` measures it; infinite where it
    is nothing like the reference in float64."""
    bounds: dict[str, float] = {}
    anything = Tolerance(atol=UNBOUNDED, rtol=0, rel_l2=UNBOUNDED, budget=UNBOUNDED)
    for argument in code.written:
        if not argument.unique:
            continue
        dtype = code.problem.dtype(argument, case)
        name = argument.name
        initial = inputs[name] if argument.role == "inout" else None
        result = check(name, eager[name], truth[name], None, anything, initial)
        if result.failure is not None:
            bounds[dtype] = math.inf
        elif dtype in FLOATING_DTYPES:
            own = max(result.rel_l2 or 0.0, result.worst_slice_rel_l2 or 0.0)
            bounds[dtype] = max(bounds.get(dtype, 0.0), REL_L2[dtype], OWN_ERROR * own)
    return bounds


def _limits(
    count: int, public: int, why_not: Sequence[str], why_coarse: Sequence[str]
) -> list[str]:
    """What is judged less strictly, in lines."""
    lines = []
    if why_not:
        lines.append(f"no float64 gate in {len(why_not)} of {count} cases: {why_not[0]}")
    if why_coarse:
        gate = f"a coarse float64 gate in {len(why_coarse)} of {count} cases"
        lines.append(f"{gate}: {why_coarse[0]}")
    if public:
        lines.append(f"{public} of {count} cases have public data that no seed changes")
    return lines
