from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from grader.server.pages.highlighting import COLOURED_CHARS, coloured
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
def test_every_character_stays(source: str, language: Language) -> None:
    shown = coloured(source, language)
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
def test_words_are_coloured(source: str, language: Language, shown: str) -> None:
    assert coloured(source, language) == shown


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
def test_no_source_takes_long(piece: str, language: Language) -> None:
    """General highlighters take minutes for 64 KiB of line breaks."""
    source = piece * (COLOURED_CHARS // len(piece))
    started = time.process_time()
    coloured(source, language)
    assert time.process_time() - started < 5


def test_a_very_long_source_stays_plain() -> None:
    assert coloured("1" * (COLOURED_CHARS + 1), "python") == "1" * (COLOURED_CHARS + 1)


def test_attacks_become_text() -> None:
    for language in get_args(Language):
        assert "<script" not in coloured(ATTACK, language)
        assert "<img" not in coloured(ATTACK, language)


def test_the_corpus_stays_whole() -> None:
    files = [path for ext in LANGUAGES for path in CORPUS.rglob(f"*{ext}")]
    assert files
    for path in files:
        source = path.read_bytes().decode("utf-8", "replace")
        shown = coloured(source, LANGUAGES[path.suffix])
        assert re.sub(r"<[^>]*>", "", shown) == escape(source)
