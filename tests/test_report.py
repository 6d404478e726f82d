from __future__ import annotations

import pytest

from grader.report import MOST_MARKS, escape, one_line

ACUTE, RING = "\u0301", "\u20dd"


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "tab\tand\nline",
        "déjà vu, Tiếng Việt, Łódź",
        "ภาษาไทย ที่นี่",
        "हिन्दी में",
        "שָׁלוֹם",
        "한국어 日本語",
        "1\ufe0f\u20e3",
        f"e{ACUTE}" * 9,
    ],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert escape(text, 100) == text


@pytest.mark.parametrize("blank", "\u115f\u1160\u2800\u3164\uffa0\u200b\u202e\u00ad")
def test_what_is_not_seen_is_escaped(blank: str) -> None:
    shown = blank.encode("unicode_escape").decode()
    assert one_line(f"a{blank}b") == f"a{shown}b"


@pytest.mark.parametrize("mark", [ACUTE, RING])
def test_marks_do_not_pile_up(mark: str) -> None:
    shown = mark.encode("unicode_escape").decode()
    pile = mark * (MOST_MARKS + 2)
    assert escape(f"a{pile}b{mark}", 100) == f"a{mark * MOST_MARKS}{shown * 2}b{mark}"


@pytest.mark.parametrize("word", ["လျှို့ဝှက်", "Việt", "नमस्ते", "สวัสดี"])
def test_words_of_living_languages_stay_as_they_are(word: str) -> None:
    assert one_line(word) == word


@pytest.mark.parametrize("before", ["", "a\n", "a\t"])
def test_a_mark_stands_on_a_character_of_its_own_text(before: str) -> None:
    assert escape(f"{before}{ACUTE}b", 100) == f"{before}\\u0301b"
