"""Where a runner's control group is made. `test_process.py` tests its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.sandbox import cgroup


def test_the_group_nearest_to_the_judges_own_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the judge's slice must also bound its runners."""
    monkeypatch.setattr(Path, "read_text", lambda _: "0::/system.slice/grade.service\n")
    monkeypatch.setattr(cgroup, "_delegates", lambda _: True)
    folders = [memory for memory, _ in cgroup._parent_groups()]
    root = cgroup._ROOT
    assert folders == [root / "system.slice/grade.service", root / "system.slice", root]
