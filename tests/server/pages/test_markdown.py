"""Statements: math as MathML, highlighted code, and no injected markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.server.pages import markdown
from tests.server.examples import ATTACK, SOURCE


def test_math_becomes_mathml() -> None:
    page = markdown.render("# Title\n\nWith $e^x$:\n\n$$\\frac{a}{b}$$\n")
    assert "Title" not in page
    assert '<math display="inline"><mrow><msup>' in page
    assert '<math display="block"><mrow><mfrac>' in page
    assert '<div class="math block" tabindex="0">' in page


@pytest.mark.parametrize(
    "latex",
    [
        r"\text{<img src=x onerror=alert(1)>}",
        r"\href{javascript:alert(1)}{x}",
        r"\style{color:red}{x}",
        r"\class{a' onload=alert(1)}{x}",
        r"\frac{a}{",
        r"\begin{aligned} a &= b",
        "</math><script>alert(1)</script>",
    ],
)
def test_formulas_cannot_inject_markup(latex: str) -> None:
    shown = str(markdown.math(latex))
    for tag in re.findall(r"<[^>]*>", shown):
        assert not re.search(r"\b(on\w+|style|href|class)\s*=", tag.replace('class="right"', ""))
    assert "<script" not in shown
    assert "<img" not in shown


@given(st.text(max_size=60))
def test_any_formula_is_rendered(latex: str) -> None:
    shown = str(markdown.math(latex))
    assert shown.startswith(("<math", "<code"))


def test_statements_cannot_inject_markup() -> None:
    page = markdown.render(f"{ATTACK}\n\n[x](javascript:alert(1))\n\n```\n{ATTACK}\n```\n")
    assert "<script" not in page
    assert "<img" not in page
    assert 'href="javascript' not in page


def test_a_single_line_of_code_is_wrapped_and_a_program_is_not() -> None:
    page = markdown.render("```cpp\nvoid softmax();\n```\n\n```python\na = 1\nb = 2\n```\n")
    assert re.findall(r'<pre class="([^"]*)"', page) == ["code line", "code"]


def test_code_is_highlighted_and_complete() -> None:
    for language in ("python", "cuda", "no such language", ""):
        shown = markdown.highlight(SOURCE + ATTACK, language)
        assert "<script" not in shown
        assert "<img" not in shown
        assert shown.striptags().split() == (SOURCE + ATTACK).split()
    assert '<span class="k">def</span>' in markdown.highlight(SOURCE, "python")
