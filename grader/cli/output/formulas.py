"""LaTeX formulas as Unicode text for the terminal.

It knows the commands that statements use: fractions, roots, sums, Greek letters, indices. What it
does not know stays as it is written, so that nothing is lost.
"""

from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    **{"cdot": "·", "times": "×", "div": "÷", "pm": "±", "odot": "⊙", "circ": "∘"},
    **{"le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈"},
    **{"in": "∈", "infty": "∞", "partial": "∂", "sum": "Σ", "prod": "Π", "top": "⊤"},
    **{"leftarrow": "←", "gets": "←", "rightarrow": "→", "to": "→", "mapsto": "↦"},
    **{"ldots": "…", "dots": "…", "cdots": "⋯", "lfloor": "⌊", "rfloor": "⌋"},
    **{"lceil": "⌈", "rceil": "⌉", "mid": "|", "lvert": "|", "rvert": "|", "lVert": "‖"},
    **{"rVert": "‖", "Vert": "‖", "quad": "  ", "qquad": "    ", "left": "", "right": ""},
    **{"displaystyle": "", "textstyle": "", "big": "", "Big": "", "bigl": "", "bigr": ""},
    **{name: name for name in ("max", "min", "exp", "log", "ln", "arg", "mod")},
    **{name: name for name in ("cos", "sin", "tanh")},
}
_ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304", "overline": "\u0305"}
"""Combining characters; each follows what it stands above."""
_ESCAPED = {
    ",": " ",
    ";": " ",
    ":": " ",
    " ": " ",
    "!": "",
    "\\": "\n",
    "{": "{",
    "}": "}",
    "_": "_",
    "%": "%",
}
_TEXTS = ("text", "mathrm", "mathbf", "mathit", "mathsf", "texttt", "operatorname", "mathbb")
_RAISED = dict(zip("0123456789+-=()niTktx", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵀᵏᵗˣ", strict=True))
_LOWERED = dict(zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", strict=True)) | dict(
    zip("aehijklmnoprstuvx", "ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True)
)
_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[{}^_&]|[^\\{}^_&]", re.DOTALL)


def formulas_as_text(statement: str) -> str:
    """Markdown with its formulas, ``$…$`` and ``$$…$$``, as code of Unicode text. Code stays."""

    def replaced(found: re.Match[str]) -> str:
        if found["block"]:
            return f"```text\n{formula_as_text(found['block'])}\n```"
        return f"`{formula_as_text(found['inline'])}`" if found["inline"] else found[0]

    return re.sub(
        r"```.*?```|`[^`]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$]+)\$",
        replaced,
        statement,
        flags=re.DOTALL,
    )


def formula_as_text(latex: str) -> str:
    r"""A formula as text: ``\frac{a_i}{2}`` becomes ``aᵢ / 2``. Lines are those of ``\\``."""
    without_environments = re.sub(r"\\(begin|end)\{[^}]*\}", "", latex)
    tokens = _TOKEN.findall(re.sub(r"\s+", " ", without_environments))
    text = re.sub(r"(?<=[⌊⌈]) | (?=[⌋⌉])", "", _Reader(tokens).group(end=None))
    lines = (re.sub(r"(?<=\S) {2,3}(?=\S)", " ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader:
    """Reads tokens from first to last."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]

    def group(self, end: str | None = "}") -> str:
        """The text up to `end`, or of all tokens."""
        text = ""
        while self._tokens:
            token = self._tokens.pop()
            if token == end:
                break
            if token in "^_":
                text += _script(self._argument(), raised=token == "^")
            elif token != "&":
                text += self._read(token)
        return text

    def _argument(self) -> str:
        """The next group or token."""
        while self._tokens and self._tokens[-1] == " ":
            self._tokens.pop()
        return self._read(self._tokens.pop()) if self._tokens else ""

    def _read(self, token: str) -> str:
        if token == "{":
            return self.group()
        name = token[1:]
        if not token.startswith("\\") or not name:
            return token
        if name in ("frac", "dfrac", "tfrac"):
            return f"{_bracketed(self._argument())} / {_bracketed(self._argument())}"
        if name == "sqrt":
            argument = self._argument()
            return f"√{argument}" if len(argument) == 1 else f"√({argument})"
        if name in _TEXTS:
            return self._argument()
        if name in _ACCENTS:
            return "".join(f"{character}{_ACCENTS[name]}" for character in self._argument())
        for known in (_SYMBOLS.get(name), _ESCAPED.get(name), _greek(name)):
            if known is not None:
                return known
        return token


def _greek(name: str) -> str | None:
    """The letter of ``alpha`` or ``Sigma``; None for what is no Greek letter."""
    case = "CAPITAL" if name[0].isupper() else "SMALL"
    letter = name.upper().replace("LAMBDA", "LAMDA")  # as Unicode spells it
    try:
        return unicodedata.lookup(f"GREEK {case} LETTER {letter}")
    except KeyError:
        return None


def _bracketed(text: str) -> str:
    """A part of a fraction, in brackets if it is more than one number or name."""
    text = text.strip()
    return text if re.fullmatch(r"[^\s+\-−·/]+", text) else f"({text})"


def _script(text: str, raised: bool) -> str:
    """An exponent or an index: in small characters where Unicode has them all."""
    text = text.strip()
    known = _RAISED if raised else _LOWERED
    if text and all(character in known for character in text):
        return "".join(known[character] for character in text)
    mark = "^" if raised else "_"
    return f"{mark}{text}" if re.fullmatch(r"[A-Za-z0-9]+|\w", text) else f"{mark}({text})"
