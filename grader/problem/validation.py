"""Validates a spec beyond the types of its fields, and evaluates it for a case.

Every error message starts with the path of the invalid key.
"""

from __future__ import annotations

import difflib
import keyword
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from grader.arena.layout import dense_strides, overlaps
from grader.problem.formula import Formula, FormulaError
from grader.problem.prototype import declarations, dimensions
from grader.problem.reserved_names import C_GLOBALS, C_WORDS, is_library_symbol
from grader.problem.spec import (
    DTYPES,
    FLOATING_DTYPES,
    Argument,
    Case,
    ProblemError,
    Spec,
    Tolerance,
    leaves,
)

MAX_ELEMENTS = 2**40
SCALAR_DTYPES = ("int64", "fp64", "bool")
PREPARED = "prepared"
"""The parameter of a Python entry that has what a submission's setup made of the weights."""
RESERVED_PARAMS = {"generator", "call", "itemsize"}
"""Reserved by `generate()` (the first two) and by cost formulas."""

_PARAM = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def check(spec: Spec) -> None:
    """Raise `ProblemError` for the first violation."""
    _check_arguments(spec)
    for where, case in _cases(spec):
        check_params(f"{where}.params", case)
    _check_case_names(spec)
    _check_dtypes("tolerances", spec.tolerances)
    for where, case in _cases(spec):
        _check_dtypes(f"{where}.tolerances", _by_dtype(spec, f"{where}.tolerances", case))
        check_case(spec, where, case)
    for case in spec.benchmarks:
        _check_variants(spec, case)
    _check_cuda_dtypes(spec)


def dtype(argument: Argument, case: Case) -> str:
    """Dtype of an argument in a case. Raises `ProblemError` if the case does not define it."""
    if argument.dtype in DTYPES:
        return argument.dtype
    value = case.params.get(argument.dtype)
    if value is None:
        known = [*DTYPES, *case.params]
        raise ProblemError(
            f"{argument.dtype!r} is neither a dtype nor a parameter of case '{case.name}'"
            f"{_hint(argument.dtype, known)}"
        )
    if value not in DTYPES:
        raise ProblemError(
            f"parameter '{argument.dtype}' of case '{case.name}' is {value!r}, which is no dtype"
            f"{_hint(str(value), DTYPES)}"
        )
    return str(value)


def variants(spec: Spec, case: Case) -> list[Case]:
    """A benchmark with each value of the spec's `variants` in place of its own."""
    return [
        case.model_copy(update={"params": case.params | {name: value}})
        for name, values in spec.variants.items()
        for value in values
        if value != case.params[name]
    ]


def shape(argument: Argument, case: Case) -> tuple[int, ...]:
    """Shape of an argument in a case. Raises `ProblemError` unless all sizes are whole numbers."""
    return tuple(_whole("size", formula, case) for formula in argument.shape)


def strides(argument: Argument, case: Case) -> tuple[int, ...]:
    """Strides in elements of an `out` tensor in a case. Raises `ProblemError` where two elements
    would share memory, and unless all strides are whole numbers."""
    sizes = shape(argument, case)
    if not argument.strides:
        return dense_strides(sizes)
    found = tuple(_whole("stride", formula, case) for formula in argument.strides)
    if overlaps(sizes, found):
        raise ProblemError(
            f"strides {list(found)} of shape {list(sizes)} in case '{case.name}' make elements "
            "of an output share memory"
        )
    return found


def _whole(what: str, formula: str, case: Case) -> int:
    value = _evaluate(formula, case)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ProblemError(
            f"{formula!r} is {value} in case '{case.name}'; "
            f"a {what} is a whole number of at least 1 (divide with //)"
        )
    return value


def argument_bytes(spec: Spec, case: Case) -> int:
    """Size in bytes of the tensor arguments of a case, lists of tensors left out."""
    return sum(
        math.prod(shape(argument, case)) * DTYPES[dtype(argument, case)]
        for argument in spec.args
        if argument.kind == "tensor"
    )


