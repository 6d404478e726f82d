from __future__ import annotations

from collections.abc import Callable

import pytest

from grader.report import MAX_MARKS, Report, escape, one_line, provenance

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
def test_ordinary_text_is_not_escaped(text: str) -> None:
    assert escape(text, 100) == text


@pytest.mark.parametrize("blank", "\u115f\u1160\u2800\u3164\uffa0\u200b\u202e\u00ad")
def test_invisible_characters_are_escaped(blank: str) -> None:
    shown = blank.encode("unicode_escape").decode()
    assert one_line(f"a{blank}b") == f"a{shown}b"


@pytest.mark.parametrize("mark", [ACUTE, RING])
def test_long_piles_of_marks_are_escaped(mark: str) -> None:
    shown = mark.encode("unicode_escape").decode()
    pile = mark * (MAX_MARKS + 2)
    assert escape(f"a{pile}b{mark}", 100) == f"a{mark * MAX_MARKS}{shown * 2}b{mark}"


@pytest.mark.parametrize("word", ["လျှို့ဝှက်", "Việt", "नमस्ते", "สวัสดี"])
def test_words_with_marks_are_not_escaped(word: str) -> None:
    assert one_line(word) == word


@pytest.mark.parametrize("before", ["", "a\n", "a\t"])
def test_a_mark_without_a_base_character_is_escaped(before: str) -> None:
    assert escape(f"{before}{ACUTE}b", 100) == f"{before}\\u0301b"


def test_the_provenance_shows_texts_of_the_environment_only(
    make_report: Callable[..., Report],
) -> None:
    environment = {
        "grade": "0.1.0",
        "torch": "2.9.0",
        "python": None,
        "cuda": ["12.8"],
        "gpu_uuid": "GPU-1\n2" + "x" * 100,
        "driver": "570.86\x1b",
    }
    assert provenance(make_report()) == []
    told = provenance(make_report(environment=environment, worker="farm/a"))
    assert [label for label, _ in told] == ["worker", "GPU", "driver", "software"]
    texts = dict(told)
    assert (texts["worker"], texts["software"]) == ("farm/a", "grade 0.1.0, PyTorch 2.9.0")
    assert texts["driver"] == "570.86\\x1b"
    assert len(texts["GPU"]) == 60
