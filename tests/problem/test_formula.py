"""Allowed formulas agree with Python; all others are refused."""

from __future__ import annotations

import ast
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.problem.formula import LARGEST, Formula, FormulaError

NAMES = {"rows": 7, "cols": 1000, "causal": True, "rate": 0.25}


def _binary(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    infix = st.tuples(children, operator, children).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    power = st.tuples(children, st.integers(0, 3)).map(lambda t: f"({t[0]}) ** {t[1]}")
    call = st.tuples(st.sampled_from(["min", "max"]), children, children).map(
        lambda t: f"{t[0]}({t[1]}, {t[2]})"
    )
    return infix | power | call | children.map(lambda text: f"-({text})")


_leaves = st.integers(0, 10**6).map(str) | st.sampled_from(list(NAMES)) | st.just("0.5")
expressions = st.recursive(_leaves, _binary, max_leaves=12).filter(
    # Powers of powers are refused rightly, and would take Python minutes.
    lambda text: len(text) < 400 and text.count("**") <= 3
)


@given(expressions)
def test_it_agrees_with_python(text: str) -> None:
    expected: object
    try:
        expected = _python(ast.parse(text, mode="eval").body)
    except (ZeroDivisionError, OverflowError):
        expected = None
    formula = Formula.parse(text)
    if expected is None or not _within_bound(text):
        with pytest.raises(FormulaError, match=r"division by zero|not a number within"):
            formula.evaluate(NAMES)
    else:
        value = formula.evaluate(NAMES)
        assert value == expected


def _within_bound(text: str) -> bool:
    """Whether every intermediate value is within ±`LARGEST`."""
    nodes = ast.walk(ast.parse(text, mode="eval").body)
    parts = [node for node in nodes if isinstance(node, ast.expr) and not _is_function(node)]
    return all(abs(_python(part)) <= LARGEST for part in parts)


def _is_function(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id not in NAMES


def _python(node: ast.expr) -> int | float:
    """The value by Python's own operators."""
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int | float)
        return node.value
    if isinstance(node, ast.Name):
        return NAMES[node.id]
    if isinstance(node, ast.UnaryOp):
        return -_python(node.operand)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        values = [_python(argument) for argument in node.args]
        return min(values) if node.func.id == "min" else max(values)
    assert isinstance(node, ast.BinOp)
    left, right = _python(node.left), _python(node.right)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return left // right
        case ast.Mod():
            return left % right
        case _:
            result: int | float = left**right
            return result


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_ceil_div_is_exact(a: int, b: int) -> None:
    value = Formula.parse("ceil_div(a, b)").evaluate({"a": a, "b": b})
    assert (value - 1) * b < a <= value * b


def test_names_are_in_order_of_first_appearance() -> None:
    assert Formula.parse("c * (a + b) - max(a, c)").names == ("c", "a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "rows.__class__",
        "rows[0]",
        "lambda: 1",
        "[1, 2]",
        "(x := 3)",
        "1 if rows else 2",
        "rows < cols",
        "rows and cols",
        "not rows",
        "~rows",
        "rows << 3",
        "f'{rows}'",
        "'text'",
        "1j",
        "True",
        "None",
        "...",
        "abs(rows)",
        "min(rows)",
        "min(*rows)",
        "max(rows, key=cols)",
        "ceil_div(1, 2, 3)",
        "rows cols",
        "rows +",
        "",
        "   ",
        "rows; cols",
        "rows\ncols",
        "\0",
        "(" * 250 + ")" * 250,
        "-" * 100 + "1",
        "1" * 501,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(FormulaError):
        Formula.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows // 0", "division by zero in 'rows // 0'"),
        ("1 / (rows - 7)", "division by zero in '1 / (rows - 7)'"),
        ("2 ** 65", "exponents are whole numbers from 0 to 64, not 65"),
        ("2 ** -1", "exponents are whole numbers from 0 to 64, not -1"),
        ("4 ** 0.5", "exponents are whole numbers from 0 to 64, not 0.5"),
        ("cols ** 64", "'cols ** 64' is not a number within ±1e+30"),
        ("(cols ** 9) ** 64 - 1", "'(cols ** 9) ** 64' is not a number within ±1e+30"),
        ("1e400 - 1e400", "'1e309' is not a number within ±1e+30"),
        ("colls", "unknown name 'colls'"),
        ("word + 1", "'word' is 'normal', not a number"),
    ],
)
def test_a_formula_without_a_value_says_why(text: str, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        Formula.parse(text).evaluate(NAMES | {"word": "normal"})
    assert str(caught.value) == message


def test_values_stay_within_the_bound() -> None:
    nines = " * ".join(["999999"] * 6)
    with pytest.raises(FormulaError):
        Formula.parse(nines).evaluate({})
    value = Formula.parse("999999 ** 5").evaluate({})
    assert math.isfinite(value)
    assert value <= LARGEST