def moved_bytes(spec: Spec, case: Case) -> float:
    """Minimum device memory traffic of one call, in bytes; without a cost in the spec, the size of
    the tensor arguments."""
    if spec.cost is None:
        return argument_bytes(spec, case)
    return cost(spec.cost.bytes, case)


def operations(spec: Spec, case: Case) -> float:
    """Minimum floating-point operations of one call; 0 without a cost in the spec."""
    return 0.0 if spec.cost is None else cost(spec.cost.flops, case)


def cost(formula: str, case: Case) -> float:
    """Value of a cost formula in a case. Raises `ProblemError`."""
    value = float(_evaluate(formula, case))
    if value < 0:
        raise ProblemError(f"{formula!r} is {value:g} in case '{case.name}'; a cost is never < 0")
    return value


@dataclass(frozen=True)
class Accumulation:
    """The spec's `accumulate` in one case; dtypes are among `FLOATING_DTYPES`."""

    dtype: str
    terms: int
    roundings: int
    operands: str | None


def accumulation(spec: Spec, case: Case) -> Accumulation | None:
    """How an honest kernel computes in a case; None if the spec does not say.

    Raises `ProblemError` for an unknown dtype, and unless `terms` is a whole number of at least 1.
    """
    how = spec.accumulate
    if how is None:
        return None
    terms = _evaluate(how.terms, case)
    if not isinstance(terms, int) or isinstance(terms, bool) or terms < 1:
        raise ProblemError(
            f"accumulate.terms: {how.terms!r} is {terms} in case '{case.name}'; "
            "a number of terms is a whole number of at least 1"
        )
    operands = how.operands and _floating("operands", how.operands, case)
    return Accumulation(_floating("dtype", how.dtype, case), terms, how.roundings, operands)


def _floating(key: str, name: str, case: Case) -> str:
    value = name if name in FLOATING_DTYPES else case.params.get(name)
    if value not in FLOATING_DTYPES:
        known = ", ".join(FLOATING_DTYPES)
        raise ProblemError(
            f"accumulate.{key}: {name!r} is neither one of {known} nor a parameter of case "
            f"'{case.name}' that holds one{_hint(name, [*FLOATING_DTYPES, *case.params])}"
        )
    return str(value)


def check_text(text: str, allowed: str, categories: tuple[str, ...] = ("Cc",)) -> None:
    """Raise `ProblemError` for a character of these Unicode categories; the default is control
    characters. They could make a terminal or page show a different text."""
    for number, line in enumerate(text.split("\n"), 1):
        for c in line:
            if c not in allowed and unicodedata.category(c) in categories:
                where = f"line {number}: " if "\n" in text else ""
                raise ProblemError(f"{where}the character U+{ord(c):04X} is invisible; remove it")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'params'?``, or empty if no known name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else ""


def _hint(name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known)
    return f"; {hint}" if hint else ""


def _evaluate(formula: str, case: Case) -> int | float:
    values = dict(case.params)
    if values.get("dtype") in DTYPES:
        values["itemsize"] = DTYPES[values["dtype"]]
    parsed = Formula.parse(formula)
    for name in parsed.names:
        if name not in values:
            raise FormulaError(
                f"{formula!r} needs '{name}', which case '{case.name}' does not have"
                f"{_hint(name, values)}"
            )
    return parsed.evaluate(values)


def _cases(spec: Spec) -> list[tuple[str, Case]]:
    tests = [(f"tests[{index}]", case) for index, case in enumerate(spec.tests)]
    return tests + [(f"benchmarks[{index}]", case) for index, case in enumerate(spec.benchmarks)]


