"""What the documentation tells of the hosted leaderboard is what the code has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from grader.server.http import metrics
from grader.server.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
HOSTING = (ROOT / "docs" / "hosting.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_setting_is_told_with_its_default() -> None:
    told = re.findall(r"^\| `([A-Z_]+)` \| ([\d.]+) \|", HOSTING, re.MULTILINE)
    settings = {field.name.upper(): field.default for field in fields(Settings)}
    assert {name: float(default) for name, default in told} == settings


def test_every_metric_is_told() -> None:
    source = Path(metrics.__file__).read_text("utf-8")
    for name in re.findall(r'"(grade_[a-z_]+)"', source):
        assert f"`{name}" in HOSTING


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        linked = page.parent / target if target else page
        assert linked.exists(), link
        headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.M) if anchor else []
        assert not anchor or anchor in [h.lower().replace(" ", "-") for h in headings], link
