"""Syntax highlighting of a competitor's source in linear time.

General highlighters use patterns that backtrack: a hostile source, such as a file of line breaks,
can take minutes and block the server. Each pattern here uses possessive quantifiers and matches to
the end of the file if a string or comment is not closed, so each character is read a few times at
most.
"""

from __future__ import annotations

import keyword
import re

from markupsafe import Markup, escape

from grader.submission import Language

MAX_HIGHLIGHTED_CHARS = 256 * 1024
"""A longer source is not highlighted: the markup would make it many times as long."""

MAX_NUMBERED_LINES = 20_000
"""A source of more lines is shown without numbers, for the same reason."""

_C_WORDS = """
alignas auto break case catch class const const_cast constexpr continue decltype default delete
do else enum explicit extern false for friend goto if inline namespace new noexcept nullptr
operator private protected public register reinterpret_cast restrict return sizeof static
static_assert static_cast struct switch template this throw true try typedef typename union
using virtual volatile while
__device__ __global__ __host__ __shared__ __constant__ __forceinline__ __launch_bounds__
__restrict__
"""
_C_TYPES = """
bool char double float int long short signed unsigned void half __half half2 __half2
__nv_bfloat16 __nv_bfloat162 int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
size_t cudaStream_t dim3 float2 float4 int2 int4 uint2 uint4
"""
# Word → CSS class. The classes are those of Pygments.
_CUDA_WORDS = dict.fromkeys(_C_WORDS.split(), "k") | dict.fromkeys(_C_TYPES.split(), "kt")
_PYTHON_WORDS = dict.fromkeys(keyword.kwlist, "k")

# The groups are named by such classes, except n, which matches a name.
_PYTHON = re.compile(
    r"""
    (?P<c>\#[^\n]*)
    |(?P<s>[rRbBuUfF]{0,2}(?:
        '{3}(?:[^'\\]|\\[\s\S]|'(?!''))*+(?:'{3})?
        |"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"{3})?
        |'(?:[^'\\\n]|\\[\s\S])*+'?
        |"(?:[^"\\\n]|\\[\s\S])*+"?
    ))
    |(?P<nd>@[A-Za-z_][\w.]*+)
    |(?P<m>\d[\w.]*+)
    |(?P<nf>(?<=\bdef\ )[^\W\d]\w*+|(?<=\bclass\ )[^\W\d]\w*+)
    |(?P<n>[^\W\d]\w*+)
    """,
    re.VERBOSE,
)
_CUDA = re.compile(
    r"""
    (?P<c>//[^\n]*|/\*(?:[^*]|\*(?!/))*+(?:\*/)?)
    |(?P<s>"(?:[^"\\\n]|\\[\s\S])*+"?|'(?:[^'\\\n]|\\[\s\S])*+'?)
    |(?P<cp>\#[ \t]*+[a-z]++)
    |(?P<m>\d[\w.]*+)
    |(?P<n>[^\W\d]\w*+)
    """,
    re.VERBOSE,
)


def highlight_source(source: str, language: Language) -> Markup:
    """The source as escaped HTML, with tokens in `<span>`s that have a class only."""
    if len(source) > MAX_HIGHLIGHTED_CHARS:
        return escape(source)
    pattern, words = (_PYTHON, _PYTHON_WORDS) if language == "python" else (_CUDA, _CUDA_WORDS)
    parts: list[str] = []
    end = 0
    for found in pattern.finditer(source):
        name = found.lastgroup or ""
        if name == "n":
            name = words.get(found[0], "")
        if name:
            parts.append(str(escape(source[end : found.start()])))
            parts.append(f'<span class="{name}">{escape(found[0])}</span>')
            end = found.end()
    parts.append(str(escape(source[end:])))
    return Markup("".join(parts))  # every text in it is escaped above


def split_lines(source: str) -> list[str]:
    """The lines of a source without their ends, as a browser breaks and an editor numbers them."""
    lines = re.split(r"\r\n?|\n", source)
    return lines if lines[-1] else lines[:-1]


def numbered_source(source: str, language: Language) -> Markup:
    """The highlighted source, with a numbered anchor for each line: ``L1``, ``L2``, and so on."""
    lines = split_lines(source)
    if len(lines) > MAX_NUMBERED_LINES:
        return highlight_source(source, language)
    highlighted = _SPAN.sub(_end_at_lines, highlight_source("\n".join(lines), language))
    return Markup(  # escaped by `highlight_source`
        "".join(
            f'<span class="line" id="L{number}">'
            f'<a href="#L{number}" tabindex="-1" aria-hidden="true">{number}</a>{line}\n</span>'
            for number, line in enumerate(highlighted.split("\n") if lines else (), start=1)
        )
    )


_SPAN = re.compile(r"(<span[^>]*+>)([^<]*+)</span>")


def _end_at_lines(span: re.Match[str]) -> str:
    """A token as one span for each of its lines."""
    return "\n".join(f"{span[1]}{line}</span>" if line else "" for line in span[2].split("\n"))
