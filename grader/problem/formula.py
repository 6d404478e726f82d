"""Formulas of a spec, such as ``rows * cols * itemsize``: parsed by a whitelist, never executed.

A formula may contain integers, floats, names, ``+ - * / // % **``, unary minus, parentheses,
``min``, ``max`` and ``ceil_div(a, b)``. Intermediate values are limited to ±`LARGEST` and exponents
to whole numbers up to `MAX_EXPONENT`, so evaluation is always fast.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from grader.problem.spec import ProblemError

Number = int | float

LARGEST = 1e30
MAX_EXPONENT = 64
MAX_DEPTH = 50
MAX_CHARS = 500


class FormulaError(ProblemError):
    """The formula is invalid, or has no value for the given names. The text says why."""


def ceil_div(a: Number, b: Number) -> Number:
    """``ceil(a / b)``, exact for integers."""
    return -(-a // b)


def _power(base: Number, exponent: Number) -> Number:
    if exponent != int(exponent) or not 0 <= exponent <= MAX_EXPONENT:
        raise FormulaError(f"exponents are whole numbers from 0 to {MAX_EXPONENT}, not {exponent}")
    result: Number = base ** int(exponent)
    return result


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {"min": min, "max": max, "ceil_div": ceil_div}


@dataclass(frozen=True)
class Formula:
    """One parsed formula."""

    text: str
    names: tuple[str, ...]
    """Names that it uses, in order of first appearance."""
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Parse `text`. Raises `FormulaError`."""
        return _parse(text)

    def evaluate(self, values: Mapping[str, object]) -> Number:
        """The value; booleans count as 0 or 1.

        Raises `FormulaError` for a missing or non-numeric name, a division by zero, or a value that
        is not finite or exceeds ±`LARGEST`.
        """
        return _evaluate(self._tree, values)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Formula:
    if len(text) > MAX_CHARS:
        raise FormulaError(f"formula of {len(text)} characters; at most {MAX_CHARS} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(f"formula {text!r} does not parse") from None
    names: dict[str, None] = {}
    _check(tree, names, depth=0)
    return Formula(text, tuple(names), tree)


def _check(node: ast.expr, names: dict[str, None], depth: int) -> None:
    """Raise `FormulaError` for nodes off the whitelist; collect names in reading order."""
    if depth > MAX_DEPTH:
        raise FormulaError(f"formula is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=bool()):
            raise FormulaError("only numbers, no True or False")
        case ast.Constant(value=int() | float()):
            pass
        case ast.Name(id=name):
            names[name] = None
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand, names, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, names, depth + 1)
            _check(right, names, depth + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            if len(args) < 2 or (name == "ceil_div" and len(args) != 2):
                raise FormulaError(f"{name}() takes two numbers{'' if len(args) < 2 else ' only'}")
            for argument in args:
                _check(argument, names, depth + 1)
        case _:
            raise FormulaError(
                f"{ast.unparse(node)!r} is not allowed; a formula has numbers, case parameters, "
                "+ - * / // % **, min, max, ceil_div(a, b)"
            )


def _evaluate(node: ast.expr, values: Mapping[str, object]) -> Number:
    try:
        value = _apply(node, values)
    except ZeroDivisionError:
        raise FormulaError(f"division by zero in {ast.unparse(node)!r}") from None
    except OverflowError:
        value = math.inf
    if not -LARGEST <= value <= LARGEST:  # also catches NaN
        raise FormulaError(f"{ast.unparse(node)!r} is not a number within ±{LARGEST:g}")
    return value


def _apply(node: ast.expr, values: Mapping[str, object]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return _look_up(name, values)
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, values)
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluate(argument, values) for argument in args))
    raise AssertionError(f"{ast.dump(node)} passed _check")


def _look_up(name: str, values: Mapping[str, object]) -> Number:
    if name not in values:
        raise FormulaError(f"unknown name {name!r}")
    value = values[name]
    if not isinstance(value, int | float):
        raise FormulaError(f"{name!r} is {value!r}, not a number")
    return value