def _check_arguments(spec: Spec) -> None:
    seen: set[str] = set()
    for index, argument in enumerate(spec.args):
        where = f"args[{index}]"
        if argument.name in seen:
            raise ProblemError(f"{where}.name: '{argument.name}' is used twice")
        seen.add(argument.name)
        _check_name(f"{where}.name", argument.name)
        _check_argument(where, argument)
    _check_nested(spec)
    _c_names(spec)
    _check_name("entry", spec.entry)
    if is_library_symbol(spec.entry):
        raise ProblemError(
            f"entry: '{spec.entry}' is a function of C, POSIX or CUDA, which a .cu file cannot "
            "define; choose another name"
        )
    if not any(argument.role != "in" for argument in spec.args):
        raise ProblemError("args: no argument is out or inout; a call must have an output")
    if all(argument.optional for argument in spec.args if argument.role != "in"):
        raise ProblemError("args: every output is optional; then a call need not do anything")


def _check_nested(spec: Spec) -> None:
    known = {argument.name for argument in spec.args}
    used: dict[str, str] = {}
    for parameter, tree in spec.nested.items():
        where = f"nested.{parameter}"
        _check_name(where, parameter)
        if not isinstance(tree, list | dict) or not leaves(tree):
            raise ProblemError(f"{where}: must be a list or a mapping of names of arguments")
        for leaf in leaves(tree):
            if leaf not in known:
                raise ProblemError(f"{where}: {leaf!r} is no argument{_hint(str(leaf), known)}")
            if leaf in used:
                raise ProblemError(f"{where}: '{leaf}' is in {used[leaf]} already")
            used[leaf] = where
    weights = {argument.name for argument in spec.args if argument.weight}
    if weights and len(weights) == sum(argument.role == "in" for argument in spec.args):
        raise ProblemError("args: every input is a weight; then every call would be the same")
    if weights and PREPARED in known | spec.nested.keys():
        raise ProblemError(
            f"args: '{PREPARED}' is what a setup has made of the weights; choose another name"
        )
    for parameter, tree in spec.nested.items():
        if 0 < len(weights.intersection(leaves(tree))) < len(leaves(tree)):
            raise ProblemError(f"nested.{parameter}: has weights and other arguments; part them")
    for parameter in spec.nested:
        if parameter in known - used.keys():
            raise ProblemError(f"nested.{parameter}: an argument has this name; choose another")


def _check_name(where: str, name: str) -> None:
    """Refuse an entry or argument that a source file could not have."""
    if name in C_WORDS or keyword.iskeyword(name):
        raise ProblemError(f"{where}: '{name}' is a word of C++ or Python")
    if name in C_GLOBALS:
        raise ProblemError(f"{where}: '{name}' has a meaning in C++ or CUDA; choose another name")


def _c_names(spec: Spec) -> dict[str, str]:
    """The parameters of the C prototype besides the dimensions: name → what it is.

    Raises `ProblemError` when two have the same name.
    """
    found = {"stream": "the stream"}
    for index, argument in enumerate(spec.args):
        for name in declarations(argument, "fp32"):
            if name in found:
                raise ProblemError(
                    f"args[{index}].name: the C prototype has '{name}' twice, for "
                    f"'{argument.name}' and for {found[name]}; choose another name"
                )
            found[name] = f"'{argument.name}'"
    return found


