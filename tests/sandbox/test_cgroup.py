"""Where a runner's control group is made. That its limits hold is seen in `test_process.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.sandbox import cgroup


def test_the_nearest_group_to_the_judges_own_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What limits the judge's slice shall limit its runners, too."""
    monkeypatch.setattr(Path, "read_text", lambda _: "0::/system.slice/grade.service\n")
    monkeypatch.setattr(cgroup, "_delegates", lambda _: True)
    folders = [memory for memory, _ in cgroup._parent_groups()]
    root = cgroup._ROOT
    assert folders == [root / "system.slice/grade.service", root / "system.slice", root]
