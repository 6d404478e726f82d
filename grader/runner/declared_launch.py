"""Launches that a `.cu` file declares in comments, in place of functions on the host:

    // launch softmax: softmax_rows<4><<<ceil_div(rows, 8), dim3(32, 8)>>>(x, out, int(cols))

A file whose entries are all declared has device code only, which NVRTC compiles in a tenth of a
second (`grader.runner.nvrtc`). An entry's launches run in the order of their lines, on the stream
of the call. Sizes are integer expressions of the prototype's integers. A kernel takes parameters of
the prototype by name, integer expressions as `int64_t`, and either as `int` or `float` if it is so
converted. A launch without blocks is left out.

Where NVRTC does not do, `host_functions` writes the functions that nvcc compiles instead.
"""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grader.runner.entry_point import LoadError
from grader.runner.prototype_check import name_of, parameters_of, type_of

MOST_CHARS = 2000
"""The longest declaration."""
DEFAULT_SHARED_BYTES = 48 << 10
"""The dynamic shared memory that a kernel may have without asking for more."""
DECLARED_CUBIN = "submission.cubin"
"""The runner's file with the code of all declared launches, for a profile."""

_DECLARATION = re.compile(r"^[ \t]*//[ \t]*launch[ \t]+(\w+)[ \t]*:[ \t]*(.*)$", re.M)
_LAUNCH = re.compile(r"([\w:]+(?:<[\w:<>, ]*>)?)\s*<<<(.*)>>>\s*\((.*)\)\s*;?")
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
}
_CONVERSIONS: dict[str, Any] = {"int": ctypes.c_int32, "float": ctypes.c_float}
_C_TYPES: dict[str, Any] = _CONVERSIONS | {
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
}
_HELPERS = """
#include <cuda_runtime.h>
namespace grade_launches {
constexpr long min(long a, long b) { return a < b ? a : b; }
constexpr long max(long a, long b) { return a < b ? b : a; }
constexpr long ceil_div(long a, long b) { return (a + b - 1) / b; }
template <class Kernel, class... Arguments>
void launch(Kernel* kernel, dim3 grid, dim3 block, long shared, cudaStream_t stream,
            Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared > %d)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  kernel<<<grid, block, shared, stream>>>(arguments...);
}
}
"""


@dataclass(frozen=True)
class Passed:
    """An argument of a launch."""

    c_type: str
    name: str
    """The parameter of the prototype that is passed; empty for an expression."""
    expression: ast.expr


@dataclass(frozen=True)
class Launch:
    """One declared launch. Sizes and arguments are checked expressions."""

    kernel: str
    """Name of the kernel, with its template arguments."""
    grid: tuple[ast.expr, ...]
    block: tuple[ast.expr, ...]
    shared_bytes: ast.expr | None
    arguments: tuple[Passed, ...]

    @property
    def prototype(self) -> str:
        """The prototype that its kernel must have."""
        parameters = (
            f"{passed.c_type} {passed.name or f'argument{number}'}"
            for number, passed in enumerate(self.arguments, start=1)
        )
        return f'extern "C" void {self.kernel}({", ".join(parameters)})'

    def sizes(self, numbers: Mapping[str, int]) -> tuple[list[int], list[int], int]:
        """Grid, block (three sizes each) and bytes of dynamic shared memory, for these values of
        the prototype's integers. Raises ArithmeticError."""
        grid, block = (
            [*(_value(size, numbers) for size in sizes), 1, 1][:3]
            for sizes in (self.grid, self.block)
        )
        shared = self.shared_bytes
        return grid, block, 0 if shared is None else _value(shared, numbers)

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """The arguments as ctypes values. `given` has the prototype's parameters, as ctypes values.
        Raises ArithmeticError."""
        numbers = {
            name: one.value for name, one in given.items() if isinstance(one, ctypes.c_int64)
        }
        made = []
        for passed in self.arguments:
            if "*" in passed.c_type:
                made.append(given[passed.name])
                continue
            value = given[passed.name].value if passed.name else _value(passed.expression, numbers)
            made.append(_C_TYPES[passed.c_type](value))
        return made


def declared_launches(source: bytes, prototypes: Mapping[str, str]) -> dict[str, list[Launch]]:
    """Entry → its launches in order; empty for a file that declares none.

    prototypes: symbol → prototype, as `grader.problem.prototypes` gives them. Raises `LoadError`
    with the line, also when only some of the entries are declared.
    """
    text = source.decode("utf-8", "replace")
    found: dict[str, list[Launch]] = {}
    for match in _DECLARATION.finditer(text):
        symbol, where = match[1], f"line {text.count(chr(10), 0, match.start()) + 1}: "
        if symbol not in prototypes:
            raise LoadError(
                f"{where}a launch of '{symbol}', which is no entry of the problem: "
                f"{', '.join(prototypes)}"
            )
        try:
            found.setdefault(symbol, []).append(_launch(match[2].strip(), prototypes[symbol]))
        except LoadError as error:
            raise LoadError(f"{where}{error}") from None
    missing = [symbol for symbol in prototypes if symbol not in found]
    if found and missing:
        raise LoadError(
            f"no launch is declared of '{missing[0]}'; a file declares the launches of all its "
            "entries, or of none"
        )
    return {symbol: found[symbol] for symbol in prototypes} if found else {}