def _check_argument(where: str, argument: Argument) -> None:
    if argument.kind == "tensor" and not argument.shape:
        raise ProblemError(f"{where}.shape: missing; a tensor has a formula for each dimension")
    if argument.kind != "tensor" and argument.shape:
        what = "a scalar" if argument.kind == "scalar" else "a list of tensors"
        raise ProblemError(f"{where}.shape: {what} has no shape; remove it")
    if argument.kind == "scalar" and argument.role != "in":
        raise ProblemError(f"{where}.role: a scalar is always in")
    if argument.kind == "scalar" and argument.dtype not in SCALAR_DTYPES:
        known = ", ".join(SCALAR_DTYPES)
        raise ProblemError(f"{where}.dtype: a scalar is one of {known}, not '{argument.dtype}'")
    if argument.kind == "tensors" and argument.role == "out":
        raise ProblemError(f"{where}.role: a list of tensors is in or inout; out is not supported")
    if not argument.contiguous and (argument.role != "in" or argument.kind != "tensor"):
        raise ProblemError(f"{where}.contiguous: only an in tensor may have other strides")
    if argument.strides and (argument.role != "out" or argument.kind != "tensor"):
        raise ProblemError(f"{where}.strides: only an out tensor has some; see 'contiguous'")
    if argument.strides and len(argument.strides) != len(argument.shape):
        raise ProblemError(
            f"{where}.strides: {len(argument.strides)} for {len(argument.shape)} dimensions"
        )
    _check_dtypes(f"{where}.tolerances", argument.tolerances)
    if argument.tolerances and argument.role == "in":
        raise ProblemError(f"{where}.tolerances: only an output has some")
    if argument.weight and (argument.role != "in" or argument.kind == "scalar"):
        raise ProblemError(f"{where}.weight: only an in tensor, or a list of them, is a weight")
    if argument.scratch and (argument.role != "in" or argument.kind == "scalar" or argument.weight):
        raise ProblemError(f"{where}.scratch: only an in tensor that is no weight may be")
    if not argument.unique and argument.role != "out":
        raise ProblemError(f"{where}.unique: only an out tensor may have several right values")
    if argument.optional and (argument.role != "out" or not argument.unique):
        raise ProblemError(f"{where}.optional: only an out tensor with one right value may be")
    if argument.structured and (argument.role != "in" or argument.kind == "scalar"):
        raise ProblemError(f"{where}.structured: only an in tensor, or a list of them, may be")
    for key, formulas in (("shape", argument.shape), ("strides", argument.strides)):
        for axis, formula in enumerate(formulas):
            try:
                Formula.parse(formula)
            except FormulaError as error:
                raise ProblemError(f"{where}.{key}[{axis}]: {error}") from None


def check_params(where: str, case: Case) -> None:
    """Raise `ProblemError` for a parameter without a valid name and value."""
    for name, value in case.params.items():
        path = f"{where}.{name}"
        if not _PARAM.fullmatch(name) or keyword.iskeyword(name):
            raise ProblemError(f"{path}: a parameter is named in letters, digits and underscores")
        if name in RESERVED_PARAMS:
            raise ProblemError(f"{path}: the name '{name}' is reserved; choose another")
        if not isinstance(value, int | float | str):
            raise ProblemError(f"{path}: must be a number, true or false, or a word")


def _check_case_names(spec: Spec) -> None:
    first: dict[str, str] = {}
    for where, case in _cases(spec):
        if case.name in first:
            raise ProblemError(f"{where}.name: '{case.name}' is already {first[case.name]}.name")
        first[case.name] = where


def _check_cuda_dtypes(spec: Spec) -> None:
    holders = sorted({a.dtype for a in spec.args if a.dtype not in DTYPES})
    if len(holders) > 1:
        raise ProblemError(f"args: one parameter may hold a dtype, not {' and '.join(holders)}")
    for index, name in enumerate(spec.cuda_dtypes):
        if name not in DTYPES:
            raise ProblemError(f"cuda_dtypes[{index}]: no such dtype{_hint(name, DTYPES)}")
        if name in spec.cuda_dtypes[:index]:
            raise ProblemError(f"cuda_dtypes[{index}]: '{name}' is given twice")
    if holders and not spec.cuda_dtypes:
        raise ProblemError(
            f"cuda_dtypes: missing; the dtype of arguments is the parameter '{holders[0]}', "
            "so say which dtypes a .cu file needs a symbol for"
        )
    if spec.cuda_dtypes and not holders:
        raise ProblemError("cuda_dtypes: no argument's dtype is a case parameter; remove it")


