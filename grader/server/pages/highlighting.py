"""A competitor's source as HTML with colours, in a time that grows with its length alone.

General highlighters follow patterns that a hostile source can make slow: a file of nothing but line
breaks may take minutes, and the whole server waits. Each pattern here takes what it begins to read,
up to the end of the file if need be, so that no character is looked at more than a few times.
"""

from __future__ import annotations

import keyword
import re

from markupsafe import Markup, escape

from grader.submission import Language

COLOURED_CHARS = 256 * 1024
"""A longer source is shown without colours, which would make it many times as long."""

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
# A word and its class. The classes are those that the style sheet knows from Pygments.
_CUDA_WORDS = dict.fromkeys(_C_WORDS.split(), "k") | dict.fromkeys(_C_TYPES.split(), "kt")
_PYTHON_WORDS = dict.fromkeys(keyword.kwlist, "k")

# The groups are such classes, but for n, a name.
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


def coloured(source: str, language: Language) -> Markup:
    """The source, escaped, its words in `<span>`s with a class and nothing else."""
    if len(source) > COLOURED_CHARS:
        return escape(source)
    pattern, words = (_PYTHON, _PYTHON_WORDS) if language == "python" else (_CUDA, _CUDA_WORDS)
    parts: list[str] = []
    done = 0
    for found in pattern.finditer(source):
        shown = found.lastgroup or ""
        if shown == "n":
            shown = words.get(found[0], "")
        if shown:
            parts.append(str(escape(source[done : found.start()])))
            parts.append(f'<span class="{shown}">{escape(found[0])}</span>')
            done = found.end()
    parts.append(str(escape(source[done:])))
    return Markup("".join(parts))  # every text in it is escaped above
