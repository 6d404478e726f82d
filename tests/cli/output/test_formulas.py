"""Formulas of statements as Unicode text."""

from __future__ import annotations

import pytest

from grader.cli.output.formulas import formula_as_text, formulas_as_text


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{e^{x_{ij} - m_i}}{\sum_k e^{x_{ik}}}", "(e^(xᵢⱼ - mᵢ)) / (Σₖ e^(xᵢₖ))"),
        (r"\frac{a}{2}, \quad \frac12", "a / 2,    1 / 2"),
        (r"\hat x_i - \overline{x^2}", "x\u0302ᵢ - x\u0305²\u0305"),
        (r"\cos_p \cdot \textstyle\sum x", "cosₚ · Σ x"),
        (r"\sqrt{v} + \sqrt{1 - \beta_2^t}", "√v + √(1 - β₂ᵗ)"),
        (r"10^{-38} \le x \leq 10^{38}", "10⁻³⁸ ≤ x ≤ 10³⁸"),
        (r"s_{\lfloor k / 128 \rfloor\, n}", "s_(⌊k / 128⌋ n)"),
        (r"\operatorname{softmax}_j\!\left(q \cdot k\right)", "softmaxⱼ(q · k)"),
        (r"\text{k\_len} - 5\%", "k_len - 5%"),
        (r"\begin{aligned} p &\leftarrow p \\ m &\leftarrow g \end{aligned}", "p ← p\nm ← g"),
        (r"x^{\alpha + 1}_Q", "x^(α + 1)_Q"),
        (r"\mystery{x} + 1", r"\mysteryx + 1"),
        (r"\alpha \lambda \Sigma \epsilon", "α λ Σ ε"),
        (r"x^", "x^()"),
        (r"\frac", "() / ()"),
        ("{{{", ""),
        ("", ""),
    ],
)
def test_a_formula(latex: str, text: str) -> None:
    assert formula_as_text(latex) == text


def test_code_and_prices_stay() -> None:
    text = '`$x_1$` and\n```python\ns = "$a^2$"\n```\ncost $5'
    assert formulas_as_text(text) == text
