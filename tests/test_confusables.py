from __future__ import annotations

import pytest

from grader.confusables import mixes_scripts, scripts, skeleton


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bill", "biIl"),
        ("bill", "bi1l"),
        ("bill", "bi|l"),
        ("root", "r00t"),
        ("ROOT", "R0OT"),
        ("modern", "modem"),
        ("savvy", "sawy"),
        ("ada", "\uff41da"),  # full width
        ("ada", "\U0001d41a\U0001d41d\U0001d41a"),  # mathematical bold
        ("ada", "ad\u0430"),  # Cyrillic a
        ("scope", "\u0455\u0441\u043e\u0440\u0435"),  # Cyrillic as a whole
        ("HOME", "\u041d\u041e\u041c\u0415"),  # Cyrillic capitals
        ("nova", "\u03b7\u03bf\u03bd\u03b1"),  # Greek
        ("ZETA", "\u0396\u0395\u03a4\u0391"),  # Greek capitals
        ("sou", "s\u0585\u057d"),  # Armenian
        ("AWE", "\u13aa\u13b3\u13ac"),  # Cherokee
        ("zoe", "zo\u00e9"),
        ("zoe", "zo\u0300\u0301\u0302e"),
        ("lodz", "\u0142\u00f3d\u017a"),
        ("igor", "\u0131gor"),  # without its dot
        ("gag", "\u0261a\u0261"),  # another font
        ("caesar", "c\u00e6sar"),
        ("ada", "a\u034fd\u115fa\ufe0f"),  # invisible
        ("ada l", "ada  l"),
        ("a-b", "a\u2013b"),
        ("o'hara", "o\u2019hara"),
        ("a/b", "a\u2215b"),
    ],
)
def test_names_that_look_alike(name: str, other: str) -> None:
    assert name != other
    assert skeleton(name) == skeleton(other)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ada", "adam"),
        ("kai", "kal"),
        ("user1", "user2"),
        ("user10", "user01"),
        ("Anna", "Anne"),
        ("a b", "ab"),
        ("a-b", "a_b"),
        ("\u0438\u0432\u0430\u043d", "\u0438\u0433\u043e\u0440"),  # Ivan, Igor
        ("\u0930\u093e\u092e", "\u0930\u0942\u092e"),  # Devanagari: only a vowel sign differs
        ("\u304b\u304d", "\u304b\u304e"),  # Hiragana: only a voicing mark differs
        ("\u674e\u660e", "\u674e\u6708"),
        ("\U0001f98a", "\U0001f43a"),
    ],
)
def test_names_that_do_not(name: str, other: str) -> None:
    assert skeleton(name) != skeleton(other)


def test_a_skeleton_is_its_own_skeleton_and_ignores_case_of_most() -> None:
    for name in ("Ada Lovelace", "\u0416\u0430\u043d\u043d\u0430", "\u674e", "x_y-z 42"):
        assert skeleton(skeleton(name)) == skeleton(name) == skeleton(name.casefold())


@pytest.mark.parametrize("name", ["", " ", "\u3164", "\u2800\ufe0f", "\u0301"])
def test_a_name_that_shows_nothing_has_an_empty_skeleton(name: str) -> None:
    assert skeleton(name) == ""


def test_the_scripts_of_a_name() -> None:
    assert scripts("Ada 2") == {"Latin"}
    assert scripts("ad\u0430") == {"Latin", "Cyrillic"}
    assert scripts("\u674e\u3042\ud55c") == {"East Asian"}
    assert scripts("42 \U0001f98a") == set()


@pytest.mark.parametrize(
    ("name", "mixes"),
    [
        ("ada", False),
        ("ad\u0430", True),
        ("\u03b1da", True),
        ("\u0456\u03bf", True),
        ("\u0416\u0430\u043d\u043d\u0430 2", False),
        ("Li \u674e", False),
        ("\u30c6\u30b9\u30c8 test", False),
        ("\u0416 \u674e", True),
        ("Hawai\u02bbi", False),
        ("\uff41da", False),  # full width Latin
    ],
)
def test_scripts_that_are_not_written_together(name: str, mixes: bool) -> None:
    assert mixes_scripts(name) is mixes
