"""Markdown as HTML: statements with math, tables and code. Pure.

Statements are the operator's; for what strangers write there is `highlighting`. What comes
out holds no script and no style attribute, whatever went in.
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
from pygments import highlight as coloured
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
    """A problem's statement as HTML. Its headings start at level 2: the page has the first."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.use(dollarmath_plugin, renderer=_math, allow_labels=False)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", _table_close)
    tokens = parser.parse(text)
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        tokens = tokens[3:]  # the page shows the title
    for token in tokens:
        if token.type in ("heading_open", "heading_close") and token.tag == "h1":
            token.tag = "h2"
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # see above


def highlight(code: str, language: str) -> Markup:
    """An example in a statement, coloured by classes; `language` is what its fence names."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        lexer = None
    if lexer is None:
        return escape(code)
    return Markup(coloured(code, lexer, HtmlFormatter(nowrap=True)))  # Pygments escapes


def math(latex: str, *, block: bool = False) -> Markup:
    """A formula as MathML; one that cannot be read is shown as it was written."""
    display = "block" if block else "inline"
    # What LaTeX calls aligned inside a formula has here only the name it has outside of one.
    known = latex.strip().replace("{aligned}", "{align*}")
    known = re.sub(r"\\text\{[^{}]*\}", lambda found: found[0].replace(r"\_", "_"), known)
    try:
        tree = ElementTree.fromstring(convert(known, display=display))
        return Markup(f'<math display="{display}">{_inner(tree)}</math>')  # built below
    except Exception:  # noqa: BLE001  # its parser raises IndexError and the like on odd formulas
        return Markup("<code>{}</code>").format(latex)


def _inner(element: ElementTree.Element) -> str:
    return str(escape(element.text or "")) + "".join(map(_element, element))


def _element(element: ElementTree.Element) -> str:
    """An element of MathML with what we know of it, and nothing else: no links, styles, handlers.

    Raises ValueError for an element that we don't know. The converter does not escape text.
    """
    name = element.tag.removeprefix(_MATHML)
    if name not in _ELEMENTS:
        raise ValueError(f"no element {name} in formulas")
    shown = {key: _SPACES.get(value, value) for key, value in element.items() if key in _ATTRIBUTES}
    if side := element.get("columnalign"):
        shown["class"] = "right" if side == "right" else "left"
    attributes = "".join(f' {key}="{escape(value)}"' for key, value in shown.items())
    return f"<{name}{attributes}>{_inner(element)}</{name}>"


def _math(latex: str, how: dict[str, Any]) -> str:
    return str(math(latex, block=bool(how.get("display_mode"))))


def _fence(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    token = tokens[index]
    words = token.info.split()
    code = highlight(token.content, words[0] if words else "")
    # A prototype is wrapped, since one reads it whole; a program keeps its lines, and scrolls.
    shown = "code" if "\n" in token.content.rstrip() else "code line"
    return f'<pre class="{shown}" tabindex="0"><code>{code}</code></pre>\n'


def _table_open(*_: Any) -> str:
    return '<div class="scroll" tabindex="0"><table>\n'


def _table_close(*_: Any) -> str:
    return "</table></div>\n"
