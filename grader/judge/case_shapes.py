"""What the runner may know of a problem's cases: shapes, and which function of a `.cu` file to
call.

Shapes are no secret. With them the runner compiles a Triton submission's kernels for all cases side
by side, while the tests run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grader.arena import pack
from grader.judge.memory.argument_sets import arguments_of, layout_of
from grader.judge.problem_code import ProblemCode, seed_for
from grader.judge.record import Device
from grader.problem import Problem
from grader.problem.prototype import dimensions
from grader.problem.spec import Case, Spec


@dataclass(frozen=True)
class CaseShapes:
    """The distinct shapes of a problem's cases."""

    shapes: list[dict[str, Any]]
    """In the order to compile them."""
    index: dict[str, int]
    """Case name → its place in `shapes`."""
    test_bytes: int
    """Bytes that the largest test takes in a block."""


Shape = dict[str, Any]

_KNOWN: dict[tuple[str, Device, str], tuple[Shape, int]] = {}
"""The shape of a listed case, and its bytes in a block, by digest of the problem, device and
name."""


def case_shapes(
    problem: Problem,
    code: ProblemCode | None,
    device: Device,
    drawn: Sequence[Case] = (),
    with_tests: bool = True,
    with_benchmarks: bool = True,
) -> CaseShapes:
    """The shapes of all cases of a device, and of the `drawn` tests, which come after the listed
    ones; or of the tests alone, or the benchmarks. Those of listed cases are remembered for the
    next gradings of this process. `code` is only used for others."""
    tests, shapes = problem.cases("test", device), list[Shape]()
    if not with_tests:
        tests, drawn = [], ()
    index, test_bytes = {}, 0
    benchmarks = problem.cases("benchmark", device) if with_benchmarks else []
    for case in [*alternated(tests, problem.bytes), *drawn, *benchmarks]:
        key = (problem.digest, device, case.name)
        shape, nbytes = _KNOWN.get(key) or _shape(problem, code, case)
        if case not in drawn:
            _KNOWN[key] = shape, nbytes
        if shape not in shapes:
            shapes.append(shape)
        index[case.name] = shapes.index(shape)
        if case not in benchmarks:
            test_bytes = max(test_bytes, nbytes)
    return CaseShapes(shapes, index, test_bytes)


def shapes_are_known(problem: Problem, device: Device) -> bool:
    """Whether `case_shapes` of the listed cases needs no code of the problem."""
    cases = problem.cases("test", device) + problem.cases("benchmark", device)
    return all((problem.digest, device, case.name) in _KNOWN for case in cases)


def _shape(problem: Problem, code: ProblemCode | None, case: Case) -> tuple[Shape, int]:
    assert code is not None
    template = code.inputs(case, seed_for(0, case.name))
    values = [value for _, value in arguments_of(problem, case, template)]
    shape = {"values": list(map(pack, values)), **entry_of(problem, case)}
    return shape, layout_of(problem, case, template).nbytes


def entry_of(problem: Problem, case: Case) -> dict[str, Any]:
    """The dimensions and the symbol that a `.cu` entry gets for a case; for a problem of another
    set, also how its arguments lie in the set's own data."""
    spec = problem.spec
    dims = [int(case.params[name]) for name in dimensions(spec)]
    entry = {"dims": dims, "symbol": _symbol(spec, case)}
    if problem.imported is not None:
        entry |= problem.imported.placement(case.name)
    return entry


def _symbol(spec: Spec, case: Case) -> str:
    """The function of a `.cu` file for this case's dtype."""
    variable = next((a.dtype for a in spec.args if a.dtype in case.params), None)
    if variable is None or not spec.cuda_dtypes:
        return spec.entry
    dtype = case.params[variable]
    return spec.entry if dtype == spec.cuda_dtypes[0] else f"{spec.entry}_{dtype}"


def alternated(cases: list[Case], weight: Callable[[Case], float]) -> list[Case]:
    """The first case, the heaviest, the second, the second heaviest, and so on, each once. The
    first tests are compiled first, and heavy cases, which often have several kernels, not last."""
    heavy = sorted(cases, key=weight, reverse=True)
    turns = [case for pair in zip(cases, heavy, strict=True) for case in pair]
    return list({case.name: case for case in turns}.values())
