"""Makes a `Problem` of a problem of another set, as its own code, in a sandbox, describes it.

The set's own check always decides. Ours is added where the reference computes in float64: it bounds
the relative L2 error of each output and of its worst slice, which stops what a generous elementwise
tolerance lets pass, such as an output that is too large by a factor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grader.judge.correctness.check import check
from grader.judge.problem_code import Values, seed_for
from grader.judge.set_code import SetCode
from grader.judge.set_host import SetHost, SetProblemError, open_host
from grader.problem import Problem
from grader.problem.imported import CaseForm, CaseHead, ImportedProblem, SetSource, TensorForm
from grader.problem.judged_version import JudgedVersion
from grader.problem.load import spec_from
from grader.problem.reserved_names import C_GLOBALS, C_WORDS
from grader.problem.spec import FLOATING_DTYPES, Case, ProblemError, Spec, Tolerance
from grader.sandbox.base import Device, Sandbox

ENTRIES = {
    "leetgpu": "solve",
    "kernelbot": "custom_kernel",
    "kernelbench": "forward",
    "fib": "run",
    "sol": "run",
}
"""Set → the function of a submission, which in KernelBench may also be the class `ModelNew`."""

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
MOST_REL_L2 = 0.04
"""With a larger bound, an output that is 5 % too large would pass, so the gate is left out."""
UNBOUNDED = 1e300
"""Tolerance where the set's own check judges each element."""


@dataclass(frozen=True)
class _Described:
    head: CaseHead
    form: CaseForm


def import_problem(source: SetSource, sandbox: Sandbox, device: Device) -> Problem:
    """The problem as its set's code describes it on `device`.

    Raises `ProblemError` when it cannot be judged, with the reason.
    """
    host = open_host(source, sandbox, device)
    cases, left_out = _described(host, source)
    names = _names(cases[0].form)
    spec = _spec(source, cases, names, {})
    numbers = {head.name: number for number, head in enumerate(host.heads)}
    forms = {case.head.name: case.form for case in cases}
    plain = ImportedProblem(source, numbers, forms, frozenset(), ())
    problem = _problem(source, spec, plain)
    bounds, why_not = _bounds(problem, host, device)
    code = SetCode(problem, device, host)
    public = sum(map(code.has_public_data, spec.tests + spec.benchmarks))
    limits = [*source.notes, *left_out, *_limits(len(cases), public, why_not)]
    imported = ImportedProblem(source, numbers, forms, frozenset(bounds), tuple(limits))
    return _problem(source, _spec(source, cases, names, bounds), imported)


def _described(host: SetHost, source: SetSource) -> tuple[list[_Described], list[str]]:
    """The cases whose arguments are like the first one's, and a line for each other."""
    found: list[_Described] = []
    left_out: list[str] = []
    for number, head in enumerate(host.heads):
        try:
            form = host.describe(number)
        except SetProblemError as error:
            if not host.is_running:
                raise
            left_out.append(f"case '{head.name}' is left out: {_reason(error, source)}")
            continue
        if found and _kinds(form) != _kinds(found[0].form):
            left_out.append(f"case '{head.name}' is left out: it has other arguments than the rest")
        else:
            found.append(_Described(head, form))
    kinds = {case.head.kind for case in found}
    if "test" not in kinds:
        why = left_out[0] if left_out else "it has no test"
        raise SetProblemError(f"{source.folder}: {why}")
    if "benchmark" not in kinds:
        why = left_out[-1] if left_out else "it has no benchmark"
        raise SetProblemError(f"{source.folder}: {why}")
    return found, left_out


def _reason(error: ProblemError, source: SetSource) -> str:
    return str(error).removeprefix(f"{source.folder}: ")


def _kinds(form: CaseForm) -> list[object]:
    """What all cases of a problem have in common."""
    return [
        (v.name, v.role, v.weight, len(v.form.shape) if isinstance(v.form, TensorForm) else None)
        for v in form.values
    ]


def _names(form: CaseForm) -> list[str]:
    """A name for each value that our format allows."""
    found: list[str] = []
    for value in form.values:
        name = re.sub(r"[^a-z0-9_]", "_", value.name.lower()).lstrip("_0123456789")[:56] or "x"
        if name in C_WORDS or name in C_GLOBALS or not name.isidentifier():
            name = f"{name}_"
        base, count = name, 2
        while name in found or f"{name}_count" in found:
            name, count = f"{base}_{count}", count + 1
        found.append(name)
    return found


