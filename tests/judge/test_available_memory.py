"""The memory that is left is read from the machine, and from its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from grader.judge import available_memory
from grader.judge.available_memory import available_bytes


def test_the_host_has_some_left() -> None:
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes("cpu") <= total_bytes


def test_a_control_group_may_leave_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its inactive cache can be reclaimed; a group without a limit has ``max``."""
    root = tmp_path
    monkeypatch.setattr(available_memory, "_CGROUPS", root)
    monkeypatch.setattr(available_memory, "_own_group", lambda: "outer/inner")
    inner = root / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (inner.parent, "5000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("4000")
        (folder / "memory.stat").write_text("anon 3000\ninactive_file 700\n")
    assert available_bytes("cpu") == 1700


@pytest.mark.cuda
def test_what_pytorch_caches_is_left() -> None:
    torch.cuda.empty_cache()
    before = available_bytes("cuda")
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert before - available_bytes("cuda") >= held.nbytes
    del held
    assert before - available_bytes("cuda") < 1 << 30
