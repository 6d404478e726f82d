"""Test cases drawn from a problem's domain. No submission knows their shapes beforehand.

Drawn cases are no larger than the listed tests for the same device. No parameter exceeds its
largest value in these tests, and no case has more bytes or operations than they have on average.
The bound keeps drawn tests as fast as listed ones, also in Triton's interpreter on a CPU.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grader.problem import validation
from grader.problem.formula import Formula, FormulaError
from grader.problem.spec import Case, ParameterDomain, ProblemError, Spec

DRAWN_CASES = {"cuda": 8, "cpu": 3}
"""Number of cases that a grading draws, by device. A CPU gets fewer since Triton's interpreter is
slow."""
NAME = "drawn_"
"""Prefix of the names of drawn cases."""
MAX_TRIES = 2000
"""Limit of draws for one set of cases. Draws that are too large or repeat a case count too."""
ENDS_SHARE = 0.15
ODD_SHARE = 0.75
"""Probability that a value is an end of its range; and that an even value is made odd."""


def draw_cases(spec: Spec, device: str, seed: int, count: int) -> list[Case]:
    """Draw `count` cases from the spec's domain; the same cases for the same seed.

    No two drawn cases have the same sizes, and none has the sizes of a listed case. The result is
    empty if the spec has no domain, or no tests for `device`. Raises `ProblemError` when fewer than
    `count` cases are found.
    """
    tests = [case for case in spec.tests if case.device in ("any", device)]
    if not spec.domain or not tests:
        return []
    rng = random.Random(seed)
    most_bytes = fmean(validation.moved_bytes(spec, case) for case in tests)
    most_flops = fmean(validation.operations(spec, case) for case in tests)
    sizes = _sizes(spec)
    largest = _largest(sizes, tests)
    seen = [_values(sizes, case) for case in [*spec.tests, *spec.benchmarks]]
    drawn: list[Case] = []
    for _ in range(MAX_TRIES):
        params = _draw(spec, largest, rng)
        if params is None:
            continue
        case = Case(name=f"{NAME}{len(drawn) + 1}", params=params)
        with validation.error_at("domain"):
            validation.check_case(spec, "domain", case)
        is_light = (
            validation.moved_bytes(spec, case) <= most_bytes
            and validation.operations(spec, case) <= most_flops
        )
        if is_light and _values(sizes, case) not in seen:
            seen.append(_values(sizes, case))
            drawn.append(case)
        if len(drawn) == count:
            return drawn
    place = {"cpu": "a CPU", "cuda": "a GPU"}[device]
    raise ProblemError(
        f"domain: only {len(drawn)} of {count} cases were found whose sizes no listed case has and "
        f"that are no larger than the tests on {place}; widen the domain, or add larger tests"
    )


def shown(case: Case) -> str:
    """Name and parameters, such as ``'drawn_2' (rows=7 cols=127 dtype=fp16)``. The parameters are
    shown since no list of the problem has them."""
    params = " ".join(f"{name}={value}" for name, value in case.params.items())
    return f"'{case.name}' ({params})"


def check(spec: Spec) -> None:
    """Raise `ProblemError` if the spec has a domain that is invalid, or that has too few cases for
    a grading on some device."""
    if not spec.domain:
        return
    for index, case in enumerate(spec.tests):
        if case.name.startswith(NAME):
            raise ProblemError(
                f"tests[{index}].name: begins with {NAME}, as the names of drawn cases do; choose "
                "another name"
            )
    for index, entry in enumerate(spec.domain):
        _check_entry(spec, f"domain[{index}]", entry)
    for index, case in enumerate(spec.tests):
        for name in _sizes(spec):
            if type(value := case.params.get(name, 1)) is not int:
                where = f"tests[{index}].params.{name}"
                raise ProblemError(f"{where}: is {value!r}; the domain has whole numbers")
    for device, count in DRAWN_CASES.items():
        draw_cases(spec, device, 0, count)


def _check_entry(spec: Spec, where: str, entry: dict[str, ParameterDomain]) -> None:
    declared: list[str] = []
    for name, values in entry.items():
        for value in values.choices or [1]:
            validation.check_params(where, Case(name="any", params={name: value}))
        _check_parameter(f"{where}.{name}", values, declared)
        declared.append(name)
    if all(values.choices is not None for values in entry.values()):
        raise ProblemError(f"{where}: no parameter has a max; give at least one a max")
    for name in spec.tests[0].params:
        if name not in entry and all(name in case.params for case in spec.tests):
            raise ProblemError(f"{where}.{name}: missing; every test has this parameter")


def _check_parameter(where: str, values: ParameterDomain, declared: Sequence[str]) -> None:
    """Raise `ProblemError` if a parameter has both choices and a range, or neither, or if a formula
    uses a parameter that is not in `declared`."""
    is_range = {"min", "max", "multiple_of"} & values.model_fields_set
    if values.choices is not None and is_range:
        raise ProblemError(f"{where}: has choices and {min(is_range)}; remove one")
    if values.choices is None and values.max is None:
        raise ProblemError(f"{where}.max: missing; a parameter has a max, or is a list of choices")
    for key, text in values.formulas().items():
        with validation.error_at(f"{where}.{key}"):
            for name in Formula.parse(text).names:
                if name not in declared:
                    raise FormulaError(f"{text!r} uses '{name}', which is not declared before it")


def _sizes(spec: Spec) -> list[str]:
    """Names of the parameters that are ranges. They determine a case's shapes."""
    names = [n for entry in spec.domain for n, values in entry.items() if values.choices is None]
    return list(dict.fromkeys(names))