def _spec(
    source: SetSource,
    cases: Sequence[_Described],
    names: Sequence[str],
    bounds: dict[str, dict[str, float]],
) -> Spec:
    """The problem in our format. Sizes and dtypes of a case are parameters of it, named after the
    argument."""
    first = cases[0].form
    args: list[dict[str, Any]] = []
    for position, (name, value) in enumerate(zip(names, first.values, strict=True)):
        if not isinstance(value.form, TensorForm):
            kind = type(value.form.scalar)
            dtype = {bool: "bool", int: "int64", float: "fp64"}[kind]
            args.append({"name": name, "kind": "scalar", "dtype": dtype})
            continue
        argument: dict[str, Any] = {
            "name": name,
            "role": value.role,
            "dtype": _dtype_key(cases, position, name),
            "shape": [
                str(size) if size is not None else f"{name}_{axis}"
                for axis, size in enumerate(_common_sizes(cases, position))
            ],
        }
        if value.role == "in":
            argument["contiguous"] = all(map(_is_contiguous, _forms_at(cases, position)))
        if value.weight:
            argument["weight"] = True
        args.append(argument)
    dtypes = sorted(
        {f.dtype for i in range(len(names)) for f in _forms_at(cases, i)} & set(FLOATING_DTYPES)
    )
    data: dict[str, Any] = {
        "format": 1,
        "title": source.title[:120],
        "summary": f"{source.title} of {source.set_title}"[:300],
        "entry": ENTRIES[source.set],
        "args": args,
        "tolerances": {dtype: _tolerance(UNBOUNDED) for dtype in dtypes},
        "tests": [],
        "benchmarks": [],
        "limits": {"memory_bytes": 12 << 30, "device_memory_bytes": 40 << 30},
    }
    for case in cases:
        entry: dict[str, Any] = {"name": case.head.name, "params": _params(cases, case, names)}
        if case.head.name in bounds:
            known = bounds[case.head.name]
            entry["tolerances"] = {dtype: _tolerance(known[dtype]) for dtype in known}
        data[f"{case.head.kind}s"].append(entry)
    return spec_from(data)


def _tolerance(rel_l2: float) -> dict[str, float]:
    return {"atol": UNBOUNDED, "rtol": 0.0, "rel_l2": rel_l2, "budget": UNBOUNDED}


def _forms_at(cases: Sequence[_Described], position: int) -> list[TensorForm]:
    forms = (case.form.values[position].form for case in cases)
    return [form for form in forms if isinstance(form, TensorForm)]


def _common_sizes(cases: Sequence[_Described], position: int) -> list[int | None]:
    """The sizes of a tensor; None where they differ between cases. One without dimensions has one
    element."""
    shapes = [tuple(form.shape) or (1,) for form in _forms_at(cases, position)]
    return [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]


def _dtype_key(cases: Sequence[_Described], position: int, name: str) -> str:
    dtypes = {form.dtype for form in _forms_at(cases, position)}
    return dtypes.pop() if len(dtypes) == 1 else f"{name}_dtype"


def _params(cases: Sequence[_Described], case: _Described, names: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for position, name in enumerate(names):
        form = case.form.values[position].form
        if not isinstance(form, TensorForm):
            continue
        if (
            _dtype_key(cases, position, name) not in FLOATING_DTYPES
            and len({f.dtype for f in _forms_at(cases, position)}) > 1
        ):
            params[f"{name}_dtype"] = form.dtype
        for axis, common in enumerate(_common_sizes(cases, position)):
            if common is None:
                params[f"{name}_{axis}"] = (form.shape or [1])[axis]
    return params


def _is_contiguous(form: TensorForm) -> bool:
    shape = form.shape
    dense = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return all(s == d for s, d, n in zip(form.strides, dense, shape, strict=True) if n > 1)


def _bounds(
    problem: Problem, host: SetHost, device: Device
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The bounds of the float64 gate by case and dtype, and why cases have none."""
    found: dict[str, dict[str, float]] = {}
    why_not: list[str] = []
    assert problem.imported is not None
    listed = [*problem.cases("test", device), *problem.cases("benchmark", device)]
    everything = frozenset(case.name for case in listed)
    wide_problem = _problem(
        problem.imported.source,
        problem.spec,
        ImportedProblem(
            problem.imported.source,
            problem.imported.numbers,
            problem.imported.forms,
            everything,
            (),
        ),
    )
    code = SetCode(wide_problem, device, host)
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


def _problem(source: SetSource, spec: Spec, imported: ImportedProblem) -> Problem:
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    judged = JudgedVersion(source.name, fields, {"set": source.digest()})
    statement = _statement(source, imported)
    return Problem(
        source.folder, source.name, spec, judged.digest, judged.digest, statement, judged,
        dict(source.files), imported=imported,
    )  # fmt: skip


def _statement(source: SetSource, imported: ImportedProblem) -> str:
    lines = [
        f"# {source.title}",
        "",
        f"A problem of [{source.set_title}]({source.link}), licence: {source.licence}. "
        f"It is run from {source.folder}, and nothing of it is copied.",
        "",
        "A submission is what that set's users write, or our own "
        f"`{ENTRIES[source.set]}(…, out)` with the arguments below.",
    ]
    lines += ["", *(f"- {line}" for line in imported.limits)] if imported.limits else []
    return "\n".join(lines) + "\n"
