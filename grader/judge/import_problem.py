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

from grader.judge.correctness.check import check
from grader.judge.gpu.lock import gpu_lock
from grader.judge.problem_code import Values, seed_for
from grader.judge.set_code import SetCode
from grader.judge.set_host import SetHost, SetProblemError, open_host
from grader.judge.set_spec import UNBOUNDED, DescribedCase, build_spec
from grader.problem import Problem
from grader.problem.imported import CaseForm, ImportedProblem, SetSource, TensorForm
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
MOST_REL_L2 = 0.04
"""With a larger bound, an output that is 5 % too large would pass, so the gate is left out."""


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
    bounds, why_not = _bounds(problem, host, device)
    code = SetCode(problem, device, host)
    public = sum(map(code.has_public_data, spec.tests + spec.benchmarks))
    limits = [*source.notes, *left_out, *_limits(len(cases), public, why_not)]
    imported = ImportedProblem(source, numbers, forms, frozenset(bounds), tuple(limits), device)
    return Problem.of_set(build_spec(source, cases, bounds), imported)


def _described(host: SetHost, source: SetSource) -> tuple[list[DescribedCase], list[str]]:
    """The cases whose arguments are like the first one's, and a line for each other."""
    found: list[DescribedCase] = []
    why_not: dict[str, list[str]] = {}
    for number, head in enumerate(host.heads):
        try:
            form = host.describe(number)
        except SetProblemError as error:
            if not host.is_running:
                raise
            why_not.setdefault(_reason(error, source), []).append(head.name)
            continue
        if found and _kinds(form) != _kinds(found[0].form):
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
    return found, left_out


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


def _kinds(form: CaseForm) -> list[object]:
    """What all cases of a problem have in common."""
    return [(v.name, v.role, v.weight, isinstance(v.form, TensorForm)) for v in form.values]


def _bounds(
    problem: Problem, host: SetHost, device: Device
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The bounds of the float64 gate by case and dtype, and why cases have none."""
    found: dict[str, dict[str, float]] = {}
    why_not: list[str] = []
    assert problem.imported is not None
    listed = [*problem.cases("test", device), *problem.cases("benchmark", device)]
    if not all(a.unique for a in problem.spec.args):
        return {}, ["several answers are right"] * len(listed)
    in_float64 = replace(problem.imported, wide=frozenset(case.name for case in listed))
    code = SetCode(replace(problem, imported=in_float64), device, host)
    for case in listed:
        inputs = code.inputs(case, seed_for(0, case.name))
        try:
            truth = code.run_reference(case, inputs)
        except SetProblemError as error:
            if not host.is_running:
                raise
            why_not.append(_reason(error, problem.imported.source))
            continue
        eager = code.run_eager(case, inputs)
        bounds = _own_error(code, case, eager, truth)
        if too_large := [name for name, bound in bounds.items() if bound > MOST_REL_L2]:
            why_not.append(
                f"its own error in {too_large[0]} is {bounds[too_large[0]] / OWN_ERROR:.1e} of the "
                "result in float64"
            )
        else:
            found[case.name] = bounds
    return found, why_not


def _own_error(code: SetCode, case: Case, eager: Values, truth: Values) -> dict[str, float]:
    """The bound by dtype from the reference's own error; infinite where it is nothing like the
    reference in float64."""
    bounds: dict[str, float] = {}
    anything = Tolerance(atol=UNBOUNDED, rtol=0, rel_l2=UNBOUNDED, budget=UNBOUNDED)
    for argument in code.written:
        dtype = code.problem.dtype(argument, case)
        result = check(argument.name, eager[argument.name], truth[argument.name], None, anything)
        if result.failure is not None:
            bounds[dtype] = math.inf
        elif dtype in FLOATING_DTYPES:
            own = max(result.rel_l2 or 0.0, result.worst_slice_rel_l2 or 0.0)
            bounds[dtype] = max(bounds.get(dtype, 0.0), REL_L2[dtype], OWN_ERROR * own)
    return bounds


def _limits(count: int, public: int, why_not: Sequence[str]) -> list[str]:
    """What is judged less strictly, in lines."""
    lines = []
    if why_not:
        lines.append(f"no float64 gate in {len(why_not)} of {count} cases: {why_not[0]}")
    if public:
        lines.append(f"{public} of {count} cases have public data that no seed changes")
    return lines
