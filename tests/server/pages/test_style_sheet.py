"""The style sheet: contrast of its colours, and no external resources."""

from __future__ import annotations

import re

import pytest

from grader.server.pages.templates import STATIC

CSS = STATIC / "grade.css"


def test_classes_that_anchor_text_have_no_stroke() -> None:
    rules = re.findall(r"svg (\.[\w-]+) \{([^}]*)\}", CSS.read_text())
    anchors = {name for name, rule in rules if "text-anchor" in rule}
    assert anchors == {".end", ".middle"}
    assert not [name for name, rule in rules if "stroke" in rule and name in anchors]


def palette() -> list[dict[str, str]]:
    """The colours by name, of the light and of the dark theme."""
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS.read_text())
    return [{name: light for name, light, _ in found}, {name: dark for name, _, dark in found}]


def luminance(colour: str) -> float:
    """The relative luminance as defined by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_colour_has_enough_contrast_on_every_background(scheme: int) -> None:
    colours = palette()[scheme]
    for text in ("ink", "soft", "accent", "good", "bad", "odd"):
        for background in ("paper", "panel", "sunk"):
            assert contrast(colours[text], colours[background]) >= 4.5, (text, background)
    for text in ("ink", "soft"):
        assert contrast(colours[text], colours["wash"]) >= 4.5
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    assert contrast(colours["accent"], colours["rail"]) >= 3


def test_the_style_sheet_loads_nothing() -> None:
    assert "url(" not in CSS.read_text()
    assert "@import" not in CSS.read_text()
