"""The spec, in our format, of a problem of another set: what differs between its cases becomes a
parameter of the case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grader.arena.layout import dense_strides
from grader.problem.imported import CaseForm, CaseHead, SetSource, TensorForm
from grader.problem.load import spec_from
from grader.problem.reserved_names import C_GLOBALS, C_WORDS
from grader.problem.spec import DTYPES, FLOATING_DTYPES, Spec
from grader.problem.validation import RESERVED_PARAMS

ENTRIES = {
    "leetgpu": "solve",
    "kernelbot": "custom_kernel",
    "kernelbench": "forward",
    "fib": "run",
    "sol": "run",
    "tensara": "solution",
}
"""Set → the function of a submission, which in KernelBench may also be the class `ModelNew`."""

UNBOUNDED = 1e300
"""Tolerance where the set's own check judges each element."""

LIMITS = {"memory_bytes": 12 << 30, "device_memory_bytes": 40 << 30}
"""Those of every submission to a problem of another set, where not the usual ones."""


@dataclass(frozen=True)
class DescribedCase:
    """A case with what its values are made of."""

    head: CaseHead
    form: CaseForm


class _Parameters:
    """Names for what differs between cases: values that always go together have one name."""

    def __init__(self, cases: Sequence[DescribedCase]) -> None:
        self._cases = cases
        self._names: dict[tuple[object, ...], str] = {}
        first = cases[0].head.params
        for name in first:
            column = tuple(case.head.params.get(name) for case in cases)
            if _is_parameter(name, column) and len(set(column)) > 1:
                self._names.setdefault(column, name)

    def formula(self, column: tuple[object, ...], name: str) -> str:
        """The value that all cases have, or the name of the parameter that holds it."""
        if len(set(column)) == 1:
            return str(column[0])
        if column not in self._names:
            taken = set(self._names.values())
            self._names[column] = name if name not in taken else f"{name}_{len(taken)}"
        return self._names[column]

    def of(self, number: int) -> dict[str, Any]:
        """The parameters of a case."""
        return {name: column[number] for column, name in self._names.items()}


def _is_parameter(name: str, column: tuple[object, ...]) -> bool:
    return (
        re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) is not None
        and name not in {*RESERVED_PARAMS, *C_WORDS, *C_GLOBALS, "seed", "dtype"}
        and all(isinstance(value, int | str) for value in column)
    )


def build_spec(
    source: SetSource, cases: Sequence[DescribedCase], bounds: dict[str, dict[str, float]]
) -> Spec:
    """The spec of a problem. `bounds` are those of the relative L2 error, by case and output; what
    has none has no float64 gate. Raises `ProblemError` where our format cannot express it."""
    known = _Parameters(cases)
    args, dtypes = [], set[str]()
    for position, name in enumerate(argument_names(cases[0].form)):
        args.append(_argument(cases, position, name, known, source.optional_outputs))
        dtypes |= {form.dtype for form in _forms_at(cases, position)}
    data: dict[str, Any] = {
        "format": 1,
        "title": source.title[:120],
        "summary": f"{source.title} of {source.set_title}"[:300],
        "entry": ENTRIES[source.set],
        "args": args,
        "tolerances": {d: _tolerance(UNBOUNDED) for d in FLOATING_DTYPES if d in dtypes},
        "limits": LIMITS,
        "tests": [],
        "benchmarks": [],
    }
    if any(argument["dtype"] not in DTYPES for argument in args if "shape" in argument):
        data["cuda_dtypes"] = [d for d in DTYPES if d in dtypes]
    for number, case in enumerate(cases):
        entry: dict[str, Any] = {"name": case.head.name, "params": known.of(number)}
        found = bounds.get(case.head.name, {})
        if found:
            entry["tolerances"] = {name: _tolerance(bound) for name, bound in found.items()}
        data[f"{case.head.kind}s"].append(entry)
    return spec_from(data)


def argument_names(form: CaseForm) -> list[str]:
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


def _argument(
    cases: Sequence[DescribedCase],
    position: int,
    name: str,
    known: _Parameters,
    optional: Sequence[str],
) -> dict[str, Any]:
    first = cases[0].form
    value = first.values[position]
    if not isinstance(value.form, TensorForm):
        dtype = {bool: "bool", int: "int64", float: "fp64"}[type(value.form.scalar)]
        return {"name": name, "kind": "scalar", "dtype": dtype}
    forms = _forms_at(cases, position)
    ranks = {len(form.shape) or 1 for form in forms}
    rank = ranks.pop() if len(ranks) == 1 else 1
    shapes = zip(*(form.lent_shape(rank) for form in forms), strict=True)
    argument: dict[str, Any] = {
        "name": name,
        "role": value.role,
        "dtype": known.formula(tuple(form.dtype for form in forms), "dtype"),
        "shape": [known.formula(sizes, f"{name}_{axis}") for axis, sizes in enumerate(shapes)],
    }
    if value.role == "in":
        argument["contiguous"] = all(map(_is_contiguous, forms))
        # Another set does not say what its inputs decide: maybe where a kernel stores.
        argument["structured"] = True
    if any(case.form.values[position].scratch for case in cases):
        argument["scratch"] = True
    if value.weight:
        argument["weight"] = True
    if value.role == "out" and not (first.unique and _is_exact(cases, forms)):
        argument["unique"] = False
    if value.role == "out" and value.name in optional:
        argument["optional"] = True
    return argument


def _is_exact(cases: Sequence[DescribedCase], forms: Sequence[TensorForm]) -> bool:
    """Whether no rounding changes an output by more than rounding: integers that follow from
    floating-point inputs, such as indices of the largest sums, may be others."""
    inputs = (value.form for case in cases for value in case.form.values if value.role == "in")
    given = {form.dtype for form in inputs if isinstance(form, TensorForm)}
    return all(form.dtype in FLOATING_DTYPES for form in forms) or not given & {*FLOATING_DTYPES}


def _tolerance(rel_l2: float) -> dict[str, float]:
    return {"atol": UNBOUNDED, "rtol": 0.0, "rel_l2": rel_l2, "budget": UNBOUNDED}


def _forms_at(cases: Sequence[DescribedCase], position: int) -> list[TensorForm]:
    forms = (case.form.values[position].form for case in cases)
    return [form for form in forms if isinstance(form, TensorForm)]


def _is_contiguous(form: TensorForm) -> bool:
    triples = zip(form.strides, dense_strides(form.shape), form.shape, strict=True)
    return all(stride == dense for stride, dense, size in triples if size > 1)