def check_case(spec: Spec, where: str, case: Case) -> None:
    """Raise `ProblemError` unless every argument and cost has a value in the case."""
    for index, argument in enumerate(spec.args):
        with error_at(f"args[{index}].dtype"):
            dtype(argument, case)
        with error_at(f"args[{index}].shape"):
            sizes = shape(argument, case)
        with error_at(f"args[{index}].strides"):
            strides(argument, case)
        if math.prod(sizes) > MAX_ELEMENTS:
            raise ProblemError(f"args[{index}].shape: {sizes} in case '{case.name}' is too large")
        if argument.role != "in":
            _check_tolerance(spec, argument, case)
    taken = _c_names(spec)
    for name in dimensions(spec):
        if name in C_WORDS or name in C_GLOBALS or name in taken:
            use = f", where it stands for {taken[name]}" if name in taken else ""
            raise ProblemError(
                f"{where}.params.{name}: a dimension cannot have this name in C++{use}"
            )
    accumulation(spec, case)
    if case.calls > 1 and not any(argument.role == "inout" for argument in spec.args):
        raise ProblemError(f"{where}.calls: {case.calls} calls need an inout argument")
    if spec.cost is not None:
        with error_at("cost.bytes"):
            if cost(spec.cost.bytes, case) == 0:
                raise ProblemError(f"0 in case '{case.name}'; every call writes its outputs")
        with error_at("cost.flops"):
            cost(spec.cost.flops, case)


def _by_dtype(spec: Spec, where: str, case: Case) -> dict[str, Tolerance]:
    """A case's tolerances without those by an output's name, which are checked."""
    outputs = {argument.name: argument for argument in spec.args if argument.role != "in"}
    for name in case.tolerances.keys() & outputs.keys():
        if dtype(outputs[name], case) not in FLOATING_DTYPES:
            raise ProblemError(f"{where}.{name}: outputs of this dtype must be exact")
    return {name: t for name, t in case.tolerances.items() if name not in outputs}


def _check_dtypes(where: str, tolerances: Mapping[str, Tolerance]) -> None:
    for name in tolerances:
        if name not in DTYPES:
            raise ProblemError(f"{where}.{name}: no such dtype{_hint(name, DTYPES)}")
        if name not in FLOATING_DTYPES:
            raise ProblemError(f"{where}.{name}: outputs of this dtype must be exact")


def _check_tolerance(spec: Spec, argument: Argument, case: Case) -> None:
    """Floating-point outputs need tolerances; all others must be exact, and cannot be optional."""
    name = dtype(argument, case)
    if argument.optional and (name not in FLOATING_DTYPES or DTYPES[name] == 1):
        raise ProblemError(
            f"args: '{argument.name}' is optional, and of {name} in case '{case.name}', where "
            "nothing shows that it was left out; its dtype must be fp16, bf16, fp32 or fp64"
        )
    tolerances = spec.tolerances | argument.tolerances | case.tolerances
    if name in FLOATING_DTYPES and not {name, argument.name} & tolerances.keys():
        raise ProblemError(
            f"tolerances: none for {name}, the dtype of '{argument.name}' in case '{case.name}'"
        )


def _check_variants(spec: Spec, case: Case) -> None:
    for name in spec.variants:
        if name not in case.params:
            hint = _hint(name, case.params)
            raise ProblemError(f"variants.{name}: no parameter of case '{case.name}'{hint}")
    for other in variants(spec, case):
        check_params("variants", other)
        for argument in spec.args:
            if _form(argument, case) != _form(argument, other):
                raise ProblemError(
                    f"variants: must not change '{argument.name}' of case '{case.name}', its shape "
                    "or its dtype"
                )


def _form(argument: Argument, case: Case) -> tuple[str, tuple[int, ...]]:
    return dtype(argument, case), shape(argument, case)


@contextmanager
def error_at(place: str) -> Iterator[None]:
    """Prefix the text of a `ProblemError` with `place`: the path of a key or of the file."""
    try:
        yield
    except ProblemError as error:
        raise ProblemError(f"{place}: {error}") from None
