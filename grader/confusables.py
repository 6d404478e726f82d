"""Names that look alike, after the idea of a skeleton in Unicode Technical Standard 39.

The table is small and our own: the letters of other scripts that look like Latin ones, and what
looks alike within ASCII. It errs on the side of "alike". A change of it needs a migration, since
the skeletons of user names are stored.
"""

from __future__ import annotations

import re
import unicodedata

_LATIN = re.compile(
    r"LATIN (SMALL LETTER|CAPITAL LETTER|LETTER SMALL CAPITAL) "
    r"(?:DOTLESS |SCRIPT )?([A-Z])(?: WITH .*)?"
)
"""Unicode's names of Latin letters that differ from a basic one by a stroke, a hook or a font."""

_INVISIBLE = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"  # marks on any letter
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Combining marks that fit any script, and characters that are printable and show nothing.

Marks of one script, such as the vowel signs of Devanagari, tell its words apart and stay."""


def _pairs(letters: str, basic: str) -> dict[str, str]:
    return dict(zip(letters, basic, strict=True))


_LOOKS = (
    _pairs("I1|ǀ0", "llllo")
    # Cyrillic; capitals apart where they look like another letter than the small ones do.
    | _pairs("аеіјкорсухѕһԁԛԝүѵгпиьзбч", "aeijkopcyxshdqwyvrnub364")
    | _pairs("ВНМТІӀӏ", "BHMTlll")
    # Greek
    | _pairs("αβγεηικνορστυχωϲϳς", "abyenikvopotuxwcjc")
    | _pairs("ΗΙΜΝΥΖ", "HlMNYZ")
    # Armenian
    | _pairs("օսոհցզյլ", "ounhgqjl")
    | _pairs("ՕՍՏԼ", "OUSL")
    # Cherokee
    | _pairs("ᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏔᎽᏃ", "ABCDEGHIJKLMPRSTVWWYZ")
    | {"ɑ": "a", "æ": "ae", "œ": "oe", "ɩ": "i", "ɛ": "e", "ʋ": "u"}
    | dict.fromkeys("‘’ʻʼʹ′`", "'")
    | dict.fromkeys("∕⁄╱⧸〳", "/")
    | dict.fromkeys("∖⧵", "\\")
)
"""A character → what it looks like. A capital that is not here looks like its small letter."""

_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO"})
"""First words in Unicode's names of letters that one text uses together."""


def skeleton(name: str) -> str:
    """A text that is the same for names that look alike. Empty for a name that shows nothing."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", name))
    text = "".join(map(_look, _INVISIBLE.sub("", text)))
    text = text.replace("rn", "m").replace("vv", "w")
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def scripts(name: str) -> set[str]:
    """The scripts of a name's letters, such as Latin and Cyrillic; those of East Asia are one."""
    found = set()
    for letter in filter(str.isalpha, unicodedata.normalize("NFKC", name)):
        word = unicodedata.name(letter, "unknown").split()[0]
        if word != "MODIFIER":  # such as an apostrophe, which many scripts use
            found.add("East Asian" if word in _EAST_ASIAN else word.capitalize())
    return found


def mixes_scripts(name: str) -> bool:
    """Whether a name has letters of scripts that are not written together.

    East Asian text has Latin letters in it.
    """
    found = scripts(name)
    return len(found) > 1 and found != {"Latin", "East Asian"}


def _look(character: str) -> str:
    if unicodedata.category(character) == "Pd":
        return "-"
    latin = _LATIN.fullmatch(unicodedata.name(character, ""))
    if latin is not None:
        character = latin[2] if latin[1] == "CAPITAL LETTER" else latin[2].lower()
    return _LOOKS.get(character) or _LOOKS.get(character.casefold(), character)
