from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from grader.server.pages.highlighting import (
    MAX_HIGHLIGHTED_CHARS,
    MAX_NUMBERED_LINES,
    highlight_source,
    numbered_source,
    split_lines,
)
from grader.submission import LANGUAGES, Language
from tests.server.examples import ATTACK

LANGUAGE = st.sampled_from(get_args(Language))
PIECES = st.lists(
    st.sampled_from(
        ["\n", "\r", " ", "'", '"', "'''", '"""', "\\", "/*", "*/", "//", "#", "a", "1"]
    )
)
CORPUS = Path(__file__).parents[3] / "submissions"


@given(st.text() | PIECES.map("".join), LANGUAGE)
def test_every_character_is_kept(source: str, language: Language) -> None:
    shown = highlight_source(source, language)
    assert re.sub(r"<[^>]*>", "", shown) == escape(source)
    for tag in re.findall(r"<[^>]*>", shown):
        assert re.fullmatch(r'</span>|<span class="(c|s|nd|m|nf|k|kt|cp)">', tag)


@pytest.mark.parametrize(
    ("source", "language", "shown"),
    [
        ("def f(x):", "python", '<span class="k">def</span> <span class="nf">f</span>(x):'),
        ("@jit\nx = 1  # é", "python",
         '<span class="nd">@jit</span>\nx = <span class="m">1</span>  <span class="c"># é</span>'),
        ("rb'#' + define", "python", '<span class="s">rb&#39;#&#39;</span> + define'),
        ("'open\nx", "python", '<span class="s">&#39;open</span>\nx'),
        ("/* int */ int x;", "cuda",
         '<span class="c">/* int */</span> <span class="kt">int</span> x;'),
        ("#include <a>", "cuda", '<span class="cp">#include</span> &lt;a&gt;'),
        ('"//" /* open', "cuda",
         '<span class="s">&#34;//&#34;</span> <span class="c">/* open</span>'),
    ],
)  # fmt: skip
def test_tokens_are_highlighted(source: str, language: Language, shown: str) -> None:
    assert highlight_source(source, language) == shown


@pytest.mark.parametrize("language", get_args(Language))
@pytest.mark.parametrize(
    "piece",
    [
        "\n",
        "\r",
        " ",
        "'",
        '"',
        "'''",
        '"""',
        "\\",
        "/*",
        "/**",
        "#",
        "@a.",
        "a b ",
        "1.",
        "<",
        "rb",
    ],
)
def test_highlighting_takes_linear_time(piece: str, language: Language) -> None:
    """General highlighters take minutes for 64 KiB of line breaks."""
    source = piece * (MAX_HIGHLIGHTED_CHARS // len(piece))
    started = time.process_time()
    highlight_source(source, language)
    assert time.process_time() - started < 5


def test_a_very_long_source_is_not_highlighted() -> None:
    assert highlight_source("1" * (MAX_HIGHLIGHTED_CHARS + 1), "python") == "1" * (
        MAX_HIGHLIGHTED_CHARS + 1
    )


def test_markup_in_a_source_is_escaped() -> None:
    for language in get_args(Language):
        assert "<script" not in highlight_source(ATTACK, language)
        assert "<img" not in highlight_source(ATTACK, language)


def test_every_character_of_the_corpus_is_kept() -> None:
    files = [path for ext in LANGUAGES for path in CORPUS.rglob(f"*{ext}")]
    assert files
    for path in files:
        source = path.read_bytes().decode("utf-8", "replace")
        shown = highlight_source(source, LANGUAGES[path.suffix])
        assert re.sub(r"<[^>]*>", "", shown) == escape(source)


@given(st.text() | PIECES.map("".join), LANGUAGE)
def test_every_line_is_numbered_and_complete(source: str, language: Language) -> None:
    shown = str(numbered_source(source, language)).split("\n</span>")
    assert shown.pop() == ""
    numbers = [line.split('"', 4)[3] for line in shown]
    assert numbers == [f"L{number}" for number in range(1, len(shown) + 1)]
    lines = [re.sub(r"<[^>]*>", "", line.split("</a>", 1)[1]) for line in shown]
    assert lines == [escape(line) for line in split_lines(source)]


def test_a_token_of_several_lines_is_closed_on_each() -> None:
    shown = numbered_source("/* a\n\nb */ int", "cuda").split("\n</span>")
    assert [line.split("</a>")[1] for line in shown[:-1]] == [
        '<span class="c">/* a</span>', "", '<span class="c">b */</span> <span class="kt">int</span>'
    ]  # fmt: skip


def test_a_source_of_very_many_lines_has_no_numbers() -> None:
    assert 'id="L1"' in numbered_source("\n" * MAX_NUMBERED_LINES, "cuda")
    assert 'id="L1"' not in numbered_source("\n" * (MAX_NUMBERED_LINES + 1), "cuda")
