"""Markdown as HTML, for problem statements with math, tables and code. Pure.

Statements are written by the operator; `highlighting` is for competitors' sources. The output
contains no script and no style attribute, whatever the input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight as pygments_highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

_MATHML = "{http://www.w3.org/1998/Math/MathML}"
_ELEMENTS = frozenset(
    [
        "mrow", "mi", "mo", "mn", "mtext", "mspace", "msub", "msup", "msubsup", "mfrac", "msqrt",
        "mroot", "mtable", "mtr", "mtd", "munder", "mover", "munderover", "mstyle", "mpadded",
        "mphantom",
    ]
)  # fmt: skip
_ATTRIBUTES = frozenset(
    ["stretchy", "fence", "form", "width", "displaystyle", "mathvariant", "separator", "accent"]
)
_SPACES = {"negativethinmathspace": "-0.167em"}


def render(text: str) -> Markup:
    """A problem's statement as HTML. Headings start at level 2, since the page has the title."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.use(dollarmath_plugin, renderer=_math, allow_labels=False)
    parser.add_render_rule("math_block", _math_block)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", _table_close)
    tokens = parser.parse(text)
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        tokens = tokens[3:]  # the page has the title
    for token in tokens:
        if token.type in ("heading_open", "heading_close") and token.tag == "h1":
            token.tag = "h2"
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # raw HTML is disabled


def highlight(code: str, language: str) -> Markup:
    """A code block with tokens in classes; `language` is the name after its fence."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        lexer = None
    if lexer is None:
        return escape(code)
    return Markup(pygments_highlight(code, lexer, HtmlFormatter(nowrap=True)))  # Pygments escapes


def math(latex: str, *, block: bool = False) -> Markup:
    """A formula as MathML; as plain LaTeX if it cannot be parsed."""
    display = "block" if block else "inline"
    # The converter lacks `aligned`, and supports `align*`, which looks the same.
    supported = latex.strip().replace("{aligned}", "{align*}")
    supported = re.sub(r"\\text\{[^{}]*\}", lambda found: found[0].replace(r"\_", "_"), supported)
    try:
        tree = ElementTree.fromstring(convert(supported, display=display))
        return Markup(f'<math display="{display}">{_inner(tree)}</math>')  # built below
    except Exception:  # noqa: BLE001  # the converter raises IndexError and others on malformed formulas
        return Markup("<code>{}</code>").format(latex)


def _inner(element: ElementTree.Element) -> str:
    return str(escape(element.text or "")) + "".join(map(_element, element))


def _element(element: ElementTree.Element) -> str:
    """A MathML element with allowed attributes only: no links, styles or event handlers.

    Raises ValueError for an element that is not allowed. The converter does not escape text.
    """
    name = element.tag.removeprefix(_MATHML)
    if name not in _ELEMENTS:
        raise ValueError(f"element {name} is not allowed in formulas")
    attributes = {
        key: _SPACES.get(value, value) for key, value in element.items() if key in _ATTRIBUTES
    }
    if side := element.get("columnalign"):
        attributes["class"] = "right" if side == "right" else "left"
    text = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{text}>{_inner(element)}</{name}>"


def _math(latex: str, options: dict[str, Any]) -> str:
    return str(math(latex, block=bool(options.get("display_mode"))))


def _math_block(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    # A narrow page scrolls it, also by keyboard.
    formula = math(tokens[index].content, block=True)
    return f'<div class="math block" tabindex="0">\n{formula}\n</div>\n'


def _fence(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    token = tokens[index]
    info = token.info.split()
    code = highlight(token.content, info[0] if info else "")
    # A single line, such as a prototype, is wrapped. Longer code keeps its lines and scrolls.
    name = "code" if "\n" in token.content.rstrip() else "code line"
    return f'<pre class="{name}" tabindex="0"><code>{code}</code></pre>\n'


def _table_open(*_: Any) -> str:
    return '<div class="scroll" tabindex="0"><table>\n'


def _table_close(*_: Any) -> str:
    return "</table></div>\n"