def _largest(sizes: Sequence[str], tests: Sequence[Case]) -> dict[str, int]:
    """The largest value of each size among `tests`."""
    found = {name: [c.params[name] for c in tests if name in c.params] for name in sizes}
    return {name: max(values) for name, values in found.items() if values}


def _values(sizes: Sequence[str], case: Case) -> list[Any]:
    return [case.params.get(name) for name in sizes]


def _draw(spec: Spec, largest: dict[str, int], rng: random.Random) -> dict[str, Any] | None:
    """Draw a value for every parameter of one entry. The order is that of the first test's
    parameters. None if a range is empty."""
    drawn: dict[str, Any] = {}
    number = rng.randrange(len(spec.domain))
    for name, values in spec.domain[number].items():
        if values.choices is not None:
            drawn[name] = rng.choice(values.choices)
            continue
        with validation.error_at(f"domain[{number}].{name}"):
            low, high, step = (_whole(text, drawn) for text in values.formulas().values())
            if step < 1:
                raise ProblemError(f"multiple_of is {step}; it must be 1 or more")
        high = min(high, largest.get(name, high))
        first, last = -(-low // step), high // step
        if first > last:
            return None
        drawn[name] = step * _pick(rng, first, last)
    ordered = [name for name in spec.tests[0].params if name in drawn]
    return {name: drawn[name] for name in dict.fromkeys([*ordered, *drawn])}


def _whole(text: str, values: dict[str, Any]) -> int:
    number = Formula.parse(text).evaluate(values)
    if not isinstance(number, int):
        raise ProblemError(f"{text!r} is {number}, not a whole number (divide with //)")
    return number


def _pick(rng: random.Random, low: int, high: int) -> int:
    """Draw a whole number from `low` to `high`.

    The result is sometimes an end of the range. Otherwise its magnitude is drawn first, twice, and
    the larger one counts, since many of the largest cases are refused. Most results are odd, so
    that no tile size divides them. Only integer arithmetic is used: a replay draws the same number
    on any machine.
    """
    if rng.random() < ENDS_SHARE:
        return rng.choice((low, high))
    span = high - low + 1
    most_bits = (span - 1).bit_length()
    bits = max(rng.randint(0, most_bits), rng.randint(0, most_bits))
    number = low + rng.randrange(min(span, 1 << bits))
    if number % 2 == 0 and rng.random() < ODD_SHARE:
        number += 1 if number < high else -1
    return max(low, number)