def host_functions(launches: Mapping[str, list[Launch]], prototypes: Mapping[str, str]) -> str:
    """C++ that defines the entries of declared launches, to stand behind the file's own text."""
    parts = [_HELPERS % DEFAULT_SHARED_BYTES]
    for symbol, own in launches.items():
        lines = []
        for launch in own:
            grid, block = (
                ", ".join(f"static_cast<unsigned>({_text(size)})" for size in sizes)
                for sizes in (launch.grid, launch.block)
            )
            shared = "0" if launch.shared_bytes is None else _text(launch.shared_bytes)
            given = [
                f"static_cast<{passed.c_type}>({passed.name or _text(passed.expression)})"
                for passed in launch.arguments
            ]
            arguments = ", ".join([f"dim3({grid})", f"dim3({block})", shared, "stream", *given])
            lines.append(f"  grade_launches::launch({launch.kernel}, {arguments});\n")
        parts.append(f"{prototypes[symbol]} {{\n{''.join(lines)}}}\n")
    return "\n".join(parts)


def _launch(text: str, prototype: str) -> Launch:
    form = "the form is: // launch ENTRY: KERNEL<<<GRID, BLOCK>>>(ARGUMENTS)"
    match = _LAUNCH.fullmatch(text)
    if match is None or len(text) > MOST_CHARS:
        raise LoadError(f"this is no launch; {form}")
    types = {name_of(one): type_of(one) for one in parameters_of(prototype)}
    configuration = _tuple(match[2])
    if len(configuration) not in (2, 3):
        raise LoadError(f"a launch has a grid, a block, and maybe bytes of shared memory; {form}")
    integers = {name for name, c_type in types.items() if c_type == "int64_t"}
    grid, block = (_dimensions(node, integers) for node in configuration[:2])
    shared = configuration[2] if len(configuration) == 3 else None
    if shared is not None:
        _check(shared, integers)
    passed = tuple(_passed(node, types, integers) for node in _tuple(match[3]))
    return Launch(match[1], grid, block, shared, passed)


def _tuple(text: str) -> list[ast.expr]:
    """The expressions of a list with commas."""
    try:
        parsed = ast.parse(f"({text.strip()},)" if text.strip() else "()", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        parsed = None
    if not isinstance(parsed, ast.Tuple):
        raise LoadError(f"'{text.strip()[:200]}' is not a list of expressions")
    return parsed.elts


def _dimensions(node: ast.expr, integers: set[str]) -> tuple[ast.expr, ...]:
    sizes = [node]
    if isinstance(node, ast.Call) and _called(node) == "dim3" and 1 <= len(node.args) <= 3:
        sizes = node.args
    for size in sizes:
        _check(size, integers)
    return tuple(sizes)


def _passed(node: ast.expr, types: Mapping[str, str], integers: set[str]) -> Passed:
    c_type = ""
    if isinstance(node, ast.Call) and _called(node) in _CONVERSIONS and len(node.args) == 1:
        c_type, node = _called(node), node.args[0]
    name = node.id if isinstance(node, ast.Name) and node.id in types else ""
    if not name:
        _check(node, integers)
        return Passed(c_type or "int64_t", "", node)
    own = types[name]
    on_host = "* const*" in own or (
        own == "const int64_t*"
        and name.removesuffix("_strides").removesuffix("_lengths") in types
        and name.endswith(("_strides", "_lengths"))
    )
    if on_host:
        raise LoadError(
            f"'{name}' is an array on the host, which a kernel cannot read: write the function "
            "on the host instead of declaring its launches"
        )
    if own == "cudaStream_t" or (c_type and "*" in own):
        raise LoadError(f"'{name}' cannot be passed so; a launch is on the call's stream already")
    return Passed(c_type or own, name, node)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) and not node.keywords else ""


def _check(node: ast.expr, integers: set[str]) -> None:
    """Raises `LoadError` unless this is an integer expression of the prototype's integers."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return
    if isinstance(node, ast.Name) and node.id in integers:
        return
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        _check(node.left, integers)
        _check(node.right, integers)
        return
    if isinstance(node, ast.Call) and _called(node) in _FUNCTIONS and len(node.args) == 2:
        for argument in node.args:
            _check(argument, integers)
        return
    known = ", ".join(sorted(integers)) or "none here"
    raise LoadError(
        f"'{ast.unparse(node)[:200]}' is not understood: sizes are expressions with + - * / %, "
        f"min, max, ceil_div, whole numbers and the prototype's integers ({known})"
    )


def _value(node: ast.expr, numbers: Mapping[str, int]) -> int:
    """The value of a checked expression. C++ divides as this does, since no size is negative."""
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.Call):
        first, second = (_value(one, numbers) for one in node.args)
        return _FUNCTIONS[_called(node)](first, second)
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left, numbers), _value(node.right, numbers)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left // right
        case _:
            return left % right


def _text(node: ast.expr) -> str:
    """A checked expression in C++, computed in `long`."""
    if isinstance(node, ast.Constant):
        return f"{node.value!r}L"
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        arguments = ", ".join(map(_text, node.args))
        return f"grade_launches::{_called(node)}({arguments})"
    assert isinstance(node, ast.BinOp)
    return f"({_text(node.left)} {_OPERATORS[type(node.op)]} {_text(node.right)})"
